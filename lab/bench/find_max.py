"""What is the most a target carries within the SLO? A search over trials, each a step of its own.

First the streams: doubled until the SLO breaks, then halved in between. Then the rate: from what those streams answered per second,
as they come at random. The rate is lower than streams / generation time, for a target that is never idle makes arrivals wait.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from lab.bench.demand import Load

JSON = dict[str, Any]
Trial = Callable[[Load], Awaitable[JSON]]
STREAMS_MAX = 4096
EXACT_BELOW = 64  # up to here to the stream, beyond within 3 %
RATE_WITHIN = 0.05
RATE_TRIALS_MAX = 8


async def find_max(trial: Trial) -> JSON:
    """`trial` measures one load and answers its figures, with `slo_kept`. Nulls where not even one stream keeps it."""
    streams, at_streams = await _most_streams(trial)
    if at_streams is None:
        return {"concurrency": None, "rate_rps": None, "max_streams": None, "generation_time_s": None}
    rate = await _highest_rate(trial, at_streams["throughput_rps"])
    generation_s = at_streams["e2e_s"]["mean"] if at_streams["e2e_s"] else None
    return {"concurrency": streams, "rate_rps": rate, "max_streams": streams, "generation_time_s": generation_s}


async def _most_streams(trial: Trial) -> tuple[int, JSON | None]:
    kept, figures = 0, None
    broken = 1
    while broken <= STREAMS_MAX:
        result = await trial(Load(concurrency=broken))
        if not result["slo_kept"]:
            break
        kept, figures = broken, result
        broken *= 2
    while broken - kept > (1 if kept < EXACT_BELOW else max(1, round(kept * 0.03))) and broken <= STREAMS_MAX:
        middle = (kept + broken) // 2
        result = await trial(Load(concurrency=middle))
        if result["slo_kept"]:
            kept, figures = middle, result
        else:
            broken = middle
    return kept, figures


async def _highest_rate(trial: Trial, answered_rps: float) -> float | None:
    """Between nothing and somewhat more than the streams answered; each trial halves what is left."""
    kept, broken = 0.0, round_rate(answered_rps * 1.1)
    tried = round_rate(answered_rps * 0.8)
    for _ in range(RATE_TRIALS_MAX):
        if not kept < tried < broken or broken - kept <= RATE_WITHIN * broken:
            break
        if (await trial(Load(rate_rps=tried)))["slo_kept"]:
            kept = tried
        else:
            broken = tried
        tried = round_rate((kept + broken) / 2)
    return kept or None


def round_rate(rate_rps: float) -> float:
    """To three figures, so that reports can be read."""
    return float(f"{rate_rps:.3g}")
