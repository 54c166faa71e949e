"""Which of the eligible backends?

The one with the lowest (in flight + 1) / (cap x weight): where the next request would leave the lowest load. Ties are broken by a
number drawn each time a backend's load changes, from the dispatcher's seeded generator. A hash of the request over all that tie
(rendezvous) would look at each of them; an idle platform of a thousand backends is a thousand ties. The draw keeps every step
O(log n) and spreads as evenly.

The order is a heap of entries; an entry that is no longer its backend's own is dropped when it surfaces. A backend whose load changes
gets its new entry when somebody next asks for the best: what changed in between costs nothing.
"""

from __future__ import annotations

import random
from collections.abc import Container
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

# A full backend ranks behind every one with room, yet keeps its rank among the full: requests without a slot go there.
FULL = 1e9


class Ranked:
    """What can be selected. `entry` is its place in the one selection that offers it; None: not offered."""

    __slots__ = ("entry", "fresh", "name", "number", "score")

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number  # unique: decides where everything else is equal
        self.entry: tuple[float, float, int, Ranked] | None = None
        self.score = 0.0  # under its latest load
        self.fresh: object = None  # the selection that has yet to give it an entry for that load


R = TypeVar("R", bound=Ranked)


class Selection(Generic[R]):
    """The backends on offer, best first."""

    __slots__ = ("_draw", "_fresh", "_heap", "_size")

    def __init__(self, generator: random.Random) -> None:
        self._draw = generator.random
        self._heap: list[tuple[float, float, int, R]] = []
        self._fresh: list[R] = []
        self._size = 64  # longest heap before stale entries are cleared out

    def __bool__(self) -> bool:
        """May something be on offer? False: certainly nothing."""
        return bool(self._heap or self._fresh)

    def offer(self, backend: R, in_flight: int, cap: int, weight: float) -> None:
        """Offers the backend under its present load, whatever it was offered under before."""
        score = (in_flight + 1) / (cap * weight)
        backend.score = score if in_flight < cap else score + FULL
        if backend.fresh is not self:
            backend.fresh = self
            backend.entry = None
            self._fresh.append(backend)

    def best(self, excluded: Container[str] = ()) -> R | None:
        """The best backend not named in `excluded`, full ones last. None: nothing is on offer."""
        heap = self._heap
        if self._fresh:
            self._enter()
        if heap and not excluded and (first := heap[0])[3].entry is first:
            return first[3]  # by far the most frequent case
        aside = []
        found = None
        while heap:
            entry = heap[0]
            backend = entry[3]
            if backend.entry is not entry:
                heappop(heap)
            elif excluded and backend.name in excluded:
                aside.append(heappop(heap))
            else:
                found = backend
                break
        for entry in aside:
            heappush(heap, entry)
        return found

    def _enter(self) -> None:
        """Those whose load has changed get their entries."""
        heap = self._heap
        for backend in self._fresh:
            if backend.fresh is self:
                backend.fresh = None
                backend.entry = entry = (backend.score, self._draw(), backend.number, backend)
                heappush(heap, entry)
        self._fresh.clear()
        if len(heap) > self._size:
            heap[:] = [entry for entry in heap if entry[3].entry is entry]
            heapify(heap)
            self._size = 4 * len(heap) + 64


def withdraw(backend: Ranked) -> None:
    """The backend is no longer on offer, wherever it was."""
    backend.entry = backend.fresh = None
