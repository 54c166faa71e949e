"""When is a second attempt beside the first worth its price, and is there anything left to pay it with?

A request of the first lane whose first token is late (later than the p-th percentile of those before it at the same platform, or than a
fixed time) may be sent to an idle backend as well; whichever speaks first is its answer, the other is cancelled. What it buys is the tail:
with p95, one request in twenty is late by definition, and waits for the faster of two from then on (Dean and Barroso, "The Tail at
Scale", 2013). What it costs is bounded three ways: one beside each request, to a backend where nothing runs, and never more than one in
twenty of the pool's attempts, in all, and (save the first) of those in flight.

The percentile is nearest rank over the latest first tokens. An attempt that lost to the one beside it would have taken longer still: it
counts with the time it had until then, or the percentile would sink towards those that were quick.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

from policies.model import Hedge, Lease, Request

EXTRA = 20  # policies.md 9: never above 5 % extra load, one in so many
SAMPLES_MAX = 512
SAMPLES_MIN = 20
SPAN_S = 300.0  # older first tokens say nothing about now; as long as load is measured


def may_hedge(request: Request, lease: Lease, attempts: int, allowed: int) -> bool:
    """Is this a request for it? Streamed, in the first lane, on its first attempt, which has not spoken, with another attempt left."""
    return (
        request.streamed
        and request.lane == 0
        and request.traffic == "interactive"
        and attempts == 1
        and allowed > 1
        and not lease.probe
        and not lease.slotless
        and lease.first_token_at is None
    )


class _Tail:
    """The latest first tokens of one platform, in order of age and of size."""

    __slots__ = ("_ages", "_sizes")

    def __init__(self) -> None:
        self._ages: deque[tuple[float, float]] = deque()
        self._sizes: list[float] = []

    def add(self, ttft_s: float, now: float) -> None:
        self._ages.append((now, ttft_s))
        insort(self._sizes, ttft_s)
        if len(self._ages) > SAMPLES_MAX:
            self._drop()

    def rank(self, percent: int, now: float) -> float | None:
        """The percentile. None: too few to tell."""
        while self._ages and self._ages[0][0] < now - SPAN_S:
            self._drop()
        count = len(self._sizes)
        if count < max(SAMPLES_MIN, -(-100 // (100 - percent))):
            return None
        return self._sizes[-(-percent * count // 100) - 1]

    def _drop(self) -> None:
        _, ttft_s = self._ages.popleft()
        del self._sizes[bisect_left(self._sizes, ttft_s)]


class Hedging:
    """One pool's first tokens, and what it may spend on hedges. `plan` is the file's."""

    __slots__ = ("_counted", "_credit", "_pairs", "_tails", "plan")

    _PRICE = EXTRA + 1  # in attempts that ended, of which the hedge itself is one

    def __init__(self, plan: Hedge, ended: int = 0) -> None:
        """`ended`: attempts of the pool that had ended by now: they pay for nothing."""
        self.plan = plan
        self._tails: dict[str, _Tail] = {}  # by platform
        self._pairs: list[tuple[Lease, Lease]] = []  # the first attempt, and the one beside it
        self._counted = ended
        self._credit = 0

    def spoke(self, lease: Lease, now: float) -> None:
        """The first token of an attempt of this pool has come."""
        self._tail(lease.platform).add(now - lease.granted_at, now)
        for first, beside in self._pairs:
            if beside is lease and first.live:
                self._tail(first.platform).add(now - first.granted_at, now)

    def after_s(self, platform: str, now: float) -> float | None:
        """How long after its dispatch to this platform is a request late? None: nobody can tell yet."""
        if self.plan.percent is None:
            return self.plan.after_s
        tail = self._tails.get(platform)
        return None if tail is None else tail.rank(self.plan.percent, now)

    def allows(self, ended: int, in_flight: int) -> bool:
        """Is one more within its price? `ended`: attempts of the pool that ever ended; `in_flight`: those that run.

        What is saved up is never more than what may run at a time: a quiet day pays for no storm.
        """
        self._pairs = [(first, beside) for first, beside in self._pairs if _both_wait(first, beside)]
        at_once = max(1, in_flight // EXTRA)
        self._credit = min(self._credit + ended - self._counted, at_once * self._PRICE)
        self._counted = ended
        return self._credit >= self._PRICE and len(self._pairs) < at_once

    def began(self, first: Lease, beside: Lease) -> None:
        """A second attempt begins."""
        self._credit -= self._PRICE
        self._pairs.append((first, beside))

    def _tail(self, platform: str) -> _Tail:
        found = self._tails.get(platform)
        if found is None:
            found = self._tails[platform] = _Tail()
        return found


def _both_wait(first: Lease, beside: Lease) -> bool:
    return first.live and beside.live and first.first_token_at is None and beside.first_token_at is None
