"""What do the calls of a step amount to? Quantiles, rates, SLO, cost and lateness, as the JSON report has them.

A rate counts a call whose answer streams partly inside the measured span by the part that does, so that neither the answers that
were running when it began nor those that outlast it bias it; requests and tokens per second are then of one piece. Quantiles of
latency are of answered calls; whether the SLO is kept is judged over all calls, those without an answer being infinitely late.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lab.bench.call import Call
from lab.bench.drive import Step

JSON = dict[str, Any]
WINDOW_S = 180.0  # the first window of a long run: clocks throttle, credits run out, caches fill
KEEPS_AT = 0.95
LATE_MIN_S = 0.005  # lateness of the client itself that nobody minds
LATE_SHARE = 0.05  # of TTFT p50: beyond it the figures are partly the client's
LATE_MAX_S = 0.025  # whatever the TTFT: tokens are stamped as late as the loop runs


@dataclass(frozen=True, slots=True)
class Slo:
    """Targets in seconds; None: none for that."""

    ttft_s: float | None = None
    tpot_s: float | None = None

    def met(self, call: Call) -> bool:
        """Did this call get what it should?"""
        if not call.ok:
            return False
        ttft_s = call.ttft_s if call.stream else None
        tpot_s = call.tpot_s
        return (self.ttft_s is None or ttft_s is None or ttft_s <= self.ttft_s) and (
            self.tpot_s is None or tpot_s is None or tpot_s <= self.tpot_s
        )


@dataclass(frozen=True, slots=True)
class Price:
    """What the platform charges: by the hour, or by the million tokens. Dollars."""

    per_hour: float | None = None
    per_million: tuple[float, float] | None = None

    def per_s(self, input_tokens_per_s: float, output_tokens_per_s: float) -> float:
        """What is spent each second at these rates?"""
        if self.per_hour is not None:
            return self.per_hour / 3600.0
        if self.per_million is not None:
            return (input_tokens_per_s * self.per_million[0] + output_tokens_per_s * self.per_million[1]) / 1e6
        return 0.0


def quantile(ordered: Sequence[float], q: float) -> float | None:
    """Of sorted values, linear between them; None where there is none."""
    if not ordered:
        return None
    at = q * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    if ordered[low] == ordered[high]:
        return ordered[low]  # also where both are infinite
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def spread(values: Iterable[float]) -> JSON | None:
    """How are these spread? None where there is nothing."""
    ordered = sorted(values)
    if not ordered:
        return None
    p50, p95, p99 = (quantile(ordered, q) for q in (0.5, 0.95, 0.99))
    return {
        "mean": statistics.fmean(ordered),
        "p50": p50,
        "p95": p95,
        "p99": p99,
        "max": ordered[-1],
        "p99_over_p50": p99 / p50 if p50 and p99 is not None else None,
    }


def step_figures(step: Step, slo: Slo | None, price: Price | None) -> JSON:
    """One step in numbers."""
    calls, begin_at, end_at = step.calls, step.began_at, step.until_at
    figures = call_figures(calls, begin_at, end_at, slo, price)
    lanes = sorted({call.lane for call in calls if call.lane})
    if lanes:
        figures["lanes"] = {
            name: call_figures([call for call in calls if call.lane == name], begin_at, end_at, slo, None) for name in lanes
        }
        figures["fairness"] = fairness(figures["lanes"])
    lengths = sorted({call.prompt_tokens_asked for call in calls})
    if 1 < len(lengths) <= 8:
        figures["by_prompt_tokens"] = {
            str(tokens): call_figures([call for call in calls if call.prompt_tokens_asked == tokens], begin_at, end_at, slo, None)
            for tokens in lengths
        }
    if end_at - begin_at > WINDOW_S:
        figures["windows"] = [
            {
                "from_s": from_at - begin_at,
                "to_s": to_at - begin_at,
                **call_figures([call for call in calls if from_at <= call.intended_at < to_at], from_at, to_at, slo, price),
            }
            for from_at, to_at in ((begin_at, begin_at + WINDOW_S), (begin_at + WINDOW_S, end_at))
        ]
    figures["client"] = client_figures(step, figures)
    return figures


def call_figures(calls: Sequence[Call], begin_at: float, end_at: float, slo: Slo | None, price: Price | None) -> JSON:
    """These calls in numbers, rates over this span."""
    span_s = max(1e-9, end_at - begin_at)
    answered = [call for call in calls if call.ok]

    def rate(chosen: Iterable[Call], amount: Callable[[Call], float]) -> float:
        return sum(amount(call) * _streamed_part(call, begin_at, end_at) for call in chosen) / span_s

    figures: JSON = {
        "requests": {
            "offered": len(calls),
            "answered": len(answered),
            "refused": dict(Counter(str(call.outcome) for call in calls if call.refused)),
            "failed": dict(Counter(str(call.outcome) for call in calls if not call.ok and not call.refused)),
        },
        "ttft_s": spread(call.ttft_s for call in answered if call.ttft_s is not None and call.stream),
        "tpot_s": spread(call.tpot_s for call in answered if call.tpot_s is not None),
        "e2e_s": spread(call.e2e_s for call in answered),
        "longest_gap_s": spread(call.longest_gap_s for call in answered if call.output_tokens > 1),
        "queue_wait_s": spread(call.queue_s for call in calls if call.queue_s is not None),
        "throughput_rps": rate(answered, lambda call: 1.0),
        "in_flight_mean": sum(max(0.0, min(call.ended_at, end_at) - max(call.intended_at, begin_at)) for call in calls) / span_s,
        "input_tokens_per_s": rate(answered, lambda call: call.prompt_tokens),
        "output_tokens_per_s": rate(answered, lambda call: call.output_tokens),
        "prompt_tokens_mean": statistics.fmean(call.prompt_tokens for call in answered) if answered else None,
        "output_tokens_mean": statistics.fmean(call.output_tokens for call in answered) if answered else None,
        "tokens_counted_by": "usage" if all(call.counted_by_usage for call in answered) else "events",
    }
    met = answered
    if slo is not None:
        met = [call for call in answered if slo.met(call)]
        figures["goodput_rps"] = rate(met, lambda call: 1.0)
        figures["slo_attainment"] = len(met) / len(calls) if calls else None
        figures["slo_kept"] = keeps(calls, slo)
    if price is not None:
        figures.update(_cost(figures, price, rate(met, lambda call: call.output_tokens), slo is not None))
    return figures


def keeps(calls: Sequence[Call], slo: Slo) -> bool:
    """Are the targets kept at p95, over all calls?"""
    judged = (
        (slo.ttft_s, [(call.ttft_s if call.ok else math.inf) for call in calls if call.stream or not call.ok]),
        (slo.tpot_s, [(call.tpot_s if call.ok else math.inf) for call in calls]),
    )
    for target_s, values in judged:
        at_s = quantile(sorted(value for value in values if value is not None), KEEPS_AT)
        if target_s is not None and at_s is not None and at_s > target_s:
            return False
    return bool(calls) and sum(call.ok for call in calls) >= KEEPS_AT * len(calls)


def fairness(lanes: JSON) -> JSON:
    """Who got what? Jain's index over the answered part of each lane's requests: 1 all alike, 1/n one lane has it all."""
    parts = [lane["requests"]["answered"] / lane["requests"]["offered"] for lane in lanes.values() if lane["requests"]["offered"]]
    ttfts = [lane["ttft_s"]["p95"] for lane in lanes.values() if lane["ttft_s"]]
    squares = sum(part * part for part in parts)
    answered = sum(lane["throughput_rps"] for lane in lanes.values())
    return {
        "answered_ratio": {
            name: lane["requests"]["answered"] / lane["requests"]["offered"] if lane["requests"]["offered"] else None
            for name, lane in lanes.items()
        },
        "share_of_answers": {name: lane["throughput_rps"] / answered if answered else None for name, lane in lanes.items()},
        "jain_index": sum(parts) ** 2 / (len(parts) * squares) if squares else None,
        "ttft_p95_ratio": max(ttfts) / min(ttfts) if ttfts and min(ttfts) > 0 else None,
    }


def client_figures(step: Step, figures: JSON) -> JSON:
    """Did the client itself keep up? `lagged`: it was late enough to be seen in the figures."""
    late = spread(call.late_s for call in step.calls)
    loop = spread(step.loop_late_s)
    typical = figures["ttft_s"]["p50"] if figures["ttft_s"] else 0.0
    bound_s = min(LATE_MAX_S, max(LATE_MIN_S, LATE_SHARE * typical))
    worst = max(late["p99"] if late else 0.0, loop["p99"] if loop else 0.0)
    wall_s = max(1e-9, step.ended_at - step.began_at)
    return {"late_s": late, "loop_late_s": loop, "core_share": step.cpu_s / wall_s, "bound_s": bound_s, "lagged": worst > bound_s}


def median_of(rounds: Sequence[JSON]) -> JSON:
    """The rounds of one step as one: counts are added, truths hold if most do, all other numbers are medians."""
    return {key: _merged(key, [figures.get(key) for figures in rounds]) for key in rounds[0]} if rounds else {}


def _merged(key: str, values: list[Any]) -> Any:
    present = [value for value in values if value is not None]
    if not present:
        return None
    if key == "requests":
        kinds = {kind: sum((Counter(value[kind]) for value in present), Counter()) for kind in ("refused", "failed")}
        return {
            **{kind: sum(value[kind] for value in present) for kind in ("offered", "answered")},
            **{k: dict(v) for k, v in kinds.items()},
        }
    first = present[0]
    if isinstance(first, dict):
        keys = dict.fromkeys(name for value in present for name in value)
        return {name: _merged(name, [value.get(name) for value in present]) for name in keys}
    if isinstance(first, list):
        return [median_of(list(group)) for group in zip(*present, strict=False)]
    if isinstance(first, bool):
        return any(present) if key == "lagged" else 2 * sum(present) > len(present)
    if isinstance(first, str):
        return first if all(value == first for value in present) else "mixed"
    return statistics.median(present)


def _part(from_at: float, to_at: float, begin_at: float, end_at: float) -> float:
    """Which part of one interval lies in the other?"""
    if to_at <= from_at:
        return 1.0 if begin_at <= from_at < end_at else 0.0
    return max(0.0, min(to_at, end_at) - max(from_at, begin_at)) / (to_at - from_at)


def _streamed_part(call: Call, begin_at: float, end_at: float) -> float:
    """Which part of this answer came within the span? Its tokens come evenly from the first to the last."""
    if call.first_token_at is None or call.last_token_at is None:
        return _part(call.intended_at, call.ended_at, begin_at, end_at)  # not streamed
    return _part(call.first_token_at, call.last_token_at, begin_at, end_at)


def _cost(figures: JSON, price: Price, met_tokens_per_s: float, with_slo: bool) -> JSON:
    """Dollars for 10,000 output tokens: of all, and of those whose requests met the SLO, who pay for the others too."""
    spent_per_s = price.per_s(figures["input_tokens_per_s"], figures["output_tokens_per_s"])
    tokens_per_s = figures["output_tokens_per_s"]
    return {
        "cost_per_hour": spent_per_s * 3600.0,
        "cost_per_10k_tokens": spent_per_s / tokens_per_s * 10_000 if tokens_per_s else None,
        "cost_per_10k_tokens_slo": spent_per_s / met_tokens_per_s * 10_000 if met_tokens_per_s and with_slo else None,
    }
