"""An outage on the real clock, with nothing of the defaults changed: how often does a pool change its platform, and when?

Minutes each, for `make soak`; all run at the same time: `pytest -m soak tests/reliability/test_outage.py -s` takes twelve minutes and tells
what it saw. The same on a shorter clock is in test_breaker.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from typing import Any

import pytest

from tests.reliability.process import Processed, processed
from tests.reliability.shapes import backed
from tests.wire import JS, ScriptedBackend, WireError, post, scripts

HOLD_S, RAMP_S = 300.0, 120.0  # the defaults
OUTAGE_S = 60.0
EVERY_S = 0.1

pytestmark = pytest.mark.soak


class Watched:
    """Callers at ten a second, and what the metrics say of the pool."""

    def __init__(self, name: str, proxy: Processed) -> None:
        self.name, self.proxy = name, proxy
        self.began_at = time.monotonic()
        self.statuses: Counter[Any] = Counter()
        self.moves: list[tuple[float, str]] = []  # when, and from which platform to which, and why
        self._asking = asyncio.ensure_future(self._ask())
        self._looking = asyncio.ensure_future(self._look())

    async def _ask(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._one())
                await asyncio.sleep(EVERY_S)

    async def _one(self) -> None:
        try:
            async with await self.proxy.connect(timeout_s=60.0) as caller:
                self.statuses[(await caller.ask(post(JS))).status] += 1
        except (OSError, EOFError, TimeoutError, WireError) as problem:
            self.statuses[repr(problem)] += 1

    async def _look(self) -> None:
        before: Counter[str] = Counter()
        while True:
            after: Counter[str] = Counter()
            for labels, value in re.findall(r"^fairlane_failovers_total\{([^}]*)\} (\S+)$", await self.proxy.metrics(), re.MULTILINE):
                named = dict(re.findall(r'(\w+)="([^"]*)"', labels))
                after[f"{named['from']} to {named['to']}: {named['reason']}"] = int(float(value))
            for move, count in (after - before).items():
                self.moves += [(time.monotonic() - self.began_at, move)] * count
                print(f"{self.name}: after {self.moves[-1][0]:.1f} s {move}", flush=True)
            before = after
            await asyncio.sleep(0.5)

    async def end(self) -> None:
        for task in (self._asking, self._looking):
            task.cancel()
        await asyncio.gather(self._asking, self._looking, return_exceptions=True)
        print(f"{self.name}: {dict(self.statuses)}", flush=True)


async def down(primary: ScriptedBackend) -> None:
    await primary.refuse()
    for connection in primary.connections:
        connection.transport.abort()


async def healed() -> None:
    """60 s down: one failover; back after hold and ramp, once."""
    async with ScriptedBackend() as primary, ScriptedBackend() as standby:
        async with processed(backed(primary.url, standby.url, more="")) as proxy:
            watched = Watched("outage", proxy)
            await asyncio.sleep(10)
            await down(primary)
            await asyncio.sleep(OUTAGE_S)
            await primary.accept()
            healed_s = time.monotonic() - watched.began_at
            async with asyncio.timeout(HOLD_S + RAMP_S + 120):
                while len(watched.moves) < 2:
                    await asyncio.sleep(1)
            await asyncio.sleep(20)
            await watched.end()
            assert [move for _, move in watched.moves] == ["p to s: ejected", "s to p: recovered"], watched.moves
            took_s = watched.moves[1][0] - healed_s
            print(f"outage: back {took_s:.0f} s after it healed", flush=True)
            assert HOLD_S + RAMP_S - 2 <= took_s <= HOLD_S + RAMP_S + 60, "hold begins with the first probe that succeeds"
            assert set(watched.statuses) == {200}


async def flapping() -> None:
    """60 s up, 60 s down: never back."""
    async with ScriptedBackend() as primary, ScriptedBackend() as standby:
        async with processed(backed(primary.url, standby.url, more="")) as proxy:
            watched = Watched("flapping", proxy)
            await asyncio.sleep(10)
            for _ in range(4):
                await down(primary)
                await asyncio.sleep(60)
                await primary.accept()
                await asyncio.sleep(60)
            await watched.end()
            assert [move for _, move in watched.moves] == ["p to s: ejected"], watched.moves
            assert set(watched.statuses) == {200}


async def slow() -> None:
    """SLO 1 s; first tokens after 8 s: left within 30 s of twenty such answers."""
    async with ScriptedBackend() as primary, ScriptedBackend() as standby:
        async with processed(backed(primary.url, standby.url, more="", cap=200, pool=", slo: {ttft: 1s}")) as proxy:
            watched = Watched("slow", proxy)
            await asyncio.sleep(10)
            primary.script = (scripts.delay(8.0), scripts.ok())
            slow_s = time.monotonic() - watched.began_at
            async with asyncio.timeout(60):
                while not watched.moves:
                    await asyncio.sleep(0.5)
            seen = len([each for each in primary.requests if each.method == "POST"])
            await asyncio.sleep(5)
            more = len([each for each in primary.requests if each.method == "POST"]) - seen
            await watched.end()
            assert [move for _, move in watched.moves] == ["p to s: slow"], watched.moves
            print(f"slow: left {watched.moves[0][0] - slow_s:.1f} s after it turned slow; {more} went there afterwards", flush=True)
            assert watched.moves[0][0] - slow_s <= 8 + 2 + 30, "twenty answers come within ten seconds"
            assert more <= 10, "those dispatched before it was noticed"
            assert set(watched.statuses) == {200}


async def test_f08_on_the_real_clock_one_outage_is_one_failover_and_one_failback_and_a_flapping_primary_stays_away() -> None:
    async with asyncio.TaskGroup() as group:
        for story in (healed, flapping, slow):
            group.create_task(story())
