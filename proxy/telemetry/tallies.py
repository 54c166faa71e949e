"""How is something counted on the path of a request, in a fraction of a microsecond?

Plain objects that are bound once and changed in place, by the event loop's thread alone: a counter is an attribute; what a histogram
observes is put on a list, and many values are sorted into its buckets at once: when it is read, and `fold` once a second before that.
(`prometheus_client`'s own take a lock and a label look-up per event, about 1 us each.)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Made(dict[K, V]):
    """What is not there when it is asked for is made."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[K], V]) -> None:
        self._make = make

    def __missing__(self, key: K) -> V:
        value = self[key] = self._make(key)
        return value


class Counter:
    """How often, or how much, since the start? `n` only grows; callers add to it directly."""

    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n: float = 0


class Histogram:
    """How are the observed values spread? `counts[i]` holds those in (bounds[i-1], bounds[i]], the last those above all."""

    __slots__ = ("_counts", "_new", "_sum", "bounds", "observe", "observe_all")

    observe: Callable[[float], None]
    """Count one value. The same function for the life of the histogram."""
    observe_all: Callable[[Iterable[float]], None]
    """Count many."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._new: list[float] = []  # observed, and not yet in a bucket
        self.observe = self._new.append
        self.observe_all = self._new.extend
        self.rebound(bounds)

    @property
    def counts(self) -> list[int]:
        """The values in each bucket."""
        self.fold()
        return self._counts

    @property
    def sum(self) -> float:
        """Of all values."""
        self.fold()
        return self._sum

    def fold(self) -> None:
        """Put what was observed since into its buckets. A bisection per bucket, however many values."""
        new = self._new
        if not new:
            return
        new.sort()
        self._sum += sum(new)
        below = 0
        for index, bound in enumerate(self.bounds):
            if below == len(new):
                break
            upto = bisect_right(new, bound, below)
            self._counts[index] += upto - below
            below = upto
        self._counts[-1] += len(new) - below
        new.clear()

    def rebound(self, bounds: tuple[float, ...]) -> None:
        """Begin anew with these boundaries: what was observed under others cannot be divided among them."""
        self.bounds = bounds
        self._new.clear()
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
