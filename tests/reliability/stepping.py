"""What if it stopped right here? Drives a coroutine step by step and, at the n-th place where it waits, cancels it or raises.

Counting first and then trying each place in turn finds the slot that leaks on the one path nobody thought of.
"""

from __future__ import annotations

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
                thrown = self._problem
                continue
            try:
                yield waits_for
            except BaseException as problem:
                thrown = problem

    @property
    def at(self) -> int | None:
        return self._at
