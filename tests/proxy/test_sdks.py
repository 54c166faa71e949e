"""Do the official SDKs work through Fairlane, and read its refusals as they should?"""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import openai
import pytest

from lab.engine.engine import Engine
from lab.engine.faults import Fault
from tests.proxy.serving import TWO_LANES, serving
from tests.wire import ScriptedBackend, scripts

ASK: Any = [{"role": "user", "content": "hi"}]


def file(url: str, cap: int = 4, places: int = 4) -> str:
    return (
        TWO_LANES
        + f'platforms: {{p: {{probe: none, backends: {{b: {{url: "{url}", max_streams: {cap}}}}}}}}}\n'
        + f"pools: {{main: {{primary: p, queue: {{places: {places}}}}}}}\n"
    )


async def test_openai_streams_answers_embeds_and_lists() -> None:
    async with Engine(ttft_s=0.01, tpot_s=0.001).serving() as engine, serving(file(engine.url)) as proxy:
        async with openai.AsyncOpenAI(base_url=proxy.url + "/v1", api_key="sk-A", max_retries=0) as client:
            whole = await client.chat.completions.create(model="m", messages=ASK, max_tokens=7)
            assert whole.usage is not None and whole.usage.completion_tokens == 7
            assert whole._request_id is not None
            stream = await client.chat.completions.create(
                model="m", messages=ASK, max_tokens=7, stream=True, stream_options={"include_usage": True}
            )  # fmt: skip
            chunks = [chunk async for chunk in stream]
            assert sum(bool(chunk.choices and chunk.choices[0].delta.content) for chunk in chunks) == 7
            assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 7
            events = [event async for event in await client.responses.create(model="m", input="hi", max_output_tokens=5, stream=True)]
            assert events[-1].type == "response.completed"
            assert len((await client.embeddings.create(model="m", input="hi")).data) == 1
            assert [model.id async for model in client.models.list()] == ["main"]
        await proxy.at_rest()
        assert await proxy.metric("fairlane_requests_total", pool="main", outcome="ok") == 4


@pytest.mark.parametrize("fault", ["cut", "error_in_stream"])
async def test_openai_sees_one_whole_stream_where_two_backends_said_it(fault: Any) -> None:
    async with (
        Engine(ttft_s=0.01, tpot_s=0.001).serving() as first,
        Engine(ttft_s=0.01, tpot_s=0.001).serving() as second,
    ):
        both = f'p: {{backends: {{b: "{first.url}"}}}}, s: {{backends: {{c: "{second.url}"}}}}'.replace(
            "{backends", "{max_streams: 4, backends"
        )
        async with serving(TWO_LANES + f"platforms: {{{both}}}\npools: {{main: {{primary: p, standby: s, continue: true}}}}\n") as proxy:
            async with openai.AsyncOpenAI(base_url=proxy.url + "/v1", api_key="sk-A", max_retries=0) as client:

                async def said() -> tuple[str, set[str], Any, Any]:
                    stream = await client.chat.completions.create(
                        model="m", messages=ASK, max_tokens=30, stream=True, stream_options={"include_usage": True}
                    )
                    chunks = [chunk async for chunk in stream]
                    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
                    return text, {chunk.id for chunk in chunks}, chunks[-1].usage, chunks[-2].choices[0].finish_reason

                text, _, usage, finish = await said()
                first.fault(Fault(fault=fault, after=11, times=1))
                again = await said()
                assert (again[0], again[2], again[3]) == (text, usage, finish) and len(again[1]) == 1
            await proxy.at_rest()
            assert await proxy.metric("fairlane_continuations_total", result="ok") == 1


