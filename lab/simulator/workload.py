"""Who asks, when, and for how much? Streams of simulated callers: by rate and lane, or from a trace.

Each lane has generators of its own for arrivals and sizes, seeded by its name and the seed: two files under the same options see the
same callers with the same answers to be generated, whatever becomes of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice, takewhile
from random import Random
from typing import NamedTuple

from lab.simulator.draws import Draw, Spread, number, options
from policies.model import Request
from proxy.settings.problems import did_you_mean

GAPS = {"poisson": "exponential", "gamma": "gamma", "fixed": "fixed", "constant": "fixed"}


class Caller(NamedTuple):
    """One caller: its request, and what it would cost a backend. `service_s`: slot-holding time, where it does not follow from tokens."""

    at: float  # seconds since the start
    request: Request
    service_s: float
    prompt_tokens: int
    output_tokens: int
    job: bool = False  # one of a batch that is counted to its end


@dataclass(frozen=True, slots=True)
class Arrivals:
    """`--arrivals`: requests per second by lane, and how the gaps between them are spread."""

    rates: Mapping[str, float]
    gap: str = "exponential"
    cv: float = 1.0

    @property
    def rps(self) -> float:
        """Over all lanes."""
        return sum(self.rates.values())


def arrivals(text: str, lanes: Sequence[str]) -> Arrivals:
    """Reads `fast=3,slow=6`, `poisson:...`, `gamma:cv=2,fast=3`, `fixed:fast=1`. ValueError says what is wrong with it."""
    kind, given = options(text if ":" in text else f"poisson:{text}", ("cv", *lanes))
    if kind not in GAPS:
        raise ValueError(f'knows no arrivals "{kind}"{did_you_mean(kind, GAPS)}')
    if "" in given:
        raise ValueError(f'"{given[""]}" must be LANE=RATE, such as {lanes[0]}=3')
    cv = number(given.pop("cv")) if "cv" in given else 1.0
    rates = {lane: number(given[lane]) for lane in lanes if lane in given}
    if not sum(rates.values()):
        raise ValueError(f"must give a rate above zero, such as {lanes[0]}=3")
    return Arrivals(rates, GAPS[kind], cv)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large requests are. `service`: of slot-holding times; None: they follow from the tokens, by the engine's model."""

    service: Spread | None
    prompt_tokens: Spread | None = None
    output_tokens: Spread | None = None


@dataclass(frozen=True, slots=True)
class Tenants:
    """Whose key do the callers of a lane present? The file's own keys of that lane, in turn; by lane index."""

    keys: Mapping[int, Sequence[tuple[str, str]]] = field(default_factory=dict)  # name, traffic

    def of(self, lane: int, name: str, traffic: str | None = None) -> Callable[[], tuple[str, str]]:
        """The next key, each time it is asked."""
        keys = [key for key in self.keys.get(lane, ()) if traffic is None or key[1] == traffic] or [(name, traffic or "interactive")]
        turn = count()
        return lambda: keys[next(turn) % len(keys)]


def by_rate(
    given: Arrivals, sizes: Sizes, lanes: Sequence[str], tenants: Tenants, seed: int, *, told_apart: bool = True
) -> Iterator[Caller]:
    """Callers without end, in order of arrival. `told_apart`: their keys or ids may matter; else those of a lane send one request."""
    names = [name for name, rate in given.rates.items() if rate]
    measured = sizes.prompt_tokens is not None or sizes.output_tokens is not None or sizes.service is None
    if not (measured or told_apart):
        return _alike(given, sizes, lanes, names, tenants, seed)
    streams = [_lane(given, sizes, lanes.index(name), name, tenants, seed, measured) for name in names]
    return streams[0] if len(streams) == 1 else merged(*streams)


def merged(*streams: Iterator[Caller]) -> Iterator[Caller]:
    """Several streams as one, in order of arrival."""
    heap = [(caller.at, index, caller, stream) for index, stream in enumerate(streams) if (caller := next(stream, None)) is not None]
    heapq.heapify(heap)
    replace = heapq.heapreplace
    while heap:
        _, index, caller, stream = heap[0]
        yield caller
        for following in stream:
            replace(heap, (following.at, index, following, stream))
            break
        else:
            heapq.heappop(heap)


