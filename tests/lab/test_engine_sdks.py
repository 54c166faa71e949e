"""Do the official SDKs take the engine for a real one? Streaming and not, every API it speaks."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anthropic
import openai
import pytest

from lab.engine.answers import text
from lab.engine.engine import Engine
from lab.engine.faults import Fault


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine(ttft_s=0.0, tpot_s=0.001, model="little").serving() as engine:
        yield engine


@pytest.fixture
async def gpt(engine: Engine) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def claude(engine: Engine) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=engine.url, api_key="none", max_retries=0) as client:
        yield client


async def test_chat(gpt: openai.AsyncOpenAI) -> None:
    # A model name with what the engine's own templates use, to see that they survive it.
    model = 'org/"m@1"'
    answer = await gpt.chat.completions.create(model=model, messages=[{"role": "user", "content": "hello"}], max_tokens=7)
    assert answer.choices[0].message.content == text(7) and answer.choices[0].finish_reason == "stop"
    assert answer.model == model and answer.usage is not None and answer.usage.completion_tokens == 7
    chunks = await gpt.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
        max_completion_tokens=7,
        stream=True,
        stream_options={"include_usage": True},
    )
    received = [chunk async for chunk in chunks]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in received if chunk.choices) == text(7)
    assert received[-1].usage is not None and received[-1].usage.prompt_tokens == 2
    assert {chunk.model for chunk in received} == {model}


async def test_completions(gpt: openai.AsyncOpenAI) -> None:
    answer = await gpt.completions.create(model="m", prompt=[1, 2, 3], max_tokens=4)
    assert answer.choices[0].text == text(4) and answer.usage is not None and answer.usage.prompt_tokens == 3
    chunks = await gpt.completions.create(model="m", prompt="hello", max_tokens=4, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in chunks]) == text(4)


async def test_responses(gpt: openai.AsyncOpenAI) -> None:
    answer = await gpt.responses.create(model="m", input="hello", max_output_tokens=5)
    assert answer.output_text == text(5) and answer.usage is not None and answer.usage.output_tokens == 5
    events = [event async for event in await gpt.responses.create(model="m", input="hello", max_output_tokens=5, stream=True)]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == text(5)
    assert events[-1].type == "response.completed" and [event.sequence_number for event in events] == list(range(len(events)))


async def test_embeddings_and_models(gpt: openai.AsyncOpenAI, engine: Engine) -> None:
    answer = await gpt.embeddings.create(model="m", input=["a", "b", "c"])
    assert [item.index for item in answer.data] == [0, 1, 2] and len(answer.data[0].embedding) == len(answer.data[2].embedding) > 0
    assert len((await gpt.embeddings.create(model="m", input=[1, 2])).data) == 1
    assert [card.id async for card in gpt.models.list()] == ["little"]
    assert (await gpt.models.retrieve("little")).id == "little"
    assert engine.log.finished == 2


async def test_messages(claude: anthropic.AsyncAnthropic) -> None:
    answer = await claude.messages.create(model="m", max_tokens=6, messages=[{"role": "user", "content": "hello"}], system="be short")
    assert isinstance(answer.content[0], anthropic.types.TextBlock) and answer.content[0].text == text(6)
    assert (answer.stop_reason, answer.usage.input_tokens, answer.usage.output_tokens) == ("end_turn", 4, 6)
    async with claude.messages.stream(model="m", max_tokens=6, messages=[{"role": "user", "content": "hello"}]) as stream:
        assert "".join([piece async for piece in stream.text_stream]) == text(6)
        final = await stream.get_final_message()
    assert (final.stop_reason, final.usage.output_tokens) == ("end_turn", 6)
    assert (await claude.messages.count_tokens(model="m", messages=[{"role": "user", "content": "hello"}])).input_tokens == 2


async def test_errors_are_theirs(gpt: openai.AsyncOpenAI, claude: anthropic.AsyncAnthropic, engine: Engine) -> None:
    engine.fault(Fault(fault="status", code=429))
    with pytest.raises(openai.RateLimitError):
        await gpt.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}])
    with pytest.raises(anthropic.RateLimitError):
        await claude.messages.create(model="m", max_tokens=6, messages=[{"role": "user", "content": "hello"}])
    engine.fault(Fault(fault="error_in_stream", after=1))
    with pytest.raises(openai.APIError):
        async for _ in await gpt.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}], stream=True):
            pass
    events = [event async for event in await gpt.responses.create(model="m", input="hello", stream=True)]
    assert events[-1].type == "error"  # a flat event that the SDK hands on
    with pytest.raises(anthropic.APIStatusError):
        async with claude.messages.stream(model="m", max_tokens=6, messages=[{"role": "user", "content": "hello"}]) as stream:
            async for _ in stream.text_stream:
                pass
