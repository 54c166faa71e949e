"""How fast is this machine at this moment? A loop of what the path is made of, to measure everything else by.

A figure divided by the loop's, both taken within a second, is nearly the same on another machine and under another load.
"""

from __future__ import annotations

import time
from heapq import heappop, heappush

TURNS = 100
_SECONDS = 0.05
_TEXT = b'data: {"choices":[{"index":0,"delta":{"content":" token"},"finish_reason":null}]}\n\n'


class _Seen:
    __slots__ = ("count", "last")

    def __init__(self) -> None:
        self.count = 0
        self.last = 0.0

    def note(self, at: float) -> bool:
        if at < self.last:
            return False
        self.last = at
        self.count += 1
        return True


def loop() -> int:
    """Calls, attributes, a table, a heap, a search of bytes: a hundred times."""
    seen, table, heap = _Seen(), dict[int, tuple[int, bytes]](), list[tuple[float, int]]()
    for number in range(TURNS):
        if seen.note(number * 0.5):
            table[number & 15] = (number, _TEXT[number & 7 :])
        heappush(heap, (-1.0 * number, number))
        if len(heap) > 16:
            heappop(heap)
        if _TEXT.find(b'"usage"') >= 0 or not _TEXT.endswith(b"\n\n"):
            seen.count -= 1
    return seen.count + len(table)


def calibrate() -> float:
    """Seconds that the loop takes now, at its best of a twentieth of a second."""
    best, end = float("inf"), time.perf_counter() + _SECONDS
    while (began := time.perf_counter()) < end:
        loop()
        best = min(best, time.perf_counter() - began)
    return best
