"""Who starts each request at its time? Runs one step: an open loop by its intended times, or so many streams at once.

Nothing in an open loop waits for an answer. Bodies are built ahead of their time, so that building them delays nobody.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from lab.bench.call import Call
from lab.bench.demand import Asked, Lane
from lab.bench.prompts import Calibration, Prompts
from lab.bench.target import Target

LOOK_EVERY_S = 0.05  # how often the loop's own lateness is measured
RAMP_SHARE = 0.1  # of a step's duration, in which the streams of a ladder's step start one after another
RAMP_MAX_S = 2.0


@dataclass
class Step:
    """What one step has done so far. Instants in seconds, monotonic; the step measures from `began_at` to `until_at`."""

    began_at: float
    until_at: float
    calls: list[Call] = field(default_factory=list)
    in_flight: int = 0
    answered: int = 0
    unanswered: int = 0  # refused or failed
    recent: deque[Call] = field(default_factory=lambda: deque(maxlen=50))  # answered last
    loop_late_s: list[float] = field(default_factory=list)  # how late the loop ran timers
    cpu_s: float = 0.0  # that this process used
    ended_at: float = 0.0


@dataclass
class Driver:
    """Makes steps of calls at one target. `on_step` is told of each step as it begins, to watch it."""

    target: Target
    prompts: Prompts
    calibration: Calibration
    timeout_s: float = 120.0
    on_step: Callable[[Step], None] = lambda step: None

    async def open_loop(self, asked: Iterator[Asked], duration_s: float) -> Step:
        """Starts each request at its own time; returns when all have ended."""
        step = self._begin(duration_s)
        running: set[asyncio.Task[None]] = set()
        async with _Watched(step):
            for ask in asked:
                call, request = self._prepare(ask, step.began_at + (ask.at_s or 0.0))
                await asyncio.sleep(max(0.0, call.intended_at - time.monotonic()))  # when behind, at least one turn of the loop
                task = asyncio.ensure_future(self._make(step, call, request))
                running.add(task)
                task.add_done_callback(running.discard)
            await asyncio.sleep(max(0.0, step.until_at - time.monotonic()))
            try:
                while running:
                    await asyncio.wait(running)
            finally:
                for task in running:
                    task.cancel()
        return step

    async def streams(self, asked: Iterator[Asked], concurrency: int, duration_s: float) -> Step:
        """Keeps so many streams going: each asks anew as soon as its answer has ended, until the time is up."""
        step = self._begin(duration_s)
        ramp_s = min(RAMP_MAX_S, duration_s * RAMP_SHARE)

        async def stream(number: int) -> None:
            await asyncio.sleep(ramp_s * number / concurrency)
            while time.monotonic() < step.until_at:
                call, request = self._prepare(next(asked), 0.0)
                call.intended_at = time.monotonic()
                await self._make(step, call, request)
                if not call.ok:
                    await asyncio.sleep(0.05)  # a target that refuses at once is not to be hammered

        async with _Watched(step), asyncio.TaskGroup() as group:
            for number in range(concurrency):
                group.create_task(stream(number))
        step.began_at += ramp_s  # what is measured begins when all have started
        return step

    def _begin(self, duration_s: float) -> Step:
        now = time.monotonic()
        step = Step(now, now + duration_s)
        self.on_step(step)
        return step

    def _prepare(self, asked: Asked, intended_at: float) -> tuple[Call, bytes]:
        lane: Lane | None = asked.lane
        text = self.prompts.text(self.calibration.words(asked.prompt_tokens))
        key = lane.key if lane else None
        call = Call(lane.name if lane else "", asked.prompt_tokens, asked.output_tokens, asked.stream, intended_at, form=asked.form)
        return call, self.target.request(asked.form, text, asked.output_tokens, stream=asked.stream, key=key)

    async def _make(self, step: Step, call: Call, request: bytes) -> None:
        step.calls.append(call)
        step.in_flight += 1
        try:
            await self.target.perform(call, request, self.timeout_s)
        finally:
            step.in_flight -= 1
        if call.ok:
            step.answered += 1
            step.recent.append(call)
        else:
            step.unanswered += 1


class _Watched:
    """Measures, while it is open, how late the loop runs its timers and what processor time this process takes."""

    def __init__(self, step: Step) -> None:
        self._step = step

    async def __aenter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._cpu_s = time.process_time()
        self._due_at = 0.0
        self._look()

    async def __aexit__(self, *_: object) -> None:
        self._timer.cancel()
        self._step.ended_at = time.monotonic()
        self._step.cpu_s = time.process_time() - self._cpu_s

    def _look(self) -> None:
        now = time.monotonic()
        if self._due_at:
            self._step.loop_late_s.append(max(0.0, now - self._due_at))
        self._due_at = now + LOOK_EVERY_S
        self._timer = self._loop.call_later(LOOK_EVERY_S, self._look)
