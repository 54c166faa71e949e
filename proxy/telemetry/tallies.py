"""How is something counted on the path of a request, in a fraction of a microsecond?

Plain objects that are bound once and changed in place, by the event loop's thread alone: a counter is an attribute, a
histogram one bisection. (`prometheus_client`'s own take a lock and a label look-up per event, about 1 us each.)
"""

from __future__ import annotations

from bisect import bisect_left


class Counter:
    """How often, or how much, since the start? `n` only grows; callers add to it directly."""

    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n: float = 0


class Histogram:
    """How are the observed values spread? `counts[i]` holds those in (bounds[i-1], bounds[i]], the last those above all."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.rebound(bounds)

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def rebound(self, bounds: tuple[float, ...]) -> None:
        """Begin anew with these boundaries: what was observed under others cannot be divided among them."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
