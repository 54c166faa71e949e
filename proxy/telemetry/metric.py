"""What is a metric: its kind, its labels, what it tells, and what to do when it moves?"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One metric family. `kind` is counter, gauge or histogram; `bounds` are a histogram's, before SLO targets are added.

    `help` says what it is, `act` what to look at or do when it moves.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str
    act: str
    bounds: tuple[float, ...] = ()


def counter(name: str, labels: str, text: str, act: str) -> Metric:
    """One that only grows; `labels` are separated by blanks."""
    return Metric(f"fairlane_{name}_total", "counter", tuple(labels.split()), text, act)


def gauge(name: str, labels: str, text: str, act: str) -> Metric:
    """One that goes up and down."""
    return Metric(f"fairlane_{name}", "gauge", tuple(labels.split()), text, act)


def histogram(name: str, labels: str, bounds: tuple[float, ...], text: str, act: str) -> Metric:
    """A distribution, with these upper bounds."""
    return Metric(f"fairlane_{name}", "histogram", tuple(labels.split()), text, act, bounds)