async def test_anthropic_streams_answers_and_counts() -> None:
    async with Engine(ttft_s=0.01, tpot_s=0.001).serving() as engine, serving(file(engine.url)) as proxy:
        async with anthropic.AsyncAnthropic(base_url=proxy.url, api_key="sk-A", max_retries=0) as client:
            whole = await client.messages.create(model="m", max_tokens=7, messages=ASK)
            assert whole.usage.output_tokens == 7
            async with client.messages.stream(model="m", max_tokens=7, messages=ASK) as stream:
                assert len([text async for text in stream.text_stream]) == 7
            assert (await client.messages.count_tokens(model="m", messages=ASK)).input_tokens > 0
            assert [model.id async for model in client.models.list()] == ["main"]
        await proxy.at_rest()
        assert await proxy.metric("fairlane_tokens_total", source="usage", direction="output") == 14


async def test_each_sdk_names_our_refusals_by_their_kind() -> None:
    gate = asyncio.Event()
    async with ScriptedBackend(scripts.wait(gate), scripts.ok()) as backend, serving(file(backend.url, 1, 0)) as proxy:
        async with (
            openai.AsyncOpenAI(base_url=proxy.url + "/v1", api_key="sk-A", max_retries=0) as client,
            openai.AsyncOpenAI(base_url=proxy.url + "/v1", api_key="sk-nobody", max_retries=0) as stranger,
            anthropic.AsyncAnthropic(base_url=proxy.url, api_key="sk-A", max_retries=0) as other,
        ):
            with pytest.raises(openai.AuthenticationError):
                await stranger.chat.completions.create(model="m", messages=ASK)
            first = asyncio.ensure_future(client.chat.completions.create(model="m", messages=ASK))
            await backend.until(lambda: backend.active == 1)
            with pytest.raises(openai.RateLimitError) as refused:
                await client.chat.completions.create(model="m", messages=ASK)
            assert refused.value.code == "queue_full"
            with pytest.raises(anthropic.RateLimitError) as refused_too:
                await other.messages.create(model="m", max_tokens=1, messages=ASK)
            assert refused_too.value.response.headers["x-fairlane-reason"] == "queue_full"
            gate.set()
            assert (await first).choices


async def test_an_sdk_that_retries_comes_through_when_there_is_room() -> None:
    gate = asyncio.Event()
    async with ScriptedBackend(scripts.wait(gate), scripts.ok()) as backend, serving(file(backend.url, 1, 0)) as proxy:
        async with openai.AsyncOpenAI(base_url=proxy.url + "/v1", api_key="sk-A", max_retries=2) as client:
            first = asyncio.ensure_future(client.chat.completions.create(model="m", messages=ASK))
            await backend.until(lambda: backend.active == 1)
            second = asyncio.ensure_future(client.chat.completions.create(model="m", messages=ASK))
            await proxy.until(lambda: proxy.fairlane.telemetry is not None and len(proxy.fairlane.service.stories) == 1)
            gate.set()
            assert (await first).choices and (await second).choices
            assert await proxy.metric("fairlane_requests_total", outcome="ok", pool="main") == 2


@pytest.mark.parametrize("by", ["reset", "early_end", "clean_end"])
async def test_a_cut_stream_raises_in_each_sdk(by: str) -> None:
    async with Engine(ttft_s=0.01, tpot_s=0.001).serving() as engine, serving(file(engine.url)) as proxy:
        engine.fault(Fault(fault="cut", after=5, by=by))  # type: ignore[arg-type]
        async with (
            openai.AsyncOpenAI(base_url=proxy.url + "/v1", api_key="sk-A", max_retries=0) as client,
            anthropic.AsyncAnthropic(base_url=proxy.url, api_key="sk-A", max_retries=0) as other,
        ):
            got = 0
            with pytest.raises(openai.APIError):
                async for chunk in await client.chat.completions.create(model="m", messages=ASK, max_tokens=20, stream=True):
                    got += bool(chunk.choices and chunk.choices[0].delta.content)
            assert got == 5
            with pytest.raises(anthropic.APIError):
                async with other.messages.stream(model="m", max_tokens=20, messages=ASK) as stream:
                    async for _ in stream.text_stream:
                        pass
        await proxy.at_rest()
        assert await proxy.metric("fairlane_requests_total", outcome="ok") == 0
