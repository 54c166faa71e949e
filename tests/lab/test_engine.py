"""Does the engine behave as an engine does? Seen from raw clients, times as ratios with wide room."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lab.engine.engine import Engine
from tests.wire import JS, J, RawClient, Response, eventually, in_one_of, post

GET_HEALTH = b"GET /health HTTP/1.1\r\nHost: t\r\n\r\n"


def ask(tokens: int, *, stream: bool = True, content: str = "hi", **more: object) -> bytes:
    body = {"model": "m", "stream": stream, "max_tokens": tokens, "messages": [{"role": "user", "content": content}], **more}
    return post(json.dumps(body).encode())


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: t\r\n\r\n".encode()


async def once(engine: Engine, request: bytes) -> Response:
    async with await RawClient.connect(engine.port) as client:
        return await client.ask(request)


async def log(engine: Engine) -> dict[str, int]:
    seen: dict[str, int] = json.loads((await once(engine, get("/_log"))).body)
    return seen


async def until(engine: Engine, **wanted: int) -> None:
    """Asks the log until it says so."""

    async def says_so() -> bool:
        seen = await log(engine)
        return {key: seen[key] for key in wanted} == wanted

    await eventually(says_so)


async def stream(engine: Engine, request: bytes) -> tuple[float, list[float], list[dict[str, Any]]]:
    """When it was asked, when each token came, and all events but [DONE]."""
    async with await RawClient.connect(engine.port) as client:
        sent_at = time.monotonic()
        await client.send(request)
        assert (await client.head()).header("content-type") == "text/event-stream; charset=utf-8"
        tokens_at, events, ends = [], [], 0
        async for event in client.events():
            if event == b"data: [DONE]\n\n":
                ends += 1
                continue
            events.append(json.loads(event.removeprefix(b"data: ")))
            if any(choice["delta"].get("content") for choice in events[-1]["choices"]):
                tokens_at.append(time.monotonic())
        assert ends == 1
        return sent_at, tokens_at, events


async def test_a_stream_has_a_role_its_tokens_a_finish_reason_and_usage_if_asked() -> None:
    async with Engine(ttft_s=0.0, tpot_s=0.0).serving() as engine:
        _, tokens_at, events = await stream(engine, ask(5, content="x" * 400))
        assert len(tokens_at) == 5 and events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert [event["choices"][0]["finish_reason"] for event in events] == [None] * 6 + ["stop"]
        assert not any("usage" in event for event in events)
        _, _, events = await stream(engine, ask(5, content="x" * 400, stream_options={"include_usage": True}))
        assert events[-1]["choices"] == []
        assert events[-1]["usage"] == {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105}


async def test_latency_follows_prompt_and_load() -> None:
    # Longer times than the machine's own hiccups; the arithmetic itself is tested without a clock.
    async def once() -> tuple[float, float, float, list[float]]:
        """First tokens of a short and a long prompt, gaps alone and together: seconds."""
        async with Engine(slots=4, ttft_s=0.05, tpot_s=0.01, prefill_rate=1000, load_factor=3, prefill_slowdown=0).serving() as engine:
            sent_at, alone, _ = await stream(engine, ask(20))
            long_sent_at, long, _ = await stream(engine, ask(1, content="x" * 1600))
            together = await asyncio.gather(*(stream(engine, ask(20)) for _ in range(4)))
            gaps_s = [(tokens_at[-1] - tokens_at[0]) / 19 for _, tokens_at, _ in together]
            return alone[0] - sent_at, long[0] - long_sent_at, (alone[-1] - alone[0]) / 19, gaps_s

    def verdict(found: tuple[float, float, float, list[float]]) -> None:
        short_ttft_s, long_ttft_s, gap_s, gaps_s = found
        assert 4 < long_ttft_s / short_ttft_s < 12  # 450 ms over 51
        assert 0.008 < gap_s < 0.02
        assert all(2 < each / gap_s < 4 for each in gaps_s)  # 3 with all slots taken

    await in_one_of(3, once, verdict)


async def test_a_whole_answer_takes_as_long_as_its_stream() -> None:
    async def once() -> float:
        """Its time, as a share of the stream's."""
        async with Engine(slots=4, ttft_s=0.05, tpot_s=0.01).serving() as engine:
            sent_at, tokens_at, _ = await stream(engine, ask(30))
            began_at = time.monotonic()
            whole = await engine_answer(engine, ask(30, stream=False))
            took_s = time.monotonic() - began_at
            assert whole["usage"]["completion_tokens"] == 30 and len(whole["choices"][0]["message"]["content"]) > 30
            return took_s / (tokens_at[-1] - sent_at)

    def verdict(share: float) -> None:
        assert 0.6 < share < 1.6

    await in_one_of(3, once, verdict)


