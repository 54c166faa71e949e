"""Group C: does a caller who leaves, or a fault anywhere on the way, cost a slot, a backend or anybody else anything?"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter
from typing import Any

import pytest

from tests.reliability.files import one, two
from tests.reliability.process import processed
from tests.reliability.storm import Storm
from tests.reliability.watch import watched
from tests.wire import JS, A, Blackhole, J, RawClient, ScriptedBackend, ev, eventually, post, scripts
from tests.wire.backend import Step

TAIL = scripts.finish() + scripts.usage(5, 2) + scripts.DONE
MANNERS = ["close", "reset", "half_close"]
WAITS: dict[str, tuple[list[Step], bytes, bytes | None, str]] = {
    "first-byte": ([scripts.hang()], JS, None, "first_token"),
    "head": ([scripts.head(), scripts.hang()], JS, None, "first_token"),
    "role": ([scripts.head(), scripts.chunked(scripts.ROLE), scripts.hang()], JS, None, "first_token"),
    "mid-stream": ([scripts.head(), scripts.event("a"), scripts.hang()], JS, b'"a"', "streaming"),
    "last-event": ([scripts.head(), scripts.event("a"), scripts.chunked(TAIL), scripts.hang()], JS, b"[DONE]", "streaming"),
    "unary": ([scripts.hang()], J, None, "unary"),
    "unary-body": ([scripts.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"), scripts.hang()], J, b"", "unary"),
}


async def started(caller: RawClient, backend: ScriptedBackend, body: bytes, until: bytes | None) -> None:
    """A request that is as far as `until`."""
    await caller.send(post(body))
    await backend.seen(1)
    if until is not None:
        await caller.head()
    if until:
        async for event in caller.events():
            if until in event:
                break


@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize("wait", WAITS)
async def test_c01_c02_c14_who_leaves_closes_the_backend_and_frees_the_slot(wait: str, manner: str) -> None:
    steps, body, until, phase = WAITS[wait]
    async with ScriptedBackend(*steps) as first, ScriptedBackend() as second, watched(two(first, second), first, second) as proxy:
        caller = await proxy.connect()
        await started(caller, first, body, until)
        left_at = time.monotonic()
        getattr(caller, manner)()
        await first.all_closed()
        assert time.monotonic() - left_at < 0.5
        (line,) = await proxy.logged(1)
        assert (line["outcome"], line["attempts"]) == ("client_gone", 1)
        assert await proxy.metric("fairlane_disconnects_total", phase=phase) == 1
        assert await proxy.metric("fairlane_backend_state", backend="b") == 0
        assert second.requests == []
        caller.close()
        used = len(first.connections)
        first.named["alive"] = (scripts.ok(),)
        assert (await proxy.ask(x_script="alive")).status == 200
        assert len(first.connections) == used + 1, "a cancelled stream's connection serves nobody else"


@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize("part", [b"POST /v1/chat", A + b"Content-Length: 57\r\n\r\n{"], ids=["head", "body"])
async def test_c01_who_leaves_before_the_request_is_complete_never_was(part: bytes, manner: str) -> None:
    async with ScriptedBackend() as backend, watched(one(backend), backend) as proxy:
        caller = await proxy.connect()
        await caller.send(part)
        await eventually(lambda: len(proxy.fairlane.door.connections) == 1)
        getattr(caller, manner)()
        await eventually(lambda: not proxy.fairlane.door.connections)
        caller.close()
        assert backend.connections == []


@pytest.mark.parametrize("manner", MANNERS)
async def test_c01_who_leaves_the_queue_never_reaches_a_backend(manner: str) -> None:
    gate = asyncio.Event()
    async with ScriptedBackend(scripts.wait(gate), scripts.ok()) as backend, watched(one(backend, cap=1), backend) as proxy:
        first = asyncio.ensure_future(proxy.ask())
        await backend.seen(1)
        caller = await proxy.connect()
        await caller.send(post())
        await eventually(lambda: proxy.state.waiting == 1)
        getattr(caller, manner)()
        await eventually(lambda: proxy.state.waiting == 0)
        gate.set()
        assert (await first).status == 200
        assert len(backend.requests) == 1
        assert await proxy.metric("fairlane_disconnects_total", phase="queued") == 1
        caller.close()


async def test_c01_who_leaves_while_we_connect_frees_the_slot() -> None:
    with Blackhole() as hole:
        text = one(ScriptedBackend()).replace("http://127.0.0.1:0", hole.url)
        async with watched(text) as proxy:
            proxy.alive = False
            caller = await proxy.connect()
            await caller.send(post())
            await eventually(lambda: proxy.state.in_flight == 1)
            caller.close()
            await eventually(lambda: proxy.state.in_flight == 0, 0.5)
            (line,) = await proxy.logged(1)
            assert line["outcome"] == "client_gone"


async def test_c08_a_slot_given_back_by_several_endings_at_once_counts_once() -> None:
    """The deadline, the caller's leaving and the drain in one turn of the loop."""
    async with ScriptedBackend(scripts.head(), scripts.event("a"), scripts.hang()) as backend, watched(one(backend), backend) as proxy:
        for _ in range(10):
            caller = await proxy.connect()
            await caller.send(post(JS))
            await caller.head()
            (story,) = proxy.fairlane.service.stories
            relay = next(iter(w for w in proxy.fairlane._deadlines._watched if type(w).__name__ == "Relay"))
            caller.reset()
            relay.overdue(relay._total_at)
            story.cancel()
            story.cancel()
            await proxy.at_rest()
            state = proxy.state
            assert [each.in_flight for each in state.backends.values()] == [0]
        assert len(await proxy.logged(10)) == 10


