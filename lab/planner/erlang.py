"""How long does one wait for a stream, and how often is there none? Erlang's formulas, and Cobham's for lanes.

Assumes Poisson arrivals; Erlang C and Cobham also exponential times that are the same for all lanes. a = lambda S is the offered load in
streams, rho = a / c. Sources: Erlang 1917; Cobham, "Priority Assignment in Waiting Line Problems", Operations Research 2 (1954), in the
form for several servers.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, log


def erlang_b(streams: int, load: float) -> float:
    """The share of arrivals that find no free stream, where nobody waits. B0 = 1, Bk = a B / (k + a B)."""
    blocked = 1.0
    for k in range(1, streams + 1):
        blocked = load * blocked / (k + load * blocked)
    return blocked


def erlang_c(streams: int, load: float) -> float:
    """The share of arrivals that have to wait: B / (1 - rho (1 - B)); 1 where the load is as much as the streams, or more."""
    if load >= streams:
        return 1.0
    blocked, rho = erlang_b(streams, load), load / streams
    return blocked / (1.0 - rho * (1.0 - blocked))


def mean_wait_s(streams: int, rps: float, generation_s: float) -> float:
    """Of one lane: C / (c / S - lambda); inf at a load of 1 or more."""
    spare_rps = streams / generation_s - rps
    return erlang_c(streams, rps * generation_s) / spare_rps if spare_rps > 0 else inf


def wait_quantile_s(streams: int, rps: float, generation_s: float, q: float) -> float:
    """Of one lane: those who wait do so exponentially, so W(q) = ln(C / (1 - q)) / (c / S - lambda), at least 0."""
    spare_rps = streams / generation_s - rps
    waits = erlang_c(streams, rps * generation_s)
    if spare_rps <= 0:
        return inf
    return max(0.0, log(waits / (1.0 - q)) / spare_rps) if waits > 0 else 0.0


def lane_waits_s(streams: int, lanes_rps: Sequence[float], generation_s: float) -> list[float]:
    """Of lanes in strict order of precedence: W0 / ((1 - s above) (1 - s above and own)), W0 = C S / c, s = lambda S / c summed."""
    waiting = erlang_c(streams, sum(lanes_rps) * generation_s) * generation_s / streams
    found, above = [], 0.0
    for rps in lanes_rps:
        own = above + rps * generation_s / streams
        found.append(waiting / ((1.0 - above) * (1.0 - own)) if own < 1.0 else inf)
        above = own
    return found


def finite_queue(streams: int, places: int, load: float) -> tuple[float, float]:
    """M/M/c/K: the share that finds every stream and every place taken, and the mean number waiting."""
    weights = [1.0]
    for k in range(1, streams + places + 1):
        weights.append(weights[-1] * load / min(k, streams))
        if weights[-1] > 1e280:
            weights = [weight / 1e280 for weight in weights]
    total = sum(weights)
    waiting = sum(max(0, k - streams) * weight for k, weight in enumerate(weights)) / total
    return weights[-1] / total, waiting
