"""What if it stopped right here? Drives a coroutine step by step and, at the n-th place where it waits, cancels it or raises.

Counting first and then trying each place in turn finds the slot that leaks on the one path nobody thought of.
"""

from __future__ import annotations

import types
from collections.abc import Coroutine, Generator
from typing import Any


class Stepped:
    """Awaits `inner`, counting the places where it waits; at number `at` raises `problem` there."""

    def __init__(self, inner: Coroutine[Any, Any, Any], at: int | None, problem: BaseException | None) -> None:
        self._inner = inner
        self._at = at
        self._problem = problem
        self.count = 0
        self.fired = False
        self.stopped_at: list[tuple[str, int]] = []  # file and line of every await that was waiting, the outermost first

    def __await__(self) -> Generator[Any, Any, Any]:
        thrown: BaseException | None = None
        while True:
            try:
                waits_for = self._inner.send(None) if thrown is None else self._inner.throw(thrown)
            except StopIteration as over:
                return over.value
            thrown = None
            self.count += 1
            if self.count == self.at and not self.fired:
                self.fired = True
                self.stopped_at = list(_awaiting(self._inner))
                thrown = self._problem
                continue
            try:
                yield waits_for
            except BaseException as problem:
                thrown = problem

    @property
    def at(self) -> int | None:
        return self._at


def _awaiting(coroutine: Any) -> Generator[tuple[str, int], None, None]:
    """Where does it wait, and where do those wait that it waits for?"""
    while isinstance(coroutine, types.CoroutineType) and coroutine.cr_frame is not None:
        yield coroutine.cr_frame.f_code.co_filename, coroutine.cr_frame.f_lineno
        coroutine = coroutine.cr_await
