"""Does each fault look from outside as its name says? All asked for over HTTP, as an operator would."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from lab.engine.engine import Engine
from tests.wire import RawClient, Response, WireError, eventually, in_one_of, post
from tests.wire.scripts import DONE

CHAT = b'{"model":"m","max_tokens":6,"messages":[{"role":"user","content":"hi"}]}'
STREAM = CHAT[:-1] + b',"stream":true}'


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine(slots=2, ttft_s=0.0, tpot_s=0.002).serving() as engine:
        yield engine


async def set_fault(engine: Engine, fault: str, **fields: object) -> None:
    async with await RawClient.connect(engine.port) as client:
        answer = await client.ask(post(json.dumps({"fault": fault, **fields}).encode(), path="/_fault"))
        assert answer.status == 200, answer.body


async def once(engine: Engine, body: bytes = STREAM, path: str = "/v1/chat/completions") -> Response:
    async with await RawClient.connect(engine.port) as client:
        return await client.ask(post(body, path=path))


def tokens(response: Response) -> int:
    return response.body.count(b'"content":" ')


async def test_status(engine: Engine) -> None:
    await set_fault(engine, "status", code=429, retry_after=2)
    for body in (CHAT, STREAM):
        response = await once(engine, body)
        assert (response.status, response.header("retry-after")) == (429, "2")
        assert json.loads(response.body)["error"]["message"]
    anthropic = await once(engine, path="/v1/messages")
    assert json.loads(anthropic.body)["error"]["type"] == "rate_limit_error"
    await set_fault(engine, "none")
    assert (await once(engine)).status == 200


async def test_refuse_closes_the_port_for_a_time(engine: Engine) -> None:
    async with await RawClient.connect(engine.port) as idle, await RawClient.connect(engine.port) as streaming:
        await streaming.send(post(STREAM.replace(b":6", b":60")))
        await streaming.head()
        await set_fault(engine, "refuse", seconds=0.4)
        assert await idle.until_closed() == "fin"
        with pytest.raises(ConnectionRefusedError):
            await RawClient.connect(engine.port)
        body, whole = await streaming.body()  # what was under way goes on
        assert whole and body.endswith(DONE)
        await streaming.send(post(STREAM))
        assert await streaming.until_closed() == "reset"

    async def accepts() -> bool:
        try:
            return (await once(engine)).whole
        except ConnectionRefusedError:
            return False

    await eventually(accepts)


async def test_refuse_ends_when_told_on_a_connection_that_is_open(engine: Engine) -> None:
    async with await RawClient.connect(engine.port) as client:
        await client.ask(post(b'{"fault":"refuse"}', path="/_fault"))
        with pytest.raises(ConnectionRefusedError):
            await once(engine)
        await client.ask(post(b'{"fault":"none"}', path="/_fault"))
        assert (await once(engine)).whole


async def test_hang_reads_and_never_answers(engine: Engine) -> None:
    await set_fault(engine, "hang")
    async with await RawClient.connect(engine.port, timeout_s=0.3) as client:
        await client.send(post(STREAM))
        with pytest.raises(TimeoutError):
            await client.head()
        assert engine.log.at_once == 1
    await set_fault(engine, "none")
    assert (await once(engine)).whole
    assert (engine.log.aborted, engine.log.at_once) == (1, 0)


@pytest.mark.parametrize("body", [CHAT, STREAM])
async def test_reset_comes_before_the_head(engine: Engine, body: bytes) -> None:
    await set_fault(engine, "reset")
    async with await RawClient.connect(engine.port) as client:
        await client.send(post(body))
        assert await client.until_closed() == "reset" and not client.received


@pytest.mark.parametrize("after", [0, 1, 4, 100])
@pytest.mark.parametrize(("by", "whole", "ended"), [("reset", False, "reset"), ("early_end", False, "fin"), ("clean_end", True, None)])
async def test_cut_comes_after_so_many_tokens(engine: Engine, after: int, by: str, whole: bool, ended: str | None) -> None:
    await set_fault(engine, "cut", after=after, by=by)
    async with await RawClient.connect(engine.port) as client:
        response = await client.ask(post(STREAM))
        assert (response.status, response.whole, client.ended) == (200, whole, ended)
        assert tokens(response) == min(after, 6)
        assert b'"finish_reason":"stop"' not in response.body and b"[DONE]" not in response.body
    assert engine.log.at_once == 0 and engine.log.aborted == 0 and engine.log.finished == 0


async def test_an_answer_that_is_not_streamed_is_cut_in_mid_body(engine: Engine) -> None:
    for by in ("reset", "early_end"):
        await set_fault(engine, "cut", by=by)
        response = await once(engine, CHAT)
        assert (response.status, response.whole) == (200, False) and response.body
    await set_fault(engine, "cut", by="clean_end")
    response = await once(engine, CHAT)
    assert response.whole and json.loads(response.body)["choices"][0]["finish_reason"] is None


@pytest.mark.parametrize("body", [CHAT, STREAM])
async def test_stall_keeps_connection_and_slot(engine: Engine, body: bytes) -> None:
    await set_fault(engine, "stall", after=3, times=1)
    async with await RawClient.connect(engine.port, timeout_s=0.3) as client:
        await client.send(post(body))
        await client.head()
        with pytest.raises(TimeoutError):
            await client.body()
        if body is STREAM:
            assert client.received.count(b'"content":" ') == 3
        assert (await once(engine, body)).whole  # another slot serves on
        assert engine.log.at_once == 1
    await eventually(lambda: engine.log.at_once == 0)
    assert engine.log.aborted == 1


async def test_error_in_stream(engine: Engine) -> None:
    await set_fault(engine, "error_in_stream", after=0)
    at_once = await once(engine)
    assert at_once.status == 200 and at_once.whole and tokens(at_once) == 0
    await set_fault(engine, "error_in_stream", after=3)
    response = await once(engine)
    assert tokens(response) == 3 and b"[DONE]" not in response.body
    last = response.body.split(b"\n\n")[-2]
    assert json.loads(last.removeprefix(b"data: "))["error"]["message"]
    anthropic = await once(engine, path="/v1/messages")
    name, _, data = anthropic.body.split(b"\n\n")[-2].partition(b"\n")
    assert name == b"event: error" and json.loads(data.removeprefix(b"data: "))["type"] == "error"
    assert (await once(engine, CHAT)).status == 500


async def test_slow_takes_so_many_times_as_long(engine: Engine) -> None:
    async def took_s() -> float:
        began_at = asyncio.get_running_loop().time()
        assert (await once(engine, STREAM.replace(b":6", b":20"))).whole
        return asyncio.get_running_loop().time() - began_at

    async def share() -> float:
        usual_s = await took_s()
        await set_fault(engine, "slow", factor=8)
        slow_s = await took_s()
        await set_fault(engine, "none")
        return slow_s / usual_s

    def verdict(share: float) -> None:
        assert 3 < share < 16

    await in_one_of(3, share, verdict)


async def test_garbage_is_not_http(engine: Engine) -> None:
    await set_fault(engine, "garbage")
    async with await RawClient.connect(engine.port) as client:
        await client.send(post(STREAM))
        with pytest.raises(WireError):
            await client.head()
        assert await client.until_closed() == "fin"


async def test_times_hits_the_next_ones_only(engine: Engine) -> None:
    await set_fault(engine, "status", times=2)
    assert [(await once(engine)).status for _ in range(4)] == [503, 503, 200, 200]
    await set_fault(engine, "refuse", times=1)
    async with await RawClient.connect(engine.port) as client:
        await client.send(post(STREAM))
        assert await client.until_closed() == "reset"
    assert (await once(engine)).status == 200


async def test_share_hits_a_part_drawn_by_the_seed() -> None:
    async def hits(seed: int) -> list[int]:
        async with Engine(seed=seed, ttft_s=0.0, tpot_s=0.0).serving() as engine:
            await set_fault(engine, "status", share=0.2)
            async with await RawClient.connect(engine.port) as client:
                return [(await client.ask(post(CHAT))).status for _ in range(200)]

    first = await hits(1)
    assert first == await hits(1) and first != await hits(2)
    assert 20 < first.count(503) < 65 and first.count(200) + first.count(503) == 200


async def test_health_fails_only_where_asked(engine: Engine) -> None:
    get_health = b"GET /health HTTP/1.1\r\nHost: t\r\n\r\n"
    async with await RawClient.connect(engine.port) as client:
        await set_fault(engine, "status")
        assert (await client.ask(get_health)).status == 200
        await set_fault(engine, "status", on="health", code=500)
        assert (await client.ask(get_health)).status == 500 and (await client.ask(post(CHAT))).status == 200
        await set_fault(engine, "hang", on="health")
        async with await RawClient.connect(engine.port, timeout_s=0.2) as probe:
            with pytest.raises(TimeoutError):
                await probe.ask(get_health)
            assert engine.log.held == 0 and (await client.ask(post(CHAT))).status == 200


async def test_a_fault_can_end_by_itself(engine: Engine) -> None:
    await set_fault(engine, "status", seconds=0.2)
    assert (await once(engine)).status == 503

    async def works() -> bool:
        return (await once(engine)).status == 200

    await eventually(works)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"fault":"explode"}', b'{"fault":"cut","by":"magic"}', b'{"fault":"cut","share":2}', b'{"fault":"hang","x":1}']
)
async def test_a_fault_that_is_none_of_these_is_refused_and_changes_nothing(engine: Engine, body: bytes) -> None:
    await set_fault(engine, "status")
    assert (await once(engine, body, "/_fault")).status == 400
    assert (await once(engine)).status == 503
