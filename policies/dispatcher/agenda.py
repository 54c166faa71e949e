"""When must something happen without being asked? Deadlines of the waiting, rests, pauses, ramps: one heap for all.

An item says itself when it is due; an entry that does not agree any more is dropped when it surfaces.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Generic, Protocol, TypeVar

NEVER = -1.0


class Due(Protocol):
    """What can be on the agenda. `due_at`: when, or NEVER."""

    due_at: float


D = TypeVar("D", bound=Due)


class Agenda(Generic[D]):
    """What is due, the earliest first; at the same instant, what was entered first."""

    __slots__ = ("_entered", "_size", "heap")

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, D]] = []  # always this list: whoever holds it may look at the first entry
        self._entered = 0
        self._size = 1024  # longest heap before stale entries are cleared out

    def enter(self, item: D, at: float | None) -> None:
        """The item is due then, and at no other time."""
        if at is None:
            item.due_at = NEVER
        elif at != item.due_at:
            item.due_at = at
            self._entered += 1
            heap = self.heap
            heappush(heap, (at, self._entered, item))
            if len(heap) > self._size:
                heap[:] = [entry for entry in heap if entry[2].due_at == entry[0]]
                heapify(heap)
                self._size = 2 * len(heap) + 1024

    def take(self, now: float) -> list[D]:
        """Takes all that is due."""
        heap = self.heap
        due = []
        while heap and heap[0][0] <= now:
            at, _, item = heappop(heap)
            if item.due_at == at:
                item.due_at = NEVER
                due.append(item)
        return due

    def next_at(self) -> float | None:
        """When is the next one due?"""
        heap = self.heap
        while heap and heap[0][2].due_at != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None
