"""Is each backend alive, asked beside its traffic? `GET /health` or `/v1/models` every few seconds, outside the caps.

What an answer means is decided by `policies.health`; here it is only asked for. Nothing is followed, kept or decompressed.
"""

from __future__ import annotations

import asyncio
import os
import random
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import aiohttp

EVERY_S = 5.0
TIMEOUT_S = 2.0
JITTER_RATIO = 0.1  # of each pause: the probes of several Fairlanes drift apart


@dataclass(frozen=True, slots=True)
class Probe:
    """What to ask one backend. `absent_is_alive`: not every engine has a `/health`; a 404 from one is a sign of life."""

    url: str
    headers: tuple[tuple[str, str], ...] = ()
    tls: ssl.SSLContext | None = None
    absent_is_alive: bool = True


class Prober:
    """One loop per backend that is to be probed. `told(backend, alive)` is called after each answer."""

    def __init__(self, told: Callable[[str, bool], None]) -> None:
        self._told = told
        self._session: aiohttp.ClientSession | None = None
        self._loops: dict[str, tuple[Probe, asyncio.Task[None]]] = {}
        self._random = random.Random(os.urandom(8))

    def watch(self, probes: Mapping[str, Probe]) -> None:
        """Probe these backends from now on, and no others."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=TIMEOUT_S), cookie_jar=aiohttp.DummyCookieJar(), trust_env=False, auto_decompress=False
            )
        for name, (probe, loop) in list(self._loops.items()):
            if probes.get(name) != probe:
                loop.cancel()
                del self._loops[name]
        new = [name for name in probes if name not in self._loops]
        for index, name in enumerate(new):
            later_s = EVERY_S * index / len(new)  # not all at one instant: a burst on a shared host, and of our own work
            asking = self._ask_on(name, probes[name], self._session, later_s)
            self._loops[name] = (probes[name], asyncio.get_running_loop().create_task(asking))

    async def close(self) -> None:
        """No probe is under way when this returns."""
        loops = [loop for _, loop in self._loops.values()]
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        self._loops.clear()
        if self._session is not None:
            await self._session.close()

    async def _ask_on(self, name: str, probe: Probe, session: aiohttp.ClientSession, later_s: float) -> None:
        await asyncio.sleep(later_s)
        while True:
            self._told(name, await _alive(probe, session))
            await asyncio.sleep(EVERY_S * self._random.uniform(1.0 - JITTER_RATIO, 1.0 + JITTER_RATIO))


async def _alive(probe: Probe, session: aiohttp.ClientSession) -> bool:
    try:
        async with session.get(probe.url, headers=dict(probe.headers), ssl=probe.tls or True, allow_redirects=False) as answer:
            return answer.status < 400 or (answer.status == 404 and probe.absent_is_alive)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return False
