"""What will be asked, and when? Arrivals, lengths and lanes, drawn from one seed: the same seed makes the same load.

Starts are intended ones: a request's time is drawn before the run and does not move because the target, or the client itself, is
late. A load that waits for answers before it asks again hides exactly the waits it should measure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from lab.bench.forms import CHAT, Form

TOKENS_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long are prompts, or answers? One of `choices` by weight, or lognormal with `mean` and `cv`."""

    choices: tuple[tuple[int, float], ...] = ()
    mean: float = 0.0
    cv: float = 0.0
    spelt: str = ""

    def draw(self, rng: Random) -> int:
        """One length in tokens, at least 1."""
        if len(self.choices) == 1:
            return self.choices[0][0]
        if self.choices:
            return rng.choices([tokens for tokens, _ in self.choices], [weight for _, weight in self.choices])[0]
        # A lognormal with mean m and coefficient of variation v: sigma^2 = ln(1 + v^2), mu = ln m - sigma^2 / 2.
        sigma2 = math.log(1.0 + self.cv**2)
        return min(TOKENS_MAX, max(1, round(rng.lognormvariate(math.log(self.mean) - sigma2 / 2, math.sqrt(sigma2)))))


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How do requests come? Gamma gaps with this `cv`: 1 is Poisson, 0 constant, above 1 bursts."""

    cv: float = 1.0
    spelt: str = "poisson"

    def times(self, rate_rps: float, duration_s: float, rng: Random) -> Iterator[float]:
        """Seconds since the start, ascending, below `duration_s`."""
        at = 0.0
        shape = 1.0 / self.cv**2 if self.cv else 0.0
        while True:
            at += rng.gammavariate(shape, 1.0 / (shape * rate_rps)) if shape else 1.0 / rate_rps
            if at >= duration_s:
                return
            yield at


@dataclass(frozen=True, slots=True)
class Lane:
    """A kind of caller: its key, and which part of the requests is its own. The name is ours; the key decides the real lane."""

    name: str
    key: str
    share: float


@dataclass(frozen=True, slots=True)
class Asked:
    """One request to be made. `at_s`: since the start of the step; None: as soon as a stream is free."""

    at_s: float | None
    lane: Lane | None
    prompt_tokens: int
    output_tokens: int
    stream: bool = True
    form: Form = CHAT


@dataclass(frozen=True, slots=True)
class Load:
    """One step: so many requests per second, or so many streams at once, or as a trace has it."""

    rate_rps: float | None = None
    concurrency: int | None = None

    @property
    def label(self) -> str:
        if self.rate_rps is not None:
            return f"{self.rate_rps:g}/s"
        if self.concurrency is None:
            return "trace"
        return f"{self.concurrency} streams" if self.concurrency > 1 else "1 stream"

    @property
    def size(self) -> float:
        """Where a step stands on the axis of a curve."""
        return self.rate_rps if self.rate_rps is not None else float(self.concurrency or 0)


@dataclass(frozen=True, slots=True)
class Demand:
    """All that is drawn. `trace`: replayed as it is, instead of arrivals."""

    prompts: Lengths
    outputs: Lengths
    arrivals: Arrivals = Arrivals()
    lanes: tuple[Lane, ...] = ()
    trace: tuple[Asked, ...] = ()
    seed: int = 0
    form: Form = CHAT

    def asked(self, load: Load, duration_s: float, round_number: int) -> Iterator[Asked]:
        """The requests of one step; without end where `load` is a concurrency."""
        if load.rate_rps is None and load.concurrency is None:
            yield from self.trace
            return
        rng = Random(f"{self.seed}/{round_number}/{load.label}")
        weights = [lane.share for lane in self.lanes]
        times: Iterator[float | None]
        times = iter(lambda: None, 0) if load.rate_rps is None else self.arrivals.times(load.rate_rps, duration_s, Random(rng.random()))
        for at_s in times:
            lane = rng.choices(self.lanes, weights)[0] if self.lanes else None
            yield Asked(at_s, lane, self.prompts.draw(rng), self.outputs.draw(rng), form=self.form)


def loads_of(rates: Sequence[float], streams: Sequence[int]) -> tuple[Load, ...]:
    """The ladder, in the order given."""
    return (*(Load(rate_rps=rate) for rate in rates), *(Load(concurrency=count) for count in streams))
