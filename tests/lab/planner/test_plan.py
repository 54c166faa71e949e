"""Are the numbers of `fairlane plan` right, and does each say where it comes from?"""

from __future__ import annotations

import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from lab.planner.plan import Demand, plan

ROOT = Path(__file__).resolve().parents[3]


def numbers(rps: str, time_s: str, **more: Any) -> dict[str, Any]:
    return {line.key: line.value for line in plan(Demand(rps=Decimal(rps), generation_s=Decimal(time_s), **more))}


def test_ten_requests_a_second_of_eight_seconds() -> None:
    command = [sys.executable, "-m", "proxy", "plan", "--rps", "10", "--generation-time", "8s", "--json"]
    found = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)
    assert (found["streams"], found["places"], found["capacity"], found["streams_at_90"]) == (80, 16, 96, 89)
    assert set(found["formulas"]) == set(found) - {"formulas"}


def test_decimal_arithmetic_and_the_smallest() -> None:
    assert numbers("1.1", "50")["streams"] == 55
    assert (numbers("0.1", "1")["streams"], numbers("0.1", "1")["places"]) == (1, 1)


def test_instances_warm_minimum_and_cost() -> None:
    found = numbers(
        "10", "8", streams_per_instance=8, off_peak_rps=Decimal(4), output_tokens=Decimal(300), tokens_per_second=Decimal(200),
        price_per_hour=Decimal("2.1"),
    )  # fmt: skip
    assert (found["instances"], found["instances_at_90"], found["instances_by_tokens"]) == (10, 12, 15)
    assert found["warm_streams"] == {"low": 10, "high": 16}
    assert found["warm_instances"] == {"low": 2, "high": 2}
    assert found["cost_per_10000_tokens"] == pytest.approx(2.1 / 3600 / 200 * 10_000)
    assert found["cost_per_month"] == pytest.approx(15 * 2.1 * 730)


def test_waits_by_lane() -> None:
    waits = numbers("9", "8", lanes={"fast": 3.0, "slow": 6.0}, streams=80)["queue_wait_s"]
    assert waits["fast"]["mean"] == pytest.approx(0.0376, rel=0.002)
    assert waits["slow"]["mean"] == pytest.approx(0.3758, rel=0.002)
    alone = numbers("9", "8", streams=80)["queue_wait_s"]["all"]
    assert alone == {"mean": pytest.approx(0.263, abs=0.0005), "p95": pytest.approx(1.66, abs=0.005)}
    assert numbers("10", "8", streams=80)["queue_wait_s"]["all"] == {"mean": None, "p95": None}, "at 100 % load it never ends"


@pytest.mark.parametrize(
    "arguments", [["--rps", "0", "--generation-time", "8s"], ["--rps", "ten", "--generation-time", "8s"], ["--rps", "10"]]
)
def test_wrong_usage_is_2(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", "proxy", "plan", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
