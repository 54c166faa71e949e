"""What do the samples say, and how sure is that? Quantiles, and confidence intervals from batch means.

Successive waits are correlated, so the error of their mean is not that of independent samples. The samples, in order, are cut into
BATCHES equal batches; if those are long enough, their means are nearly independent, and Student's t over them gives the interval (Law &
Kelton, Simulation Modeling and Analysis, 9.5.3). Where the means still follow each other (lag-1 correlation above LAG_MAX), or there are
too few samples, no interval is given rather than one that promises too much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

BATCHES = 20
BATCH_SAMPLES_MIN = 50
LAG_MAX = 0.3
_T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093,
)  # fmt: skip


def quantile(ordered: Sequence[float], q: float) -> float:
    """The smallest value that at least the share q of the ordered samples does not exceed. ValueError: no samples."""
    if not ordered:
        raise ValueError("no samples have no quantile")
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


def t_975(degrees: int) -> float:
    """Student's t for a two-sided 95 % interval."""
    return _T_975[degrees - 1] if degrees <= len(_T_975) else 1.96 + 2.4 / degrees


def interval(means: Sequence[float]) -> tuple[float, float] | None:
    """95 % around the mean of independent means; None: fewer than two."""
    n = len(means)
    if n < 2:
        return None
    mean = math.fsum(means) / n
    variance = math.fsum((each - mean) ** 2 for each in means) / (n - 1)
    half = t_975(n - 1) * math.sqrt(variance / n)
    return mean - half, mean + half


def batch_interval(samples: Sequence[float]) -> tuple[float, float] | None:
    """95 % around the mean of one run's samples, in their order; None: the run does not allow one."""
    size = len(samples) // BATCHES
    if size < BATCH_SAMPLES_MIN:
        return None
    means = [math.fsum(samples[index * size : (index + 1) * size]) / size for index in range(BATCHES)]
    mean = math.fsum(means) / BATCHES
    variance = math.fsum((each - mean) ** 2 for each in means)
    if variance and math.fsum((a - mean) * (b - mean) for a, b in pairwise(means)) / variance > LAG_MAX:
        return None
    return interval(means)


def summary(samples: Sequence[float]) -> dict[str, object]:
    """Mean, p50, p95, p99, max, and the mean's interval; all None where there are no samples."""
    if not samples:
        return dict.fromkeys(("mean", "p50", "p95", "p99", "max", "mean_ci95"))
    ordered = sorted(samples)
    found = batch_interval(samples)
    return {
        "mean": math.fsum(samples) / len(samples),
        "p50": quantile(ordered, 0.5),
        "p95": quantile(ordered, 0.95),
        "p99": quantile(ordered, 0.99),
        "max": ordered[-1],
        "mean_ci95": None if found is None else list(found),
    }
