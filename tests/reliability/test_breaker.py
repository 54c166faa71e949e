"""Group F, health: who is left alone, for how long, and how does it come back? Real backends that fail, on a shorter clock."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from policies.failover import FailedBack, FailedOver, Ramping
from tests.proxy.serving import Serving, serving
from tests.reliability.shapes import alone, backed, hurry
from tests.wire import JS, Exchange, ScriptedBackend, post, scripts
from tests.wire.backend import Step

CONTENT = b"".join(scripts.chat_events(3))


def health(proxy: Serving, backend: str = "p-1") -> str:
    """The state of a backend, in a word."""
    return str(proxy.state.backends[backend].state.name)


def by_path(health: Sequence[Step], generation: Sequence[Step]) -> Step:
    """GET is answered by the first steps, everything else by the second."""

    async def step(exchange: Exchange) -> None:
        for each in health if exchange.request.method == "GET" else generation:
            await each(exchange)

    return step


def generations(backend: ScriptedBackend) -> int:
    """How many requests came that are no probes?"""
    return sum(request.method == "POST" for request in backend.requests)


def watched(proxy: Serving, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the dispatcher says of platforms, from now on."""
    told: list[Any] = []
    note = proxy.fairlane.telemetry.events

    def also(events: Sequence[Any]) -> None:
        told.extend(event for event in events if isinstance(event, FailedOver | Ramping | FailedBack))
        note(events)

    monkeypatch.setattr(proxy.fairlane.telemetry, "events", also)
    return told


async def until_probing(proxy: Serving) -> None:
    await proxy.until(lambda: health(proxy) == "PROBING")


@pytest.mark.parametrize("callers", [200])
@pytest.mark.parametrize("backends", [1, 4])
async def test_f07_when_all_backends_fail_retries_stay_within_a_fifth(callers: int, backends: int) -> None:
    failing = [ScriptedBackend(scripts.delay(0.02), scripts.status(503)) for _ in range(backends)]
    for each in failing:
        await each.accept()
    text = alone(
        *(each.url for each in failing),
        cap=-(-callers // backends),
        more="probe: none, startup: 1ms,",
        pool=", queue: {max_wait: 500ms}, timeouts: {connect: 30s}",
    )
    try:
        async with serving(text) as proxy:
            answers = await asyncio.gather(*(proxy.ask(JS) for _ in range(callers)))
            assert {answer.status for answer in answers} <= {503}
            attempts = sum(len(each.requests) for each in failing)
            assert callers <= attempts <= 1.2 * callers + 3
            assert await proxy.metric("fairlane_retries_total", result="denied") > 0
            assert await proxy.metric("fairlane_retries_in_flight") == 0
    finally:
        for each in failing:
            await each.__aexit__(None, None, None)


async def test_f08_it_opens_after_five_is_probed_by_one_at_a_time_and_waits_longer_after_each_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hurry(monkeypatch, pause_s=0.3)
    gate = asyncio.Event()
    async with ScriptedBackend(scripts.status(500)) as primary, ScriptedBackend() as standby:
        async with serving(backed(primary.url, standby.url, cap=64)) as proxy:
            for _ in range(8):
                assert (await proxy.ask(JS)).status == 200
            assert len(primary.requests) == 5
            pauses = [proxy.state.backends["p-1"].until_at - proxy.state.at]
            for round_ in range(2):
                await until_probing(proxy)
                gate.clear()
                primary.then(scripts.wait(gate), scripts.status(500))
                asked = [asyncio.ensure_future(proxy.ask(JS)) for _ in range(50)]
                await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
                await proxy.until(lambda: proxy.state.in_flight == 1)
                assert len(primary.requests) == 6 + round_, "one probe, whoever else comes"
                gate.set()
                assert {answer.status for answer in await asyncio.gather(*asked)} == {200}
                assert health(proxy) == "EJECTED"
                pauses.append(proxy.state.backends["p-1"].until_at - proxy.state.at)
            assert pauses[0] < pauses[1] < pauses[2], pauses
            await until_probing(proxy)
            primary.script = [scripts.ok()]
            for _ in range(3):
                assert (await proxy.ask(JS)).status == 200
            assert health(proxy) == "HEALTHY", "never left alone for ever"


async def test_f08_a_probe_that_is_cancelled_changes_nothing_and_the_next_one_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch, pause_s=0.2)
    async with ScriptedBackend(scripts.status(500)) as primary, ScriptedBackend() as standby:
        async with serving(backed(primary.url, standby.url)) as proxy:
            for _ in range(5):
                await proxy.ask(JS)
            await until_probing(proxy)
            for number in range(4):
                primary.then(scripts.hang())
                caller = await proxy.connect()
                await caller.send(post(JS))
                await primary.seen(6 + number)
                caller.close()
                await proxy.at_rest()
                assert health(proxy) == "PROBING"


