"""`fairlane plan`: prints the plan, one number a line with its formula, or all of them as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lab.planner.plan import Demand, plan


def run(demand: Demand, as_json: bool) -> int:
    """Prints the plan. 0: done."""
    lines = plan(demand)
    if as_json:
        formulas = {line.key: line.formula for line in lines}
        print(json.dumps({**{line.key: line.value for line in lines}, "formulas": formulas}))
        return 0
    width = max(len(line.key) for line in lines)
    for line in lines:
        print(f"{line.key.replace('_', ' '):<{width}}  {_said(line.value):>14}  {line.formula}")
    return 0


def _said(value: Any) -> str:
    if isinstance(value, Mapping):
        if "low" in value:
            return f"{value['low']} to {value['high']}"
        return ", ".join(f"{name} never ends" if each["mean"] is None else f"{name} {each['mean']:.3f} s" for name, each in value.items())
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if value < 1000 else f"{value:,.2f}"
