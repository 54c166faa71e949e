"""How does a test wait for what it cannot be told of? By looking until it is so, never by sleeping and hoping."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

LOOK_EVERY_S = 0.005


async def eventually(condition: Callable[[], bool | Awaitable[bool]], timeout_s: float = 5.0) -> None:
    """Returns once the condition (a function, plain or async) is true. Raises TimeoutError; what the condition raises passes."""
    async with asyncio.timeout(timeout_s):
        while True:
            held = condition()
            if await held if inspect.isawaitable(held) else held:
                return
            await asyncio.sleep(LOOK_EVERY_S)
