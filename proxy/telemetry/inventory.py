"""What is there to count, and what did the file promise? The file as the metrics need it, and the gauges that only a reload moves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from policies.model import Plan
from proxy.telemetry import catalogue, labels
from proxy.telemetry.exposition import header, sample
from proxy.telemetry.metric import Metric
from proxy.telemetry.spend import Price


@dataclass(frozen=True, slots=True)
class Inventory:
    """What there is to count, out of the file: the plan, and what a plan does not hold. What is missing has no target, or no price."""

    plan: Plan
    slo_tpot_s: Mapping[str, float] = field(default_factory=dict)  # by pool
    prices: Mapping[str, Price] = field(default_factory=dict)  # by platform
    standbys: Mapping[str, frozenset[str]] = field(default_factory=dict)  # platforms, by pool


def file_gauges(inventory: Inventory) -> Iterator[str]:
    """The lines of what rules and panels compare the measured with."""
    lanes, pools = inventory.plan.lanes, inventory.plan.pools
    yield from _gauge(catalogue.LANE_RANK, (((lane.name,), rank) for rank, lane in enumerate(lanes)))
    yield from _gauge(catalogue.LANE_SHARE, (((lane.name,), float(lane.share)) for lane in lanes))
    standby = (((pool.name, each), int(each in inventory.standbys.get(pool.name, ()))) for pool in pools for each in pool.platforms)
    yield from _gauge(catalogue.STANDBY, standby)
    yield header(catalogue.SLO_TARGET)
    for pool in pools:
        yield sample(catalogue.SLO_TARGET, (pool.name, labels.SLO_TTFT), pool.slo_ttft_s or 0.0)
        yield sample(catalogue.SLO_TARGET, (pool.name, labels.SLO_TPOT), inventory.slo_tpot_s.get(pool.name, 0.0))


def _gauge(metric: Metric, values: Iterator[tuple[Sequence[str], float]]) -> Iterator[str]:
    yield header(metric)
    for label_values, value in values:
        yield sample(metric, label_values, value)
