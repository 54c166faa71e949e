"""What is on a dashboard? Panels as plain values, before they are Grafana's."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from proxy.telemetry.metric import Metric

WIDTH = 24  # of Grafana's grid


class When(enum.IntEnum):
    """From when on does a panel's query return something? The scenario under a real Prometheus checks it, phase by phase."""

    ALWAYS = 0  # also while nobody calls
    TRAFFIC = 1  # once requests are answered
    OVERLOAD = 2  # once requests wait and are refused
    FAILURE = 3  # once a platform died


class Kind(enum.Enum):
    LINES = "lines"
    STACKED = "stacked"
    NUMBER = "number"
    STATES = "states"


@dataclass(frozen=True, slots=True)
class Query:
    """One query and how its series are named. `silent`: it may return nothing, whatever happens."""

    expr: str
    legend: str
    silent: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. `about` says what it shows; the description ends with the names of `metrics`."""

    title: str
    about: str
    metrics: Sequence[Metric]
    queries: Sequence[Query]
    unit: str = "short"
    kind: Kind = Kind.LINES
    width: int = 12
    height: int = 8
    when: When = When.TRAFFIC
    nothing: str = "none"  # shown where a query returns nothing
    states: Mapping[int, tuple[str, str]] = field(default_factory=dict)  # value: text and colour
    top: float | None = None  # of the axis

    @property
    def description(self) -> str:
        return f"{self.about} {', '.join(metric.name for metric in self.metrics)}"


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One dashboard; `uid` is fixed, so that links and bookmarks survive an update."""

    uid: str
    title: str
    about: str
    panels: Sequence[Panel]
