"""A small town to look at: two lanes, three pools, six backends on fake engines, and callers who come again and again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp

from lab.engine.engine import Engine
from lab.engine.faults import Fault
from tests.proxy.serving import TWO_LANES, Serving, serving

CAPS = {"small-1": 6, "small-2": 6, "gpu-a": 8, "gpu-b": 8, "api": 24, "night": 4}
ROUTES = """routes:
  - {when: {model: tiny}, pool: small}
  - {when: {model: bulk}, pool: batch}
  - {pool: large}
"""


class Scene:
    """The running proxy, its engines by backend, and its callers."""

    def __init__(self, proxy: Serving, engines: dict[str, Engine], session: aiohttp.ClientSession) -> None:
        self.proxy = proxy
        self.engines = engines
        self._session = session
        self.callers: list[asyncio.Task[None]] = []

    def call(self, model: str, key: str, number: int, tokens: int = 40) -> None:
        """So many callers ask for this model, each again when it has been answered or refused."""
        self.callers += [asyncio.create_task(self._again(model, key, tokens)) for _ in range(number)]

    async def _again(self, model: str, key: str, tokens: int) -> None:
        body = {"model": model, "stream": True, "max_tokens": tokens, "messages": [{"role": "user", "content": "hi"}]}
        while True:
            try:
                headers = {"Authorization": f"Bearer {key}"}
                async with self._session.post(f"{self.proxy.url}/v1/chat/completions", json=body, headers=headers) as answer:
                    await answer.read()
                    refused = answer.status != 200
            except aiohttp.ClientError:
                refused = True
            await asyncio.sleep(0.4 if refused else 0.02)

    async def rest(self) -> None:
        """The callers go home."""
        for caller in self.callers:
            caller.cancel()
        await asyncio.gather(*self.callers, return_exceptions=True)
        self.callers.clear()

    def kill(self, *backends: str) -> None:
        """From now on they refuse connections, and cut what runs."""
        for name in backends:
            self.engines[name].fault(Fault(fault="refuse"))


def file(engines: dict[str, Engine]) -> str:
    def backends(*names: str) -> str:
        return ", ".join(f'{name}: {{url: "{engines[name].url}", max_streams: {CAPS[name]}}}' for name in names)

    return (
        TWO_LANES
        + f"platforms:\n  own-small: {{backends: {{{backends('small-1', 'small-2')}}}}}\n"
        + f"  own-large: {{backends: {{{backends('gpu-a', 'gpu-b')}}}}}\n"
        + f"  rented: {{backends: {{{backends('api')}}}}}\n  overnight: {{backends: {{{backends('night')}}}}}\n"
        + "pools:\n  small: {primary: own-small, standby: rented, profile: chat}\n"
        + "  large: {primary: own-large, standby: rented, profile: chat, queue: {places: 12}}\n"
        + "  batch: {primary: overnight, queue: {places: 30, max_wait: 2h}}\n"
        + ROUTES
    )


@asynccontextmanager
async def scene(*, server: str | None = None) -> AsyncIterator[Scene]:
    """Everything up, nobody calling yet."""
    async with AsyncExitStack() as stack:
        engines = {
            name: await stack.enter_async_context(Engine(slots=cap, ttft_s=0.05, tpot_s=0.025, model="any").serving())
            for name, cap in CAPS.items()
        }
        proxy = await stack.enter_async_context(serving(file(engines), server=server))
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        here = Scene(proxy, engines, session)
        stack.push_async_callback(here.rest)
        yield here
