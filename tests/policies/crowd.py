"""A dispatcher at scale: a thousand backends, ten thousand tenants, and a hundred thousand requests that wait.

Each event is one step of `Crowd`, after which as many run and wait as before: so a step can be counted or timed again and again.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from policies.dispatcher import Dispatcher
from policies.model import BackendPlan, Ending, Lease, PlacesPlan, Plan, PlatformPlan, PoolPlan, Request, Ticket
from tests.policies.stage import FAST, OK, RESET, SLOW

TENANTS = 10_000
STREAMS_PER_BACKEND = 2
A_LONG_TIME_S = 1e6
BETWEEN_EVENTS_S = 1e-4


class Crowd:
    """So many wait, in both lanes, oldest first."""

    def __init__(self, waiting: int, backends: int = 1_000, models: int = 0) -> None:
        """`models`: so many platforms, each with a model of its own; 0: one platform that serves all."""
        groups = max(1, models)
        platforms = tuple(
            PlatformPlan(
                f"p{group}",
                tuple(BackendPlan(f"p{group}b{number}", STREAMS_PER_BACKEND) for number in range(backends // groups)),
                frozenset({f"m{group}"}) if models else None,
            )
            for group in range(groups)
        )
        pool = PoolPlan("chat", tuple(each.name for each in platforms), PlacesPlan(fixed=10**6), max_wait_s=A_LONG_TIME_S)
        self.now = 0.0
        self.dispatcher = Dispatcher(Plan((FAST, SLOW), platforms, (pool,)), self.now)
        self._models = models
        self._number = 0
        self.running: deque[Ticket] = deque()
        self.waiting: deque[Ticket] = deque()  # some that left or were let in since are still among them
        for _ in range(STREAMS_PER_BACKEND * backends + waiting):
            self.arrive()

    def ticket(self) -> Ticket:
        """One more request, of the next tenant, in the other lane than the one before."""
        self._number = number = self._number + 1
        model = f"m{number % self._models}" if self._models else None
        return Ticket(Request(str(number), f"t{number % TENANTS}", number % 2, model=model), "chat", self.now)

    # -- steps

    def arrive(self) -> None:
        """A request comes, and runs or waits."""
        self.now += BETWEEN_EVENTS_S
        ticket = self.ticket()
        self.dispatcher.arrive(ticket, self.now)
        (self.waiting if ticket.answer is None else self.running).append(ticket)

    def finish(self, how: Ending = OK) -> Ticket:
        """The one that has run longest ends, and the next goes."""
        self.now += BETWEEN_EVENTS_S
        ended = self.running.popleft()
        self._run(self.dispatcher.give_back(lease(ended), how, self.now))
        return ended

    def arrive_and_finish(self) -> None:
        """One comes and one ends: what a full house does all day."""
        self.arrive()
        self.finish()

    def first_token(self) -> None:
        """The first token of one that runs."""
        self.now += BETWEEN_EVENTS_S
        self.running.rotate(-1)
        self.dispatcher.first_token(lease(self.running[0]), self.now)

    def leave_oldest(self) -> None:
        """One at the head of its line leaves, another comes."""
        while self.waiting[0].answer is not None:
            self.waiting.popleft()
        self.dispatcher.leave(self.waiting.popleft(), self.now)
        self.arrive()

    def leave_newest(self) -> None:
        """One at the end of its line leaves, another comes."""
        self.dispatcher.leave(self.waiting.pop(), self.now)
        self.arrive()

    def tick(self) -> None:
        """Time passes, and the host asks when it must ask again."""
        self.now += BETWEEN_EVENTS_S
        self.dispatcher.tick(self.now)
        self.dispatcher.next_at()

    def probed(self) -> None:
        """A probe of one backend comes back well."""
        self.running.rotate(-1)
        self.dispatcher.probed(lease(self.running[0]).backend, True, self.now)

    def fail_and_again(self) -> None:
        """An attempt fails and is tried again; what went out in its place ends well."""
        failed = self.finish(RESET)
        self._run(self.dispatcher.again(failed, RESET, False, self.now))
        self.finish()
        self.arrive()

    # -- what happens to all at once

    def outage(self) -> None:
        """Everything that runs fails, and is tried again as far as the retry budget allows."""
        failing = list(self.running)
        self.running.clear()
        for ticket in failing:
            self._run(self.dispatcher.give_back(lease(ticket), RESET, self.now))
            self._run(self.dispatcher.again(ticket, RESET, False, self.now))

    def _run(self, settled: Sequence[Ticket]) -> None:
        self.running.extend(ticket for ticket in settled if isinstance(ticket.answer, Lease))


def lease(ticket: Ticket) -> Lease:
    """Of one that runs."""
    assert isinstance(ticket.answer, Lease)
    return ticket.answer


def steps(act: Callable[[], object]) -> int:
    """How many instructions of Python does this execute, in all functions that it calls? The same on every machine."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        if event == "opcode":
            count += 1
        return trace

    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(None)
    return count
