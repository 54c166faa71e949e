"""How are durations and counts drawn? `exponential:8s`, `lognormal:8s,cv=2`, `fixed:8s`, and the same for numbers of tokens.

A draw is a function without arguments, over a generator of its own: what one part of a workload draws never shifts another's.
cv is the coefficient of variation: standard deviation / mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from proxy.settings.problems import did_you_mean
from proxy.settings.values import duration

Draw = Callable[[], float]
SHAPES = ("exponential", "lognormal", "gamma", "fixed")
CV_OF = {"exponential": 1.0, "fixed": 0.0}


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution with this mean; `values`: one of these instead, each as likely."""

    shape: str
    mean: float
    cv: float = 1.0
    values: tuple[float, ...] = ()

    def draw(self, generator: Random) -> Draw:
        """Draws from it with this generator."""
        if self.values:
            values = self.values
            return lambda: generator.choice(values)
        if self.shape == "fixed" or self.mean == 0 or self.cv == 0:
            return lambda: self.mean
        if self.shape == "exponential":
            log, uniform, minus_mean = math.log, generator.random, -self.mean
            return lambda: minus_mean * log(1.0 - uniform())
        if self.shape == "gamma":
            shape = 1.0 / self.cv**2
            return lambda: generator.gammavariate(shape, self.mean / shape)
        sigma2 = math.log(1.0 + self.cv**2)
        mu, sigma = math.log(self.mean) - sigma2 / 2.0, math.sqrt(sigma2)
        return lambda: generator.lognormvariate(mu, sigma)


def options(text: str, known: Sequence[str]) -> tuple[str, dict[str, str]]:
    """A name before a colon, and what follows as `key=value`; what has no key is under "". ValueError: a key that is not known."""
    name, _, rest = text.partition(":")
    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = part.partition("=")
        key, value = (key.strip(), value.strip()) if equals else ("", part)
        if key in found:
            raise ValueError(f"{key or value} is given twice")
        if key and key not in known:
            raise ValueError(f'knows no "{key}"{did_you_mean(key, known)}')
        found[key] = value
    return name.strip(), found


def time_spread(text: str) -> Spread:
    """A distribution of seconds: `exponential:8s`, `lognormal:8s,cv=2`, `gamma:8s,cv=2`, `fixed:8s`, or a bare `8s`."""
    return _spread(text, lambda value: float(duration(value)), "8s")


def token_spread(text: str) -> Spread:
    """A distribution of whole numbers: `256`, `128,2048` (each as likely), `lognormal:200,cv=1`, `exponential:200`."""
    if ":" not in text:
        values = tuple(_count(part) for part in text.split(","))
        return Spread("fixed", sum(values) / len(values), 0.0, values if len(values) > 1 else ())
    return _spread(text, _count, "200")


def _spread(text: str, read: Callable[[str], float], example: str) -> Spread:
    if ":" not in text:
        return Spread("fixed", read(text), 0.0)
    shape, given = options(text, ("mean", "cv"))
    if shape not in SHAPES:
        raise ValueError(f'knows no distribution "{shape}"{did_you_mean(shape, SHAPES)}')
    mean = given.get("", given.get("mean"))
    if mean is None:
        raise ValueError(f"needs a mean: {shape}:{example}")
    if "cv" in given and shape in CV_OF:
        raise ValueError(f"{shape} has no cv of its own; write lognormal:{mean},cv={given['cv']}")
    return Spread(shape, read(mean), number(given["cv"]) if "cv" in given else CV_OF.get(shape, 1.0))


def number(text: str) -> float:
    """A number that is not negative. ValueError otherwise."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ValueError(f'"{text[:40]}" must be a number, not negative')
    return value


def _count(text: str) -> float:
    if not text.strip().isdecimal() or len(text) > 9:
        raise ValueError(f'"{text[:40]}" must be a whole number of tokens')
    return float(text)
