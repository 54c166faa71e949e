"""Is docs/metrics.md what the catalogue says, and does it say enough?"""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.telemetry import catalogue
from proxy.telemetry.metric import Metric
from proxy.telemetry.reference import reference

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == reference(), "docs/metrics.md is stale: python -m proxy.telemetry.reference > docs/metrics.md"


@pytest.mark.parametrize("metric", catalogue.METRICS, ids=lambda metric: metric.name)
def test_each_metric_says_what_it_is_and_what_to_do(metric: Metric) -> None:
    row = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| `{metric.name}` |"))
    assert metric.kind in row and all(f"`{label}`" in row for label in metric.labels)
    assert metric.help.endswith(".") and metric.act.endswith(".")
    assert len(metric.act.split()) >= 4


def test_each_metric_has_one_row() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `fairlane_")]
    assert len(rows) == len(catalogue.METRICS) == len({metric.name for metric in catalogue.METRICS})