async def test_c09_who_leaves_between_attempts_is_not_tried_again() -> None:
    async with ScriptedBackend(scripts.status(500)) as first, ScriptedBackend(scripts.hang()) as second:
        async with watched(two(first, second, cap=1, pool=", queue: {max_wait: 10s, places: 4}"), first, second) as proxy:
            proxy.alive = False
            holds, leaves = await proxy.connect(), await proxy.connect()
            await holds.send(post())
            await second.seen(1)
            await leaves.send(post())
            await first.seen(2)
            await eventually(lambda: proxy.state.waiting == 1)
            assert proxy.state.in_flight == 1, "no slot is held while it waits for the next attempt"
            leaves.close()
            await eventually(lambda: proxy.state.waiting == 0, 0.5)
            assert (len(first.requests), len(second.requests)) == (2, 1)
            holds.close()


async def test_c11_a_backend_that_goes_on_for_nobody_costs_us_nothing() -> None:
    async def go_on(exchange: Any) -> None:
        for n in range(100):
            exchange.write(scripts.chunk(ev(f"t{n}")))
            await asyncio.sleep(0.01)

    async with ScriptedBackend(scripts.ignore_close(), scripts.head(), go_on, named={"alive": (scripts.ok(),)}) as backend:
        async with watched(one(backend), backend) as proxy:
            for _ in range(4):
                caller = await proxy.connect()
                await caller.send(post(JS))
                await caller.head()
                caller.close()
            await eventually(lambda: proxy.state.in_flight == 0, 1.0)
            for connection in backend.connections:
                connection.transport.abort()


async def test_c12_a_wait_that_ends_as_a_slot_comes_free_ends_once() -> None:
    """The slot comes back within a millisecond of the deadline, before and after."""
    async with ScriptedBackend(named={"alive": (scripts.ok(),)}) as backend:
        async with watched(one(backend, cap=1, pool=", queue: {places: 2, max_wait: 100ms}"), backend) as proxy:
            statuses: Counter[int] = Counter()
            for n in range(16):
                backend.then(scripts.delay(0.1 + (n - 8) * 0.001), scripts.ok())
                held = asyncio.ensure_future(proxy.ask())
                await backend.seen(len(backend.requests) + 1)
                answer = await proxy.ask()
                statuses[answer.status] += 1
                assert answer.status == 200 or answer.header("retry-after"), answer
                await held
            await proxy.logged(32)
            assert set(statuses) <= {200, 429}
            assert proxy.outcomes()["queue_timeout"] + proxy.outcomes()["queue_full"] == statuses[429]


