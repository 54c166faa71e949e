"""When is each platform smoke-tested? On its schedule while it is cold, and before requests go back to it.

A test holds a slot like any request, and is left out where there is none to have. Platforms in service are tested by their traffic.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from policies.model import Ending, Lease, Outcome, Verdict
from proxy.dispatch import Lobby
from proxy.edition import Backend
from proxy.smoke import Result, SmokeTest, test

AFTER_START_S = 60.0  # engines and caches warm up first (policies.md 7)
JITTER_RATIO = 0.1
_ENDED_EARLY = Ending(Verdict.NEUTRAL, Outcome.DRAINING, why="ended early")

Told = Callable[[str, str, Result], None]  # platform, backend, result


class SmokeRounds:
    """One loop per platform with a schedule, and one task per platform that is to be proven."""

    def __init__(self, lobby: Lobby, backend: Callable[[str], Backend], in_service: Callable[[str], bool], told: Told, seed: int) -> None:
        self._lobby = lobby
        self._backend = backend
        self._in_service = in_service
        self._told = told
        self._random = random.Random(seed)
        self._tests: dict[str, SmokeTest] = {}
        self._loops: dict[str, asyncio.Task[None]] = {}
        self._proofs: dict[str, asyncio.Task[None]] = {}
        self._turns: dict[str, int] = {}

    def watch(self, tests: Mapping[str, SmokeTest]) -> None:
        """Test these platforms from now on, and no others."""
        for name, loop in list(self._loops.items()):
            if tests.get(name) != self._tests.get(name):
                loop.cancel()
                del self._loops[name]
        self._tests = dict(tests)
        for name, asks in tests.items():
            if asks.every_s is not None and name not in self._loops:
                self._loops[name] = _task(self._on_schedule(asks, asks.every_s))

    def prove(self, platform: str) -> None:
        """Its hold is over: run one test on it, and tell the dispatcher."""
        if platform not in self._proofs:
            self._proofs[platform] = _task(self._prove(platform))

    async def close(self) -> None:
        """No test is under way when this returns."""
        tasks = [*self._loops.values(), *self._proofs.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._loops.clear()
        self._proofs.clear()

    async def _on_schedule(self, asks: SmokeTest, every_s: float) -> None:
        await asyncio.sleep(AFTER_START_S * self._random.uniform(1.0, 1.0 + JITTER_RATIO))
        while True:
            if not self._in_service(asks.platform):
                for backend in asks.backends:
                    for model in asks.models or (None,):
                        await self._one(asks, backend, model)
            await asyncio.sleep(every_s * self._random.uniform(1.0 - JITTER_RATIO, 1.0 + JITTER_RATIO))

    async def _prove(self, platform: str) -> None:
        ok = False
        try:
            asks = self._tests.get(platform)
            if asks is not None:
                turn = self._turns[platform] = self._turns.get(platform, -1) + 1
                models = asks.models or (None,)
                result = await self._one(asks, asks.backends[turn % len(asks.backends)], models[turn % len(models)])
                ok = result is not None and result.ok
        finally:
            del self._proofs[platform]  # the next one may be asked for by what follows
            self._lobby.apply(self._lobby.dispatcher.smoked, platform, ok)

    async def _one(self, asks: SmokeTest, backend: str, model: str | None) -> Result | None:
        """One test, if the backend may be asked and has a slot."""
        lease: Lease | None = self._lobby.smoke(backend)
        if lease is None:
            return None
        ending = _ENDED_EARLY
        try:
            result = await test(self._backend(backend), asks, model)
            ending = result.ending
        finally:
            self._lobby.give_back(lease, ending)
        self._told(asks.platform, backend, result)
        return result


def _task(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(work)
