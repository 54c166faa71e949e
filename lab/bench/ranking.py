"""Which platform is the best buy, and where does each bend? Judged from the figures of its steps alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

JSON = dict[str, Any]
WEIGHTS: dict[str, dict[str, float]] = {
    "realtime": {"latency": 0.5, "throughput": 0.3, "cost": 0.2},
    "batch": {"latency": 0.1, "throughput": 0.6, "cost": 0.3},
}
JUMP = 2.0  # from one step to the next: beyond what more load alone makes of a latency


def knee(steps: Sequence[JSON]) -> JSON | None:
    """Where does p95 jump? The step before the largest growth of TTFT p95 or TPOT p95; None if neither ever doubles."""
    best: JSON | None = None
    for before, after in pairwise(steps):
        for metric in ("ttft", "tpot"):
            low, high = (p95(step, metric) for step in (before, after))
            if low and high and high / low >= JUMP and (best is None or high / low > best["ratio"]):
                best = {
                    "at": before["label"],
                    "next": after["label"],
                    "metric": metric,
                    "p95_s": low,
                    "next_p95_s": high,
                    "ratio": high / low,
                }
    return best


def best_step(steps: Sequence[JSON], with_slo: bool) -> JSON | None:
    """At which step would one run this platform? Of those that keep the SLO the cheapest, else (no price) the most useful."""
    chosen = [step for step in steps if step.get("slo_kept")] if with_slo else [step for step in steps if step["requests"]["answered"]]
    if not chosen:
        return None
    priced = [step for step in chosen if cost_of(step, with_slo) is not None]
    if priced:
        return min(priced, key=lambda step: (cost_of(step, with_slo), -step["output_tokens_per_s"]))
    return max(chosen, key=lambda step: step["goodput_rps" if with_slo else "output_tokens_per_s"])


def cost_of(step: JSON, with_slo: bool) -> float | None:
    """Dollars per 10,000 tokens, under the SLO if there is one."""
    cost: float | None = step.get("cost_per_10k_tokens_slo" if with_slo else "cost_per_10k_tokens")
    return cost


def by_cost(best: Mapping[str, JSON | None], with_slo: bool) -> list[JSON]:
    """Platforms from the cheapest on; those that never keep the SLO, or have no price, come last, without a place."""
    rows: list[JSON] = []
    for name, step in best.items():
        cost = cost_of(step, with_slo) if step is not None else None
        why = "" if cost is not None else ("no price" if step is not None else "keeps the SLO at no step")
        rows.append({"platform": name, "at": step["label"] if step else None, "cost_per_10k_tokens": cost, "why_not": why})
    rows.sort(key=lambda row: (row["cost_per_10k_tokens"] is None, row["cost_per_10k_tokens"] or 0.0))
    cheapest = rows[0]["cost_per_10k_tokens"] if rows else None
    for place, row in enumerate(rows, 1):
        cost = row["cost_per_10k_tokens"]
        row["place"] = place if cost is not None else None
        row["times_the_cheapest"] = cost / cheapest if cost is not None and cheapest else None
    return rows


def by_weights(best: Mapping[str, JSON | None], weights: Mapping[str, float], with_slo: bool) -> list[JSON]:
    """Platforms by a weighted score from 0 to 1, the best first. On each count the best platform has 1, the others their part of it.

    Latency: the mean of the parts of TTFT p95 and TPOT p95. Without any price, cost counts for nothing and the other weights are
    scaled up. A platform that never keeps the SLO has 0.
    """
    standing = {name: step for name, step in best.items() if step is not None}
    costs = {name: cost_of(step, with_slo) for name, step in standing.items()}
    parts = {
        "latency": _mean(_least({name: p95(step, metric) for name, step in standing.items()}) for metric in ("ttft", "tpot")),
        "throughput": _most({name: step["goodput_rps" if with_slo else "output_tokens_per_s"] for name, step in standing.items()}),
        "cost": _least(costs),
    }
    counted = {count: weight for count, weight in weights.items() if count != "cost" or any(costs.values())}
    scale = sum(counted.values()) or 1.0
    rows: list[JSON] = [
        {
            "platform": name,
            "at": standing[name]["label"] if name in standing else None,
            "score": sum(weight / scale * parts[count].get(name, 0.0) for count, weight in counted.items()),
            **{count: parts[count].get(name, 0.0) for count in counted},
        }
        for name in best
    ]
    rows.sort(key=lambda row: -row["score"])
    return [{"place": place, **row} for place, row in enumerate(rows, 1)]


def p95(step: JSON, metric: str) -> float | None:
    """Of `ttft`, `tpot` or `e2e`, in seconds."""
    figures = step.get(f"{metric}_s")
    value: float | None = figures["p95"] if figures else None
    return value


def _least(values: Mapping[str, float | None]) -> dict[str, float]:
    present = {name: value for name, value in values.items() if value is not None and value > 0}
    least = min(present.values(), default=0.0)
    return {name: least / value for name, value in present.items()}


def _most(values: Mapping[str, float | None]) -> dict[str, float]:
    present = {name: value for name, value in values.items() if value is not None}
    most = max(present.values(), default=0.0)
    return {name: value / most if most else 0.0 for name, value in present.items()}


def _mean(parts: Any) -> dict[str, float]:
    groups = [group for group in parts if group]
    names = dict.fromkeys(name for group in groups for name in group)
    return {name: sum(group.get(name, 0.0) for group in groups) / len(groups) for name in names}
