"""Is anybody blamed for the time in which we were not running? A process that is stopped, starved or moved, and goes on."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

from tests.reliability.files import one
from tests.reliability.process import processed
from tests.wire import JS, ScriptedBackend, post, scripts

IDLE_S = 0.5


async def test_s10_a_stream_whose_bytes_came_while_we_were_stopped_is_not_idle() -> None:
    go_on = asyncio.Event()

    async def every_now_and_then(exchange: Any) -> None:
        while not go_on.is_set():
            await scripts.event("b")(exchange)
            await asyncio.sleep(IDLE_S / 10)

    tail = scripts.chunked(scripts.finish() + scripts.DONE)
    steps = [scripts.head(), scripts.event("a"), every_now_and_then, tail, scripts.end()]
    async with ScriptedBackend(*steps) as backend:
        async with processed(one(backend, pool=", timeouts: {idle: 500ms}")) as proxy:
            for _ in range(2):
                go_on.clear()
                async with await proxy.connect() as caller:
                    await caller.send(post(JS))
                    await caller.head()
                    proxy.child.send_signal(signal.SIGSTOP)
                    await asyncio.sleep(3 * IDLE_S)
                    proxy.child.send_signal(signal.SIGCONT)
                    asyncio.get_running_loop().call_later(IDLE_S, go_on.set)
                    events = [event async for event in caller.events()]
                    assert b"[DONE]" in events[-1] and not any(b'"error"' in event for event in events)