def _alike(given: Arrivals, sizes: Sizes, lanes: Sequence[str], names: Sequence[str], tenants: Tenants, seed: int) -> Iterator[Caller]:
    """Nothing tells the callers of a lane apart but time: they send the same request. One heap of who comes next in each lane."""
    heap = []
    for index, name in enumerate(names):
        lane = lanes.index(name)
        tenant, traffic = tenants.of(lane, name)()
        gap, service, _, _ = _draws(given, sizes, name, seed)
        heap.append((gap(), index, Request(name, tenant, lane, traffic), gap, service))
    heapq.heapify(heap)
    new, replace = tuple.__new__, heapq.heapreplace
    while True:
        at, index, alike, gap, service = heap[0]
        yield new(Caller, (at, alike, service(), 0, 0, False))
        replace(heap, (at + gap(), index, alike, gap, service))


def _lane(given: Arrivals, sizes: Sizes, lane: int, name: str, tenants: Tenants, seed: int, measured: bool) -> Iterator[Caller]:
    gap, service, prompt, output = _draws(given, sizes, name, seed)
    at, key = 0.0, tenants.of(lane, name)
    for turn in count():
        at += gap()
        tenant, traffic = key()
        if not measured:
            yield Caller(at, Request(f"{name}-{turn}", tenant, lane, traffic), service(), 0, 0)
            continue
        prompt_tokens, output_tokens = int(prompt()), max(1, int(output()))
        yield Caller(
            at, sized(f"{name}-{turn}", tenant, lane, traffic, prompt_tokens, output_tokens), service(), prompt_tokens, output_tokens
        )


def _draws(given: Arrivals, sizes: Sizes, name: str, seed: int) -> tuple[Draw, Draw, Draw, Draw]:
    """The gap to the next caller of a lane, and what he asks for."""
    gap = Spread(given.gap, 1.0 / given.rates[name], given.cv).draw(Random(f"{seed} arrivals {name}"))
    return gap, *size_draws(sizes, f"{seed} sizes {name}")


def size_draws(sizes: Sizes, seed: str) -> tuple[Draw, Draw, Draw]:
    """Slot-holding time, prompt tokens, output tokens: each drawn from a generator of its own."""
    spreads = (
        sizes.service or Spread("fixed", 0.0),
        sizes.prompt_tokens or Spread("fixed", 0.0),
        sizes.output_tokens or Spread("fixed", 1.0),
    )
    service, prompt, output = (spread.draw(Random(f"{seed} {index}")) for index, spread in enumerate(spreads))
    return service, prompt, output


def sized(name: str, tenant: str, lane: int, traffic: str, prompt_tokens: int, output_tokens: int) -> Request:
    """A streamed request of known size, as the routes see it; four bytes a token in the body."""
    return Request(
        name, tenant, lane, traffic, prompt_tokens=prompt_tokens, max_tokens=output_tokens, streamed=True, body_bytes=4 * prompt_tokens
    )


def batch(jobs: int, sizes: Sizes, lane: int, tenants: Tenants, seed: int) -> Iterator[Caller]:
    """A batch handed in at once, at the start."""
    service, prompt, output = size_draws(sizes, f"{seed} jobs")
    key = tenants.of(lane, "batch", "batch")
    for number_ in range(jobs):
        prompt_tokens, output_tokens = int(prompt()), max(1, int(output()))
        request = sized(f"job-{number_}", key()[0], lane, "batch", prompt_tokens, output_tokens)
        yield Caller(0.0, request, service(), prompt_tokens, output_tokens, True)


def until(callers: Iterator[Caller], requests: int | None, duration_s: float | None) -> Iterator[Caller]:
    """The first so many of them, or those within that time, whichever ends first."""
    if requests is not None:
        callers = islice(callers, requests)
    return callers if duration_s is None else takewhile(lambda caller: caller.at < duration_s, callers)
