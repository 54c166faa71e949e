"""What has been spent, and for which pool?

Rented by the hour, a platform costs `backends x price x time`, idle and failing included, and all of it is attributed: a slot costs
price / cap of its backend per second; a pool owes for the seconds it held slots, as each is given back; what nobody
owes is idle time and falls to the first pool of the platform in the file's order. At each scrape

    amount = backends x price per second x time since the last scrape
    each later pool pays what it owes, all in the same proportion where that exceeds the amount, and owes the rest
    the first pool pays what remains

So the sum is exact at any instant, no counter falls, how often it is scraped changes no long-run share, and a pool's
long stream is paid for once it has ended. Paid by tokens, a platform costs what its answers' usage says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from proxy.telemetry.tallies import Counter


class Price(NamedTuple):
    """What a platform costs, in dollars: each backend per hour, or its tokens per million, or both."""

    per_hour: float = 0.0
    input_per_million: float = 0.0
    output_per_million: float = 0.0


class Rent:
    """The running cost of one platform rented by the hour. `cost(pool)` is the counter of what that pool has spent here."""

    def __init__(self, cost: Callable[[str], Counter], now: float) -> None:
        self._cost = cost
        self._paid_until = now
        self._per_s = 0.0
        self._slot_per_s: dict[str, float] = {}
        self._first = ""
        self._owed: dict[str, float] = {}

    def agree(self, per_hour: float, caps: dict[str, int], first: str, now: float) -> None:
        """From `now` on each backend of `caps` costs `per_hour`, and idle time falls to the pool `first`."""
        self.settle(now)
        self._per_s = per_hour / 3600.0 * len(caps)
        self._slot_per_s = {backend: per_hour / 3600.0 / cap for backend, cap in caps.items() if cap > 0}
        self._first = first
        if self._per_s:
            self._cost(first)  # there from the start, also where no pool uses the platform
        self._owed.pop(first, None)

    def held(self, pool: str, backend: str, seconds: float) -> None:
        """A pool has given back a slot that it held for so long."""
        if pool != self._first:
            self._owed[pool] = self._owed.get(pool, 0.0) + seconds * self._slot_per_s.get(backend, 0.0)

    def settle(self, now: float) -> None:
        """Pays for the time until `now`."""
        amount = max(0.0, (now - self._paid_until) * self._per_s)
        self._paid_until = now
        if not amount:
            return
        owed = sum(self._owed.values())
        ratio = min(1.0, amount / owed) if owed else 0.0
        for pool, debt in self._owed.items():
            self._cost(pool).n += debt * ratio
            self._owed[pool] = debt * (1.0 - ratio)
        self._cost(self._first).n += max(0.0, amount - owed)
