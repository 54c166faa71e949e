"""Is it worse than last week? Conditions on a report's figures, absolute or against an earlier report of the same steps."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from proxy.settings.values import duration

JSON = dict[str, Any]
_CONDITION = re.compile(r"([a-z0-9_]+(?:\.[a-z0-9_]+)*)\s*(<=|>=|<|>)\s*([0-9][0-9.]*)\s*(x|%|ms|s|m)?")
_OPERATORS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_SPREADS = ("ttft", "tpot", "e2e", "longest_gap", "queue_wait")
_OF_SPREAD = ("mean", "p50", "p95", "p99", "max", "p99_over_p50")
_PLAIN = (
    "throughput_rps",
    "output_tokens_per_s",
    "input_tokens_per_s",
    "goodput_rps",
    "slo_attainment",
    "cost_per_10k_tokens",
    "cost_per_10k_tokens_slo",
)
_OF_REQUESTS = ("offered", "answered", "refused", "failed")


@dataclass(frozen=True, slots=True)
class Condition:
    """Fails a run. `relative`: `value` is a multiple of the baseline's."""

    metric: str
    operator: str
    value: float
    relative: bool
    spelt: str

    def holds(self, now: float, before: float | None) -> bool:
        """Does it fail this figure?"""
        if self.relative:
            return before is not None and bool(_OPERATORS[self.operator](now, self.value * before))
        return bool(_OPERATORS[self.operator](now, self.value))


def condition(text: str) -> Condition:
    """`ttft.p95 > 1.2x`, `goodput_rps < 90%` (of the baseline's), `tpot.p99 > 150ms`. Raises ValueError."""
    found = _CONDITION.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} must be a figure, a comparison and a number: 'ttft.p95 > 1.2x' or 'goodput_rps < 3'")
    metric, compared, number, unit = found.groups()
    first, _, rest = metric.partition(".")
    known = (first in _SPREADS and rest in _OF_SPREAD) or (metric in _PLAIN) or (first == "requests" and rest in _OF_REQUESTS)
    if not known:
        names = [*(f"{name}.p95" for name in _SPREADS), *_PLAIN, *(f"requests.{name}" for name in _OF_REQUESTS)]
        raise ValueError(f"{metric!r} is not a figure of the report; there are {', '.join(names)}")
    try:
        value = float(duration(number + unit)) if unit in ("ms", "s", "m") else float(number) / (100 if unit == "%" else 1)
    except ValueError:
        raise ValueError(f"{number!r} in {text!r} is not a number") from None
    return Condition(metric, compared, value, unit in ("x", "%"), text.strip())


def figure(step: JSON, metric: str) -> float | None:
    """The figure of a step that a condition names. None: the step has none."""
    first, _, rest = metric.partition(".")
    if first == "requests":
        value = step["requests"][rest]
        return float(sum(value.values())) if isinstance(value, dict) else float(value)
    found = (step.get(f"{first}_s") or {}).get(rest) if first in _SPREADS else step.get(metric)
    return None if found is None else float(found)


def steps_of(report: JSON) -> Iterator[tuple[str, str, JSON]]:
    """Each platform's name, step's label and figures. Raises ValueError if this is no report of ours."""
    try:
        for platform in report["platforms"]:
            for step in platform["steps"]:
                yield str(platform["name"]), str(step["label"]), step
    except (KeyError, TypeError):
        raise ValueError("it is not a report of `fairlane bench --json`") from None


def drifted(report: JSON, baseline: JSON | None, conditions: Sequence[Condition]) -> list[JSON]:
    """One row for each condition at each step: what it was, what it is, and whether that fails the run."""
    before = {(name, label): step for name, label, step in steps_of(baseline)} if baseline is not None else {}
    rows = []
    for name, label, step in steps_of(report):
        for wanted in conditions:
            earlier = before.get((name, label))
            now = figure(step, wanted.metric)
            then = figure(earlier, wanted.metric) if earlier is not None else None
            if wanted.relative and then is None:
                continue  # nothing to compare with
            # A figure that is gone (nothing was answered any more) is the worst drift there is.
            failed = (now is None and then is not None) or (now is not None and wanted.holds(now, then))
            rows.append({"platform": name, "step": label, "condition": wanted.spelt, "baseline": then, "now": now, "failed": failed})
    return rows
