"""What time is it, and who is late? The only reader of a clock, and the one timer that all connections share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

now = time.monotonic
"""Seconds, monotonic: the `now` of every policy call."""

wall = time.time
"""Seconds since 1970: for logs and timestamps, never for decisions."""

NEVER = float("inf")
SWEEP_S = 0.1
AWAY_S = 0.25  # a sweep that is later than this: we were stopped, starved, or busy with something long


class Watched(Protocol):
    """Something with a deadline. `deadline_at` may move freely; it is looked at, never scheduled."""

    deadline_at: float

    def overdue(self, at: float) -> None:
        """The deadline has passed. It sets a new one, or ends."""


class Deadlines:
    """Who is late? One timer for all connections and attempts, instead of one per chunk or read.

    Every `SWEEP_S` the watched are compared with the clock: a deadline is kept to within that. Moving a deadline is
    an attribute set; two thousand streams cost about 0.1 % of a core.

    A sweep that is itself late judges nobody: what came in the meantime waits unread in the sockets. It is read first, and the next sweep
    judges.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._watched: set[Watched] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.watch = self._watched.add
        self.forget = self._watched.discard
        self.lag_s = 0.0  # how late the last sweep was: the loop's own delay
        self._away = False
        self.observe_lag: Callable[[float], None] | None = None  # told of each

    def start(self) -> None:
        """Begin to sweep, until `stop`."""
        self._due_at = now() + SWEEP_S  # our clock: the loop's stands still while a callback runs
        self._timer = self._loop.call_later(SWEEP_S, self._sweep)

    def stop(self) -> None:
        """End the sweeping."""
        if self._timer is not None:
            self._timer.cancel()

    def _sweep(self) -> None:
        at = now()
        self.lag_s = max(0.0, at - self._due_at)
        if self.observe_lag is not None:
            self.observe_lag(self.lag_s)
        self._away = self.lag_s > AWAY_S and not self._away
        if self._away:
            self.start()
            return
        for watched in [w for w in self._watched if w.deadline_at <= at]:
            watched.overdue(at)
        self.start()