async def engine_answer(engine: Engine, request: bytes) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads((await once(engine, request)).body)
    return answer


async def test_at_most_the_slots_are_answered_at_once_and_the_rest_in_order() -> None:
    async with Engine(slots=2, ttft_s=0.02, tpot_s=0.001).serving() as engine:
        finished: list[int] = []

        async def one(number: int) -> None:
            await stream(engine, ask(10))
            finished.append(number)

        tasks = []
        for number in range(8):
            tasks.append(asyncio.create_task(one(number)))
            await until(engine, requests=number + 1)
        await asyncio.gather(*tasks)
        seen = await log(engine)
        assert seen["at_most_at_once"] == 2 and seen["at_most_waiting"] >= 4 and seen["at_most_held"] >= 6
        assert (seen["requests"], seen["finished"], seen["at_once"], seen["waiting"], seen["aborted"]) == (8, 8, 0, 0, 0)
        assert [number // 2 for number in finished] == [0, 0, 1, 1, 2, 2, 3, 3]


async def test_a_client_that_leaves_is_noticed_at_once_and_its_slot_goes_on() -> None:
    async with Engine(slots=1, ttft_s=0.0, tpot_s=0.05).serving() as engine:
        for number, leave in enumerate(("close", "reset", "half_close"), start=1):
            async with await RawClient.connect(engine.port) as client, await RawClient.connect(engine.port) as waiting:
                await client.send(ask(10_000))
                await client.head()
                await waiting.send(ask(10_000))
                await until(engine, at_once=1, waiting=1)
                getattr(client, leave)()
                left_at = time.monotonic()
                await waiting.head()
                assert time.monotonic() - left_at < 0.5
                await until(engine, aborted=2 * number - 1, at_once=1, waiting=0)
            await until(engine, aborted=2 * number, at_once=0)


async def test_one_that_waits_and_leaves_is_forgotten() -> None:
    async with Engine(slots=1, ttft_s=0.0, tpot_s=0.05).serving() as engine, await RawClient.connect(engine.port) as first:
        await first.send(ask(10_000))
        async with await RawClient.connect(engine.port) as second:
            await second.send(ask(10, stream=False))
            await until(engine, at_once=1, waiting=1)
        await until(engine, at_once=1, waiting=0, aborted=1)


async def test_health_is_503_during_startup() -> None:
    async with Engine(startup_s=0.3, ttft_s=0.0).serving() as engine, await RawClient.connect(engine.port) as client:
        assert (await client.ask(GET_HEALTH)).status == 503
        assert (await client.ask(post(J))).status == 503

        async def healthy() -> bool:
            return (await client.ask(GET_HEALTH)).status == 200

        await eventually(healthy)
        assert (await client.ask(ask(1, stream=False))).status == 200


async def test_it_dies_and_comes_back_on_its_port() -> None:
    engine = Engine(slots=2, tpot_s=0.05)
    async with engine.serving():
        async with await RawClient.connect(engine.port) as client:
            await client.send(ask(1000))
            await client.head()
            await engine.stop()
            assert await client.until_closed() == "reset"
        await engine.start()
        assert (await once(engine, ask(1, stream=False))).status == 200
        assert engine.log.aborted == 0  # the engine left, not the client


async def test_length_is_sampled_by_the_seed_if_none_is_set() -> None:
    async def lengths(seed: int) -> list[int]:
        engine = Engine(seed=seed, ttft_s=0.0, tpot_s=0.0, output_mean_tokens=50)
        async with engine.serving(), await RawClient.connect(engine.port) as client:
            answers = [await client.ask(post(J)) for _ in range(100)]
        return [json.loads(answer.body)["usage"]["completion_tokens"] for answer in answers]

    first = await lengths(1)
    assert first == await lengths(1) and first != await lengths(2)
    assert 35 < sum(first) / len(first) < 70 and min(first) >= 1


async def test_metrics_have_the_names_of_vllm() -> None:
    async with Engine(ttft_s=0.0, tpot_s=0.001, model='a"b').serving() as engine, await RawClient.connect(engine.port) as busy:
        await once(engine, ask(5, stream=False, content="x" * 400))
        await busy.send(ask(100_000))
        await busy.head()
        text = (await once(engine, get("/metrics"))).body.decode()
        samples = {sample.name: sample for family in text_string_to_metric_families(text) for sample in family.samples}
        assert samples["vllm:num_requests_running"].value == 1 and samples["vllm:num_requests_waiting"].value == 0
        assert samples["vllm:kv_cache_usage_perc"].value == samples["vllm:gpu_cache_usage_perc"].value == 1 / 8
        assert samples["vllm:prompt_tokens_total"].value == 101 and samples["vllm:generation_tokens_total"].value >= 6
        assert samples["vllm:time_to_first_token_seconds_count"].value == 2
        assert samples["vllm:time_per_output_token_seconds_count"].value >= 4
        assert samples["vllm:request_success_total"].value == 1
        assert samples["vllm:num_requests_running"].labels["model_name"] == 'a"b'


async def test_what_it_does_not_serve_it_says() -> None:
    async with Engine().serving() as engine, await RawClient.connect(engine.port) as client:
        assert (await client.ask(post(b'{"model":'))).status == 400
        assert (await client.ask(post(b'{"model":"m"}'))).status == 400
        assert (await client.ask(ask(0))).status == 400
        deep = b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
        assert (await client.ask(post(deep))).status == 400
        refused = await client.ask(post(b"{}", path="/v1/messages"))
        assert refused.status == 400 and json.loads(refused.body)["type"] == "error"
        assert (await client.ask(get("/v1/nothing"))).status == 404
        assert (await client.ask(get("/v1/chat/completions"))).status == 405
        await client.send(b"not HTTP\r\n\r\n")
        assert (await client.response()).status == 400 and await client.until_closed() == "fin"


async def test_a_thousand_requests_in_one_write_are_answered_in_order() -> None:
    async with Engine(ttft_s=0.0, tpot_s=0.0).serving() as engine, await RawClient.connect(engine.port) as client:
        await client.send((get("/health") + ask(1, stream=False) + get("/v1/models?x=1")) * 334)
        for _ in range(334):
            answers = [await client.response() for _ in range(3)]
            assert [answer.status for answer in answers] == [200] * 3
            assert json.loads(answers[1].body)["object"] == "chat.completion" and json.loads(answers[2].body)["object"] == "list"


@pytest.mark.parametrize("wrong", [{"slots": 0}, {"prefill_rate": 0.0}, {"tpot_s": -1.0}])
def test_an_engine_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        Engine(**wrong)


async def test_tokens_are_counted_without_a_slot() -> None:
    async with Engine(slots=1, tpot_s=0.05).serving() as engine, await RawClient.connect(engine.port) as busy:
        await busy.send(ask(10_000))
        await busy.head()
        counted = await once(engine, post(JS, path="/v1/messages/count_tokens"))
        assert json.loads(counted.body) == {"input_tokens": 1}
        assert (await log(engine))["at_most_waiting"] == 0


async def test_an_answer_that_another_engine_has_begun_goes_on_behind_its_words() -> None:
    async with Engine(slots=2, ttft_s=0.001, tpot_s=0.001).serving() as engine:

        async def said(tokens: int, *begun: str) -> tuple[str, dict[str, int]]:
            messages = [{"role": "user", "content": "hi"}, *({"role": "assistant", "content": each} for each in begun)]
            answer = await once(engine, ask(tokens, messages=messages, stream_options={"include_usage": True}))
            events = [json.loads(line[6:]) for line in answer.body.decode().splitlines() if line.startswith("data: {")]
            words = [choice["delta"].get("content", "") for each in events for choice in each["choices"]]
            return "".join(words), events[-1]["usage"]

        whole, counted = await said(20)
        begun, _ = await said(7)
        rest, of_rest = await said(13, begun)
        assert begun + rest == whole
        assert of_rest == {"prompt_tokens": counted["prompt_tokens"] + 7, "completion_tokens": 13, "total_tokens": counted["total_tokens"]}
        assert await said(7, "something else") == (begun, {"prompt_tokens": 4, "completion_tokens": 7, "total_tokens": 11})