async def test_f08_a_probe_may_need_longer_than_its_caller_can_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch, pause_s=0.2, probe_s=5.0)
    gate = asyncio.Event()
    async with ScriptedBackend(scripts.status(500)) as primary, ScriptedBackend() as standby:
        text = backed(primary.url, standby.url, pool=", timeouts: {first_token: 300ms}", more="probe: none, startup: 1ms,")
        async with serving(text) as proxy:
            for _ in range(5):
                await proxy.ask(JS)
            for number in range(3):
                await until_probing(proxy)
                gate.clear()
                primary.then(scripts.wait(gate), scripts.ok())
                answer = await proxy.ask(JS)
                assert (answer.body, answer.header("x-fairlane-attempts")) == (CONTENT, "2"), "the caller had its answer in time"
                assert (await proxy.ask(JS)).header("x-fairlane-attempts") == "1"
                assert (len(primary.requests), proxy.state.backends["p-1"].in_flight) == (6 + number, 1), "the probe is still out"
                gate.set()
                await proxy.until(lambda: proxy.state.backends["p-1"].in_flight == 0)
            assert health(proxy) == "HEALTHY"


async def test_f08_a_probe_that_never_speaks_ends_at_its_own_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch, pause_s=0.2, probe_s=0.6)
    async with ScriptedBackend(scripts.hang()) as primary, ScriptedBackend() as standby:
        text = backed(primary.url, standby.url, pool=", timeouts: {first_token: 200ms}", more="probe: none, startup: 1ms,")
        async with serving(text) as proxy:
            await asyncio.gather(*(proxy.ask(JS) for _ in range(5)))
            await until_probing(proxy)
            assert (await proxy.ask(JS)).status == 200
            assert (health(proxy), proxy.state.backends["p-1"].in_flight) == ("PROBING", 1)
            await proxy.until(lambda: health(proxy) == "EJECTED")
            assert proxy.state.backends["p-1"].why == "probe: no first token"
            await primary.all_closed()
            assert proxy.state.in_flight == 0


async def test_f09_callers_who_leave_and_busy_answers_open_no_breaker() -> None:
    async with ScriptedBackend(scripts.hang()) as primary, ScriptedBackend() as standby:
        async with serving(backed(primary.url, standby.url, cap=128)) as proxy:
            callers = [await proxy.connect() for _ in range(100)]
            for caller in callers:
                await caller.send(post(JS))
            await primary.seen(100)
            for caller in callers:
                caller.reset()
            await proxy.at_rest()
            assert health(proxy) == "HEALTHY"
            primary.script = [scripts.status(429, {"Retry-After": "0"})]
            for _ in range(100):
                assert (await proxy.ask(JS)).status == 200
            assert health(proxy) == "HEALTHY"
            primary.script = [scripts.ok()]
            await proxy.until(lambda: proxy.state.backends["p-1"].why == "")
            seen = len(primary.requests)
            assert (await proxy.ask(JS, key="sk-B")).status == 200
            assert len(primary.requests) == seen + 1


async def test_f11_a_backend_that_looks_alive_and_generates_nothing_is_learnt_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.prober.EVERY_S", 0.05)
    hangs = by_path([scripts.status(200)], [scripts.hang()])
    async with ScriptedBackend(hangs) as primary, ScriptedBackend() as standby:
        async with serving(backed(primary.url, standby.url, more="", pool=", timeouts: {first_token: 200ms}")) as proxy:
            await asyncio.gather(*(proxy.ask(JS) for _ in range(5)))
            state = proxy.state.backends["p-1"]
            assert (state.state.name, state.why) == ("EJECTED", "5 failures in a row: no first token")
            assert generations(primary) == 5


async def test_f11_a_backend_whose_probe_hangs_is_down_by_policy_and_the_checker_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.prober.EVERY_S", 0.02)
    monkeypatch.setattr("proxy.prober.TIMEOUT_S", 0.1)
    hangs = by_path([scripts.hang()], [scripts.head(), scripts.event("a"), scripts.hang()])
    async with ScriptedBackend(hangs) as primary, ScriptedBackend() as standby:
        async with serving(backed(primary.url, standby.url, cap=1, more="startup: 1ms,")) as proxy, await proxy.connect() as caller:
            await caller.send(post(JS))
            assert (await caller.head()).status == 200, "its only slot is taken: probes are outside the cap"
            await proxy.until(lambda: health(proxy) == "EJECTED")
            assert proxy.state.backends["p-1"].why == "active probe"
            assert (await proxy.ask(JS)).body == CONTENT
            primary.script = [by_path([scripts.status(404)], [scripts.ok()])]
            await until_probing(proxy)