async def test_c15_two_hundred_streams_whose_callers_are_killed_end_within_two_seconds() -> None:
    async with ScriptedBackend(scripts.head(), scripts.event("a"), scripts.hang()) as backend:
        async with watched(one(backend, cap=200), backend) as proxy:
            callers = [await proxy.connect() for _ in range(200)]
            for caller in callers:
                await caller.send(post(JS))
            await backend.until(lambda: backend.active == 200)
            await asyncio.gather(*(caller.head() for caller in callers))
            for caller in callers:
                caller.close()
            await backend.all_closed(2.0)
            await eventually(lambda: proxy.state.in_flight == 0, 2.0)
            await proxy.logged(200)
            assert proxy.outcomes() == {"client_gone": 200}


@pytest.mark.parametrize("times", [100, pytest.param(1_000, marks=pytest.mark.soak)])
async def test_c16_leaving_as_the_last_event_comes_is_one_ending_and_one_usage(times: int) -> None:
    async with ScriptedBackend() as backend, watched(one(backend), backend) as proxy:
        for n in range(times):
            async with await proxy.connect() as caller:
                await caller.send(post(JS))
                await caller.head()
                async for event in caller.events():
                    if (b"[DONE]" if n % 2 else b'"usage"') in event:
                        break
        await proxy.at_rest()
        lines = await proxy.logged(times)
        assert set(proxy.outcomes()) <= {"ok", "client_gone"} and sum(proxy.outcomes().values()) == times
        assert {(line["tokens_source"], line["tokens_in"], line["tokens_out"]) for line in lines} == {("usage", 5, 3)}
        assert await proxy.metric("fairlane_tokens_total", direction="output") == 3 * times


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages"])
async def test_c17_plain_success_gives_back_its_slot_on_every_route(path: str) -> None:
    async with ScriptedBackend() as backend, watched(one(backend), backend) as proxy, await proxy.connect() as caller:
        for n in range(50):
            body = JS if n % 2 and path in ("/v1/chat/completions", "/v1/messages") else J
            assert (await caller.ask(post(body, path=path))).status == 200
            await eventually(lambda: proxy.state.in_flight == 0)


NOTHING_LEFT = "queue_waiting|queue_oldest_seconds|queue_bytes|backend_streams|retries_in_flight"
GAUGES_AT_REST = re.compile(rf"^(fairlane_(?:{NOTHING_LEFT})\b.*) (\S+)$", re.MULTILINE)


@pytest.mark.parametrize("requests", [400, pytest.param(2_000, marks=pytest.mark.soak)])
async def test_c03_a_storm_of_mixed_endings_leaves_nothing_behind(requests: int) -> None:
    async with ScriptedBackend(named=Storm.SCRIPTS) as backend:
        text = one(backend, cap=8, pool=", queue: {places: 400, max_wait: 20s}, timeouts: {idle: 300ms, first_token: 2s}")
        async with watched(text, backend) as proxy:
            storm = Storm(proxy.port, random.Random(7))
            await storm.run(requests, at_once=60)
            await proxy.at_rest()
            proxy.alive = False
            assert storm.problems == []
            _, text = await proxy.admin("/metrics")
            gauges = dict(GAUGES_AT_REST.findall(text))
            assert len(gauges) >= 7 and set(map(float, gauges.values())) == {0.0}, gauges
            await usable(proxy, backend, 8)


async def usable(proxy: Any, backend: ScriptedBackend, cap: int) -> None:
    """Exactly `cap` at once are possible."""
    gate = asyncio.Event()
    backend.named["hold"] = (scripts.wait(gate), scripts.ok())
    held = [asyncio.ensure_future(proxy.ask(x_script="hold")) for _ in range(cap + 2)]
    await eventually(lambda: proxy.state.in_flight == cap, 20.0)
    await eventually(lambda: proxy.state.waiting == 2)
    gate.set()
    assert {(await each).status for each in held} == {200}


async def test_c03_c15_in_a_process_of_its_own_the_storm_leaves_its_stderr_clean() -> None:
    async with ScriptedBackend(named=Storm.SCRIPTS) as backend:
        text = one(backend, cap=8, pool=", queue: {places: 400, max_wait: 20s}, timeouts: {idle: 300ms, first_token: 2s}")
        async with processed(text) as proxy:
            storm = Storm(proxy.port, random.Random(11))
            await storm.run(300, at_once=60)

            async def at_rest() -> bool:
                return 'fairlane_backend_streams{backend="b",platform="p"} 0' in await proxy.metrics()

            await eventually(at_rest)
            assert storm.problems == []
