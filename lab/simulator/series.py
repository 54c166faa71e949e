"""How did it look over time? The samples of a run, put into equal steps for plots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum

from lab.simulator.statistics import quantile
from lab.simulator.tally import LaneTally, Tally

STEPS = 120


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a plot: (instant, value), with gaps where nothing was measured."""

    name: str
    points: Sequence[tuple[float, float | None]]


@dataclass(frozen=True, slots=True)
class Plot:
    """Curves over one axis of time. `events`: instants with what happened then."""

    title: str
    unit: str
    curves: Sequence[Curve]
    events: Sequence[tuple[float, str]] = ()


def plots(tally: Tally) -> list[Plot]:
    """Queue wait (mean and p95), throughput, waiting and in flight by lane; in flight by backend."""
    end_at = tally.ended_at or 1.0
    step_s = end_at / STEPS
    events = [(each.at, each.text) for each in tally.happened if each.at <= end_at]
    waits = [(lane, _steps(lane, step_s)) for lane in tally.lanes if lane.waits]
    return [
        Plot("Queue wait, mean", "s", [_curve(lane.name, steps, step_s, _mean) for lane, steps in waits], events),
        Plot("Queue wait, p95", "s", [_curve(lane.name, steps, step_s, _p95) for lane, steps in waits], events),
        Plot("Throughput: answers ended", "1/s", [Curve(lane.name, _rates(lane.ended_at, step_s)) for lane in tally.lanes], events),
        Plot(
            "Waiting",
            "",
            [Curve(lane.name, [(each.at, each.waiting[lane.name]) for each in tally.samples]) for lane in tally.lanes],
            events,
        ),
        Plot(
            "In flight, by lane",
            "",
            [Curve(lane.name, [(each.at, each.in_flight_of[lane.name]) for each in tally.samples]) for lane in tally.lanes],
            events,
        ),
        Plot(
            "In flight, by backend",
            "",
            [Curve(name, [(each.at, each.in_flight.get(name)) for each in tally.samples]) for name in tally.stations],
            events,
        ),
    ]


def _steps(lane: LaneTally, step_s: float) -> list[list[float]]:
    found: list[list[float]] = [[] for _ in range(STEPS)]
    for at, wait_s in zip(lane.dispatched_at, lane.waits, strict=True):
        found[min(STEPS - 1, int(at / step_s))].append(wait_s)
    return found


def _rates(instants: Sequence[float], step_s: float) -> list[tuple[float, float | None]]:
    counts = [0] * STEPS
    for at in instants:
        if at < STEPS * step_s:
            counts[int(at / step_s)] += 1
    return [((index + 0.5) * step_s, count / step_s) for index, count in enumerate(counts)]


def _curve(name: str, steps: Iterable[list[float]], step_s: float, of: object) -> Curve:
    assert callable(of)
    return Curve(name, [((index + 0.5) * step_s, of(found) if found else None) for index, found in enumerate(steps)])


def _mean(found: Sequence[float]) -> float:
    return fsum(found) / len(found)


def _p95(found: Sequence[float]) -> float:
    return quantile(sorted(found), 0.95)
