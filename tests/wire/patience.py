"""How does a test wait for what it cannot be told of? By looking until it is so, never by sleeping and hoping."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar

F = TypeVar("F")

LOOK_EVERY_S = 0.005


async def eventually(condition: Callable[[], bool | Awaitable[bool]], timeout_s: float = 5.0) -> None:
    """Returns once the condition (a function, plain or async) is true. Raises TimeoutError; what the condition raises passes."""
    async with asyncio.timeout(timeout_s):
        while True:
            held = condition()
            if await held if inspect.isawaitable(held) else held:
                return
            await asyncio.sleep(LOOK_EVERY_S)


async def in_one_of(tries: int, once: Callable[[], Awaitable[F]], verdict: Callable[[F], None]) -> None:
    """For figures that a stall of the machine spoils: what `once` asserts holds in every try, what `verdict` does in one of them."""
    for left in reversed(range(tries)):
        found = await once()
        if _passes(verdict, found, left):
            return


def measured_in_one_of(tries: int, once: Callable[[], F], verdict: Callable[[F], None]) -> None:
    """The same where nothing is awaited."""
    for left in reversed(range(tries)):
        if _passes(verdict, once(), left):
            return


def _passes(verdict: Callable[[F], None], found: F, left: int) -> bool:
    try:
        verdict(found)
    except AssertionError as failed:
        if not left:
            raise
        print(f"once more, {left} left: {failed}")
        return False
    return True
