"""Has anything become slower? `python -m tests.perf.ratios FILE` reads what pytest-benchmark wrote, and holds it against the baseline.

A figure is the best round's time per event, divided by that of the calibration loop beside it. `--renew` makes the file's the baseline.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BASELINE = Path(__file__).with_name("baseline.json")
SLOWER_MAX = 1.3  # the loop and the figure do not slow down quite alike under other load; run it alone before it is believed


@dataclass(frozen=True)
class Figure:
    """One benchmark of a run."""

    name: str
    best_us: float
    median_us: float
    ratio: float  # to the calibration loop


def figures(document: Mapping[str, Any]) -> list[Figure]:
    """The figures in a file of pytest-benchmark. KeyError: it has others."""
    found = []
    for each in document["benchmarks"]:
        extra, stats = each["extra_info"], each["stats"]
        best_s, median_s = stats["min"] / extra["per"], stats["median"] / extra["per"]
        name = each["name"].removeprefix("test_").replace("_", " ")
        found.append(Figure(name, best_s * 1e6, median_s * 1e6, best_s / extra["calibration_s"]))
    return found


def slower(found: list[Figure], baseline: Mapping[str, float]) -> list[str]:
    """Which figures are beyond their baseline, and how far?"""
    return [
        f"{each.name}: {each.ratio / baseline[each.name]:.2f} x its baseline"
        for each in found
        if each.name in baseline and each.ratio > SLOWER_MAX * baseline[each.name]
    ]


def report(found: list[Figure], baseline: Mapping[str, float]) -> str:
    """The figures as a table."""
    lines = [f"{'':56s} {'best us':>10s} {'median us':>10s} {'x loop':>9s} {'/ baseline':>10s}"]
    for each in found:
        before = baseline.get(each.name)
        against = f"{each.ratio / before:.2f}" if before else "new"
        lines.append(f"{each.name:56s} {each.best_us:10.2f} {each.median_us:10.2f} {each.ratio:9.4f} {against:>10s}")
    return "\n".join(lines)


def python() -> str:
    """The interpreter whose baseline this is: another one is fast and slow at other things."""
    return f"{platform.python_implementation()} {'.'.join(platform.python_version_tuple()[:2])}"


def main() -> int:
    """0: nothing is slower; 1: something is."""
    parser = argparse.ArgumentParser(prog="python -m tests.perf.ratios", description="Hold micro-benchmarks against their baseline.")
    parser.add_argument("file", type=Path, help="what pytest --benchmark-json wrote")
    parser.add_argument("--renew", action="store_true", help="make these figures the baseline")
    asked = parser.parse_args()
    found = figures(json.loads(asked.file.read_text()))
    kept: dict[str, Any] = json.loads(BASELINE.read_text()) if BASELINE.exists() else {"python": "", "ratios": {}}
    print(report(found, kept["ratios"]))
    if asked.renew:
        ratios = {each.name: round(each.ratio, 5) for each in found}
        BASELINE.write_text(json.dumps({"python": python(), "ratios": ratios}, indent=1) + "\n")
        return 0
    if kept["python"] != python():
        print(f"the baseline is of {kept['python'] or 'nothing'}, this is {python()}: not held against it", file=sys.stderr)
        return 0
    worse = slower(found, kept["ratios"])
    for line in worse:
        print(line, file=sys.stderr)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