async def test_a_primary_that_turns_slow_without_an_error_is_left_for_the_standby(monkeypatch: pytest.MonkeyPatch) -> None:
    """SLO 100 ms; first tokens after 800 ms."""
    async with ScriptedBackend() as primary, ScriptedBackend() as standby:
        async with serving(backed(primary.url, standby.url, cap=40, pool=", slo: {ttft: 100ms}")) as proxy:
            told = watched(proxy, monkeypatch)
            await asyncio.gather(*(proxy.ask(JS) for _ in range(10)))
            primary.script = [scripts.delay(0.8), scripts.ok()]
            await asyncio.gather(*(proxy.ask(JS) for _ in range(30)))
            seen = len(primary.requests)
            for _ in range(10):
                assert (await proxy.ask(JS)).body == CONTENT
            assert len(primary.requests) == seen
            assert [(event.from_, event.to, event.reason) for event in told] == [("p", "s", "slow")]
            assert await proxy.metric("fairlane_failovers_total", reason="slow") == 1
            assert health(proxy) == "HEALTHY"


class Outage:
    """Callers without a pause, and a primary that is there or is not."""

    def __init__(self, proxy: Serving, primary: ScriptedBackend) -> None:
        self.proxy, self.primary = proxy, primary
        self.statuses: list[int] = []
        self.up = True

    async def call(self, seconds: float, every_s: float = 0.01) -> None:
        """One caller after another, for so long."""
        until_at = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < until_at:
            self.statuses.append((await self.proxy.ask(JS)).status)
            await asyncio.sleep(every_s)

    async def down(self) -> None:
        await self.primary.refuse()
        for connection in self.primary.connections:
            connection.transport.abort()

    async def back(self) -> None:
        await self.primary.accept()


FAILBACK = ", failback: {hold: 600ms, ramp: 300ms}"


async def test_f08_an_outage_that_heals_is_one_failover_and_one_failback_after_hold_and_ramp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything 1:50 or faster: pauses 0.3 s for 15 s, hold 0.6 s for 300 s, ramp 0.3 s for 120 s."""
    hurry(monkeypatch, pause_s=0.3, pause_max_s=1.0, slow_start_s=0.3)
    monkeypatch.setattr("proxy.prober.EVERY_S", 0.1)
    async with ScriptedBackend() as primary, ScriptedBackend() as standby:
        async with serving(backed(primary.url, standby.url, more="startup: 1ms,", pool=FAILBACK)) as proxy:
            told, outage = watched(proxy, monkeypatch), Outage(proxy, primary)
            await outage.call(0.5)
            await outage.down()
            await outage.call(0.8)
            await outage.back()
            healed_at = proxy.state.at
            async with asyncio.timeout(10):
                while not any(isinstance(event, FailedBack) for event in told):
                    await outage.call(0.1)
            assert proxy.state.at - healed_at >= 0.9, "hold and ramp"
            await outage.call(0.3)
            assert [type(event) for event in told] == [FailedOver, Ramping, FailedBack]
            assert set(outage.statuses) == {200}, "no caller noticed"


async def test_f08_a_primary_in_its_hold_serves_at_once_when_the_standby_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch, pause_s=0.2, pause_max_s=0.3, slow_start_s=0.1)
    monkeypatch.setattr("proxy.prober.EVERY_S", 0.05)
    async with ScriptedBackend() as primary, ScriptedBackend() as standby:
        text = backed(primary.url, standby.url, more="startup: 1ms,", behind="startup: 1ms,", pool=", failback: {hold: 1h}")
        async with serving(text) as proxy:
            told, outage = watched(proxy, monkeypatch), Outage(proxy, primary)
            await outage.call(0.2)
            await outage.down()
            await outage.call(0.3)
            await outage.back()
            async with asyncio.timeout(5):
                while health(proxy) != "HEALTHY":
                    await outage.call(0.1)
            assert proxy.state.pools["main"].in_service == ("s",)
            await Outage(proxy, standby).down()
            await outage.call(0.4)
            assert proxy.state.pools["main"].in_service == ("p",)
            assert [(event.from_, event.to) for event in told] == [("p", "s"), ("s", "p")]
            assert set(outage.statuses) == {200}


@pytest.mark.soak
async def test_f08_a_primary_that_flaps_never_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch, pause_s=0.1, pause_max_s=0.2, slow_start_s=0.1)
    monkeypatch.setattr("proxy.prober.EVERY_S", 0.05)
    async with ScriptedBackend() as primary, ScriptedBackend() as standby:
        async with serving(
            backed(primary.url, standby.url, more="startup: 1ms,", pool=", failback: {hold: 3s, ramp: 300ms}")
        ) as proxy:  # up for far less
            told, outage = watched(proxy, monkeypatch), Outage(proxy, primary)
            await outage.call(0.2)
            for _ in range(8):
                await outage.down()
                await outage.call(0.5)
                await outage.back()
                await outage.call(0.5)
            assert [type(event) for event in told] == [FailedOver]
            assert set(outage.statuses) == {200}
