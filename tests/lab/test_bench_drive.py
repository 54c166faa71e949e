"""Does the client see what its target does? Against the fake engine and its faults, in the same process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from lab.bench.call import Call
from lab.bench.demand import Arrivals, Asked, Demand, Lengths, Load
from lab.bench.drive import Driver
from lab.bench.find_max import find_max
from lab.bench.forms import CHAT
from lab.bench.meeting import floor_of, meet
from lab.bench.prompts import Calibration, Prompts
from lab.bench.target import Refused, Target, Unreachable
from lab.engine.engine import Engine
from lab.engine.faults import Fault
from tests.wire import in_one_of


def quick() -> Engine:
    return Engine(ttft_s=0.002, tpot_s=0.001, prefill_rate=1e6)


@asynccontextmanager
async def driving(engine: Engine, timeout_s: float = 20.0) -> AsyncIterator[Driver]:
    prompts = Prompts(0)
    async with engine.serving():
        target = Target("", engine.url)
        driver = Driver(target, prompts, await meet(target, prompts), timeout_s)
        try:
            yield driver
        finally:
            target.close()


def demand(output_tokens: int = 8, prompt_tokens: int = 128) -> Demand:
    return Demand(Lengths(((prompt_tokens, 1.0),)), Lengths(((output_tokens, 1.0),)), Arrivals(0.0))


async def one(driver: Driver, output_tokens: int = 8, stream: bool = True) -> Call:
    def asked() -> Iterator[Asked]:
        yield Asked(0.0, None, 128, output_tokens, stream)

    return (await driver.open_loop(asked(), 0.0)).calls[0]


async def test_an_answer_is_timed_and_counted() -> None:
    async def asked() -> Call:
        async with driving(Engine(ttft_s=0.1, tpot_s=0.02, load_factor=1)) as driver:
            call = await one(driver, 11)
            assert call.ok and call.counted_by_usage
            assert abs(call.prompt_tokens - 128) <= 2 and call.output_tokens == 11
            assert call.ttft_s is not None and call.tpot_s is not None
            assert call.e2e_s >= call.ttft_s + 10 * call.tpot_s
            return call

    def verdict(call: Call) -> None:
        assert call.ttft_s == pytest.approx(0.1 + 128 / 4000, rel=0.5)
        assert call.tpot_s == pytest.approx(0.02, rel=0.5)
        assert call.ttft_s is not None and 0.0 < call.late_s < call.ttft_s

    await in_one_of(3, asked, verdict)


async def test_prompts_have_the_length_asked_for() -> None:
    async with driving(quick()) as driver:
        step = await driver.streams(demand(prompt_tokens=2048).asked(Load(concurrency=4), 0.2, 0), 4, 0.2)
        assert {call.prompt_tokens for call in step.calls} <= set(range(2046, 2051))


async def test_an_answer_that_is_not_streamed_has_no_first_token() -> None:
    async with driving(quick()) as driver:
        call = await one(driver, 9, stream=False)
        assert call.ok and call.ttft_s is None and call.output_tokens == 9


async def test_an_open_loop_asks_at_its_times_however_late_answers_are() -> None:
    async with driving(Engine(slots=1, ttft_s=0.1, tpot_s=0.0)) as driver:
        step = await driver.open_loop(demand(1).asked(Load(rate_rps=50.0), 0.4, 0), 0.4)
        assert len(step.calls) == 19
        starts = [call.started_at - step.began_at for call in step.calls]
        assert starts[-1] < 0.4 + 0.8  # while the answers take 19 x 0.13 s
        # The last one waited for all before it, and its wait is in its TTFT.
        last = max(call.ttft_s or 0.0 for call in step.calls)
        assert last > 1.5


async def test_streams_at_once_are_never_more_than_asked() -> None:
    engine = Engine(slots=8, ttft_s=0.01, tpot_s=0.002, load_factor=1)
    async with driving(engine) as driver:
        step = await driver.streams(demand(10).asked(Load(concurrency=3), 0.6, 0), 3, 0.6)
        assert engine.log.at_most_held == 3
        assert all(call.ok for call in step.calls) and len(step.calls) > 6
        assert max(call.started_at for call in step.calls) <= step.until_at


@pytest.mark.parametrize(
    ("fault", "outcome", "refused"),
    [
        (Fault(fault="status", code=429, retry_after=1), "rate_limited", True),
        (Fault(fault="status", code=500), "http_500", False),
        (Fault(fault="reset"), "reset", False),
        (Fault(fault="hang"), "timeout", False),
        (Fault(fault="garbage"), "protocol", False),
        (Fault(fault="cut", after=3, by="reset"), "truncated", False),
        (Fault(fault="cut", after=3, by="early_end"), "truncated", False),
        (Fault(fault="cut", after=3, by="clean_end"), "truncated", False),
        (Fault(fault="stall", after=3), "timeout", False),
        (Fault(fault="error_in_stream", after=3), "error_event", False),
    ],
    ids=lambda value: f"{value.fault}-{value.by}" if isinstance(value, Fault) else None,
)
async def test_each_failure_has_its_name(fault: Fault, outcome: str, refused: bool) -> None:
    engine = quick()
    async with driving(engine, timeout_s=0.5) as driver:
        engine.fault(fault)
        failed = [await one(driver), await one(driver)]  # on a kept connection as on a fresh one
        assert [(call.outcome, call.refused) for call in failed] == [(outcome, refused)] * 2
        if fault.in_mid_answer:
            assert all(call.output_tokens == 3 for call in failed)  # paid for all the same
        engine.fault(Fault(fault="none"))
        assert (await one(driver)).ok


async def test_a_connection_closed_while_idle_is_replaced() -> None:
    """The server takes the second request and closes: what an engine's keep-alive does in the worst moment."""
    answers, closed = 0, asyncio.Semaphore(0)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal answers
        for number in range(2):
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break
            length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
            await reader.readexactly(length)
            if number == 0:
                answers += 1
                event = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\n'
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n%b" % (len(event), event))
        writer.close()
        closed.release()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        target = Target("", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", model="m")
        calls = [await one(Driver(target, Prompts(0), Calibration())) for _ in range(3)]
        assert [call.outcome for call in calls] == ["ok"] * 3
        assert answers == 3 and not calls[0].counted_by_usage
        target.close()
        for _ in range(3):
            await asyncio.wait_for(closed.acquire(), 5)


async def test_a_wrong_place_and_a_wrong_key_are_told_apart() -> None:
    async with quick().serving() as engine:
        nowhere = Target("", engine.url, model="m")
        engine.fault(Fault(fault="status", code=401))
        with pytest.raises(Refused, match="is the key right"):
            await meet(nowhere, Prompts(0))
    with pytest.raises(Unreachable, match="is it running"):
        await meet(Target("", engine.url), Prompts(0))


async def test_a_field_that_an_api_does_not_know_is_left_out() -> None:
    async with quick().serving() as engine:
        target = Target("", engine.url)
        engine.fault(Fault(fault="status", code=400, times=1))
        await meet(target, Prompts(0))
        assert not target.ignore_eos
        assert b"ignore_eos" not in target.request(CHAT, "hi", 5)
        target.close()


async def test_the_floor_is_that_of_bare_connections() -> None:
    async with Engine(ttft_s=5.0).serving() as engine:
        began_at = time.monotonic()
        floors = await floor_of(Target("", engine.url), 10)
        assert len(floors) == 10 and time.monotonic() - began_at < 4.0  # no generation in it
        assert all(floor.connect_s > 0 and floor.first_byte_s > 0 and floor.tls_s == 0.0 for floor in floors)


@pytest.mark.parametrize("carries", [0, 1, 2, 11, 16, 40, 63])
async def test_find_max_finds_the_last_load_that_keeps_the_slo(carries: int) -> None:
    tried = []

    async def trial(load: Load) -> dict[str, object]:
        tried.append(load)
        kept = load.concurrency <= carries if load.concurrency is not None else (load.rate_rps or 0) <= carries * 0.17
        return {"slo_kept": kept, "throughput_rps": (load.concurrency or 0) * 0.2, "e2e_s": {"mean": 5.0}}

    found = await find_max(trial)
    if carries == 0:
        assert found["max_streams"] is None
        return
    assert found["concurrency"] == found["max_streams"] == carries
    assert found["rate_rps"] == pytest.approx(carries * 0.17, rel=0.08)
    assert found["rate_rps"] <= carries * 0.17
    assert len(tried) == len(set(tried)) < 25
