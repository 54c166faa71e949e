"""How many may wait, and what is the measured load?

Little's law: streams needed at 100 % load = arrival rate x slot-holding time. It gives the demand, not the cap: the cap is the
engine's limit. Everything here is measured over a sliding window of equal steps; the oldest step falls out as a whole.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from policies.model import PlacesPlan

LOAD_SPAN_S = 300.0  # arrival rate and slot-holding time (policies.md 1)
DRAIN_SPAN_S = 30.0  # slots given back, dispatches by lane (policies.md 2)
SIX_FIFTHS = Fraction(6, 5)  # demand x 1.2 requests in all, waiting ones included


def places(plan: PlacesPlan, streams: int) -> int:
    """How many requests may wait for `streams` streams?"""
    if plan.fixed is not None:
        return plan.fixed
    wanted = max(1, ceil(plan.buffer * streams))
    if plan.demand_streams is not None:
        wanted = max(wanted, ceil(SIX_FIFTHS * plan.demand_streams) - streams)
    return wanted


class Window:
    """The sum of what was added during the last `span_s` seconds, within one step of a thirtieth of that."""

    STEPS = 30
    __slots__ = ("_began_at", "_ends_at", "_past", "_recent", "_span_s", "_step_s", "_steps")

    def __init__(self, span_s: float, now: float) -> None:
        self._span_s = span_s
        self._step_s = span_s / self.STEPS
        self._steps = [0.0] * (self.STEPS - 1)  # whole steps, oldest first
        self._past = 0.0  # their sum
        self._recent = 0.0  # the step that runs
        self._began_at = now
        self._ends_at = now + self._step_s

    def add(self, amount: float, now: float) -> None:
        """Counts `amount` at `now`."""
        if now >= self._ends_at:
            self._turn(now)
        self._recent += amount

    def total(self, now: float) -> float:
        """What was added within the span?"""
        if now >= self._ends_at:
            self._turn(now)
        return self._past + self._recent

    def rate(self, now: float) -> float:
        """The total per second of the time it covers; 0.0 before any time has passed."""
        if now >= self._ends_at:
            self._turn(now)
        covered_s = self._span_s - (self._ends_at - now)
        if now - self._began_at < covered_s:
            covered_s = now - self._began_at
        return (self._past + self._recent) / covered_s if covered_s > 0 else 0.0

    def _turn(self, now: float) -> None:
        passed = int((now - self._ends_at) / self._step_s) + 1
        steps = self._steps
        steps.append(self._recent)
        if passed > 1:
            steps.extend([0.0] * min(passed - 1, self.STEPS))
        del steps[: 1 - self.STEPS]
        self._past = sum(steps)  # anew: a sum kept by subtraction would drift
        self._recent = 0.0
        self._ends_at += passed * self._step_s


class Load:
    """What one pool is asked for, and what it gives back."""

    __slots__ = ("_arrivals", "_held_s", "_returned", "_returned_lately", "returned_ever")

    def __init__(self, now: float) -> None:
        self._arrivals = Window(LOAD_SPAN_S, now)
        self._returned = Window(LOAD_SPAN_S, now)
        self._held_s = Window(LOAD_SPAN_S, now)
        self._returned_lately = Window(DRAIN_SPAN_S, now)
        self.returned_ever = 0  # slots given back since the start

    def arrived(self, now: float) -> None:
        """A request arrived, whatever becomes of it."""
        arrivals = self._arrivals
        if now >= arrivals._ends_at:
            arrivals._turn(now)
        arrivals._recent += 1.0

    def returned(self, held_s: float, now: float) -> None:
        """A slot came back after `held_s` seconds."""
        self.returned_ever += 1
        returned, held, lately = self._returned, self._held_s, self._returned_lately
        if now >= returned._ends_at:
            returned._turn(now)
            held._turn(now)  # of the same span, begun at the same time
        returned._recent += 1.0
        held._recent += held_s
        if now >= lately._ends_at:
            lately._turn(now)
        lately._recent += 1.0

    def arrival_rps(self, now: float) -> float:
        """Lambda: requests per second over the last 5 minutes."""
        return self._arrivals.rate(now)

    def generation_s(self, now: float) -> float:
        """W: the mean time a slot was held, of those given back in the last 5 minutes; 0.0: none was."""
        returned, held = self._returned, self._held_s
        if now >= returned._ends_at:
            returned._turn(now)
            held._turn(now)
        count = returned._past + returned._recent
        return (held._past + held._recent) / count if count else 0.0

    def needed_streams(self, now: float) -> float:
        """Lambda x W: the streams at which a pool would be loaded to 100 %."""
        return self.arrival_rps(now) * self.generation_s(now)

    def drain_rps(self, in_flight: int, now: float) -> float:
        """How many slots come back per second while `in_flight` are taken?

        Counted over the last 30 s. After a quiet time that is the demand of then and not what the pool can do, hence at least
        what Little's law says of the streams that run: in flight / W.
        """
        generation_s = self.generation_s(now)
        lately_rps = self._returned_lately.rate(now)
        return max(lately_rps, in_flight / generation_s) if generation_s else lately_rps
