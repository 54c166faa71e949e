"""Group P, where one process suffices: who goes next, and does nobody starve?"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tests.reliability.files import one
from tests.reliability.watch import watched
from tests.wire import ScriptedBackend, eventually, post, scripts

LANES = "lanes: {fast: {max_wait: 60s%s}, slow: {max_wait: %s, share: 10%%}}\n"
KEYS = "keys: [{name: A, secret: sk-A, lane: fast}, {name: B, secret: sk-B, lane: slow}]\n"


async def test_p01_five_hundred_at_once_under_a_cap_of_eight_are_all_served_in_order() -> None:
    async with ScriptedBackend(scripts.delay(0.02), scripts.ok()) as backend:
        text = one(backend, cap=8, pool=", queue: {places: 600, max_wait: 60s}")
        async with watched(text, backend) as proxy:
            asked: list[Any] = []
            done = False
            watching = asyncio.ensure_future(proxy.no_idle_slot(lambda: done))
            for n in range(300):
                asked.append(asyncio.ensure_future(proxy.ask(x_mark=f"{n:03d}")))
                if n % 20 == 0:
                    await asyncio.sleep(0)
            assert {(await each).status for each in asked} == {200}
            done = True
            await watching
            assert backend.max_active == 8


async def test_p01_p02_within_a_lane_first_come_first_served_and_fast_before_slow() -> None:
    gate = asyncio.Event()
    async with ScriptedBackend(named={"hold": (scripts.wait(gate), scripts.ok())}) as backend:
        text = one(backend, cap=1, pool=", queue: {places: 100, max_wait: 60s}", keys=KEYS + LANES % ("", "60s"))
        async with watched(text, backend) as proxy:
            asked = [asyncio.ensure_future(proxy.ask(x_script="hold"))]
            await backend.seen(1)
            for n, (lane, key) in enumerate([("slow", "sk-B")] * 30 + [("fast", "sk-A")] * 9, 1):
                asked.append(asyncio.ensure_future(proxy.ask(key=key, x_mark=f"{lane}-{n:02d}")))
                await eventually(lambda n=n: proxy.state.waiting == n)  # type: ignore[misc]
            gate.set()
            assert {(await each).status for each in asked} == {200}
            marks = [str(seen.header("x-mark")) for seen in backend.requests[1:]]
            assert all(mark.startswith("fast") for mark in marks[:8]), "those who pay go first, save the share"
            for lane in ("fast", "slow"):
                mine = [mark for mark in marks if mark.startswith(lane)]
                assert mine == sorted(mine)


async def test_p04_a_reserve_keeps_a_slot_for_the_fast_lane() -> None:
    gate = asyncio.Event()
    async with ScriptedBackend(named={"hold": (scripts.wait(gate), scripts.ok())}) as backend:
        text = one(backend, cap=3, pool=", queue: {places: 20, max_wait: 60s}", keys=KEYS + LANES % (", reserve: 1", "60s"))
        async with watched(text, backend) as proxy:
            asked = [asyncio.ensure_future(proxy.ask(key="sk-B", x_script="hold")) for _ in range(5)]
            await eventually(lambda: proxy.state.waiting == 3)
            assert proxy.state.in_flight == 2, "slow leaves one free"
            began = time.monotonic()
            assert (await proxy.ask(key="sk-A")).status == 200
            assert time.monotonic() - began < 1.0
            gate.set()
            assert {(await each).status for each in asked} == {200}


async def test_p14_a_slow_request_against_a_stream_of_fast_ones_waits_no_longer_than_its_lane_allows() -> None:
    async with ScriptedBackend(scripts.delay(0.01), scripts.ok()) as backend:
        text = one(backend, cap=1, pool=", queue: {places: 60}", keys=KEYS + LANES % ("", "2s"))
        async with watched(text, backend) as proxy:
            stop = False

            async def press() -> None:
                async with await proxy.connect() as caller:
                    while not stop:
                        await caller.ask(post())

            pressing = [asyncio.ensure_future(press()) for _ in range(6)]
            await eventually(lambda: proxy.state.waiting >= 3)
            for _ in range(3):
                began = time.monotonic()
                answer = await proxy.ask(key="sk-B")
                assert answer.status == 200 or (answer.status == 429 and answer.header("retry-after"))
                assert time.monotonic() - began < 4.0
            stop = True
            await asyncio.gather(*pressing)
