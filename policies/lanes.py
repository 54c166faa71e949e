"""Which waiting request goes next?

Lanes in order of precedence; a lane may be guaranteed a share of the dispatches. A lane is *ready* when some request in it has an
eligible backend with a free slot. Whenever a lane with a share is passed by a higher one while both are ready, it is owed the share;
the highest lane that is owed a whole dispatch goes and pays, else the highest ready lane. No credit is kept once nobody waits.
With one lane of share 1/n that makes n - 1 higher dispatches between two of its own, at most.

Inside a lane: order of arrival, over all waits of a request, so that a retry is back at the head. Those that may use the same backends
wait in one *line*; only the heads of lines are asked whether a backend is free for them, the oldest first. So a request
that nothing free can serve is passed by those that something can, and nobody walks through the waiting. Retries wait in as many lines as
there are sets of backends they have tried; where none of them can go, that is asked once for all (`Bars`).

Leaving costs nothing: a seat is marked, and dropped when it surfaces.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from heapq import heapify, heappop, heappush, heapreplace
from typing import TypeVar

from policies.model import Ticket

T = TypeVar("T")
Serves = frozenset[str] | None  # platforms that serve the request's model; None: all of its pool
Head = tuple[int, int, "Line"]  # order of the oldest in a line, the line's number, the line


class Seat:
    """One request's passage as the queue sees it: kept on the ticket from arrival to the end, and in a line while it waits."""

    __slots__ = ("due_at", "lane", "line", "order", "paid_twice", "since_at", "ticket")

    def __init__(self, order: int, lane: str) -> None:
        self.order = order  # of arrival, over the whole dispatcher
        self.lane = lane  # by name: it survives a reload
        self.line: Line | None = None  # None: it does not wait
        self.ticket: Ticket | None = None  # only while it waits
        self.since_at = 0.0
        self.due_at = -1.0  # while it waits: when it is refused
        self.paid_twice = False  # it was retried after its request had been fully sent


class Line:
    """Requests of one lane that may use the same backends, oldest first."""

    __slots__ = ("heads", "heap", "lane", "number", "serves", "size", "tried")

    def __init__(self, lane: Lane, number: int, serves: Serves, tried: frozenset[str], heads: list[Head]) -> None:
        self.lane = lane
        self.heads = heads  # where its head is announced
        self.number = number
        self.serves = serves
        self.tried = tried
        self.size = 0
        self.heap: list[tuple[int, Seat]] = []  # the first entry is the oldest's; behind it are some who have left

    def __iter__(self) -> Iterator[Seat]:
        """Those who wait, in no order."""
        return (seat for _, seat in self.heap if seat.line is self)

    def head(self) -> Seat | None:
        """The oldest."""
        return self.heap[0][1] if self.heap else None

    def add(self, seat: Seat) -> bool:
        """The seat waits here. Is it the oldest?"""
        seat.line = self
        self.size += 1
        heap = self.heap
        heappush(heap, (seat.order, seat))
        if len(heap) > 2 * self.size + 64:
            heap[:] = [entry for entry in heap if entry[1].line is self]
            heapify(heap)
        return heap[0][1] is seat

    def remove(self, seat: Seat) -> bool:
        """The seat no longer waits here. Was it the oldest?"""
        seat.line = None
        self.size -= 1
        heap = self.heap
        if heap[0][1] is not seat:
            return False
        heappop(heap)
        while heap and heap[0][1].line is not self:
            heappop(heap)
        return True


Find = Callable[[Line, Seat], T | None]  # a free backend that this seat may use now
Bars = Callable[["Lane", Serves], bool]  # is there certainly none for any retry of this lane? False: ask for each


class Lane:
    """Who waits in one lane of one pool."""

    __slots__ = (
        "_heads",
        "_lines",
        "_made",
        "_retries",
        "earns",
        "floor",
        "index",
        "max_wait_s",
        "name",
        "ordinary",
        "owed",
        "pays",
        "reserved",
        "share",
        "share_ratio",
        "waiting",
    )

    def __init__(self, index: int, name: str, max_wait_s: float, share: Fraction, floor: int) -> None:
        self.index = index
        self.name = name
        self.max_wait_s = max_wait_s
        self.share = share
        self.share_ratio = float(share)
        self.earns, self.pays = share.numerator, share.denominator  # when passed by, and for a dispatch; nothing is earned without a share
        self.floor = floor  # it dispatches only while more than this many slots are free
        self.reserved = 0  # places that are its own
        self.owed = 0  # in units of 1 / `pays` dispatches
        self.waiting = 0
        self.ordinary: OrderedDict[int, Seat] = OrderedDict()  # by order of arrival; without retries, which take no place
        self._lines: dict[tuple[Serves, frozenset[str]], Line] = {}
        self._made = 0
        self._heads: list[Head] = []  # of lines, oldest first; stale ones are dropped as they surface
        self._retries: dict[Serves, list[Head]] = {}  # the same of retries: a line for each set of backends tried, so they may be many

    def lines(self) -> Iterator[Line]:
        """The lines in which somebody waits."""
        return (line for line in tuple(self._lines.values()) if line.size)

    def seats(self) -> list[Seat]:
        """Everybody, oldest first."""
        return sorted((seat for line in self._lines.values() for seat in line), key=lambda seat: seat.order)

    def oldest(self) -> Seat | None:
        """Who arrived first of those who wait?"""
        heads = (seat for line in self._lines.values() if (seat := line.head()) is not None)
        return min(heads, key=lambda seat: seat.order, default=None)

    def newest(self) -> Seat | None:
        """Who is the first to be pushed out? Never a retry."""
        return self.ordinary[next(reversed(self.ordinary))] if self.ordinary else None

    def add(self, seat: Seat, serves: Serves, tried: frozenset[str]) -> None:
        """The seat waits from now on; with a backend behind it (`tried`), as a retry."""
        key = (serves, tried)
        line = self._lines.get(key)
        if line is None:
            self._made += 1
            heads = self._retries.setdefault(serves, []) if tried else self._heads
            line = self._lines[key] = Line(self, self._made, serves, tried, heads)
        if line.add(seat):
            self._announce(line)
        if not tried:
            self.ordinary[seat.order] = seat
        self.waiting += 1

    def remove(self, seat: Seat) -> None:
        """The seat no longer waits."""
        line = seat.line
        assert line is not None, "the seat does not wait"
        was_head = line.remove(seat)
        self.ordinary.pop(seat.order, None)
        self.waiting -= 1
        if not self.waiting:
            self.owed = 0
        if was_head and line.heap:
            heads = line.heads
            if heads and heads[0][2] is line:
                heapreplace(heads, (line.heap[0][0], line.number, line))
            else:
                self._announce(line)
        elif not line.size and line.tried:  # those of retries are many and short-lived
            del self._lines[line.serves, line.tried]

    def ready(self, find: Find[T], bars: Bars | None = None) -> tuple[Seat, T] | None:
        """The oldest request for which a backend is free, and that backend. None: the lane is not ready."""
        found = _first(self._heads, find) if self._heads else None
        for serves, heads in self._retries.items():
            if heads and not (bars is not None and bars(self, serves)):
                retry = _first(heads, find)
                if retry is not None and (found is None or retry[0].order < found[0].order):
                    found = retry
        return found

    def _announce(self, line: Line) -> None:
        heads = line.heads
        heappush(heads, (line.heap[0][0], line.number, line))
        if len(heads) > 2 * len(self._lines) + 64:
            heads[:] = [(each.heap[0][0], each.number, each) for each in self._lines.values() if each.heap and each.heads is heads]
            heapify(heads)


def _first(heads: list[Head], find: Find[T]) -> tuple[Seat, T] | None:
    """The oldest of these for which a backend is free."""
    passed: list[Head] = []
    found = None
    while heads:
        order, _, line = heads[0]
        waiting = line.heap
        if not waiting or waiting[0][0] != order:
            heappop(heads)
            continue
        seat = waiting[0][1]
        use = find(line, seat)
        if use is not None:
            found = (seat, use)
            break
        passed.append(heappop(heads))
    for head in passed:
        heappush(heads, head)
    return found


def pick(lanes: Sequence[Lane], find: Find[T], bars: Bars | None = None) -> tuple[Seat, T] | None:
    """Who goes next, and where? None: no lane is ready. Whoever is picked must be dispatched: what is owed has been settled."""
    highest: tuple[Seat, T] | None = None
    owed: tuple[Lane, tuple[Seat, T]] | None = None
    for lane in lanes:
        if not lane.waiting:
            continue
        found = lane.ready(find, bars)
        if found is None:
            continue
        if highest is not None:
            lane.owed += lane.earns
        else:
            highest = found
        if owed is None and lane.earns and lane.owed >= lane.pays:
            owed = (lane, found)
    if owed is None:
        return highest
    lane, found = owed
    lane.owed -= lane.pays
    return found
