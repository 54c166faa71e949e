"""What is the result of a run? The document that `--json` prints, and that table, page and comparison are made from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lab.simulator.statistics import interval, summary
from lab.simulator.tally import LaneTally, Tally

Document = dict[str, Any]


def document(tally: Tally, file: str, seed: int) -> Document:
    """One run."""
    measured_s = tally.measured_s
    found: Document = {
        "file": file,
        "seed": seed,
        "requests": tally.requests,
        "simulated_s": tally.over_at,
        "warm_up_s": tally.began_at,
        "measured_s": measured_s,
        "lanes": {lane.name: _lane(lane, measured_s) for lane in tally.lanes},
        "backends": {
            name: {
                "max_streams": tally.caps[name],
                "attempts": station.attempts,
                "mean_in_flight": _over(station.stream_s, measured_s),
                "max_in_flight": station.at_most,
                "utilisation": _over(station.stream_s, measured_s * tally.caps[name]),
            }
            for name, station in tally.stations.items()
        },
        "failovers": tally.failovers,
        "events": [{"at": each.at, "kind": each.kind, "text": each.text} for each in tally.happened],
    }
    if tally.batch is not None:
        batch = tally.batch
        in_time = batch.finished_at is not None and (batch.deadline_s is None or batch.finished_at <= batch.deadline_s)
        found["batch"] = {
            "jobs": batch.jobs,
            "finished": batch.finished,
            "finished_at_s": batch.finished_at,
            "deadline_s": batch.deadline_s,
            "in_time": in_time,
            "handed_in_again": {"refused": batch.refusals, "failed": batch.failures},
        }
    return found


def _lane(lane: LaneTally, measured_s: float) -> Document:
    waits = summary(lane.waits)
    return {
        "offered": lane.offered,
        "answered": lane.answered,
        "refused": {outcome.value: count for outcome, count in sorted(lane.refused.items())},
        "failed": {outcome.value: count for outcome, count in sorted(lane.failed.items())},
        "abandoned": lane.abandoned,
        "unfinished": lane.unfinished,
        "offered_rps": _over(lane.offered, measured_s),
        "throughput_rps": _over(lane.completed, measured_s),
        "goodput_rps": _over(lane.good_completed, measured_s),
        "mean_waiting": _over(lane.waiting_s, measured_s),
        "queue_wait_s": waits,
        "ttft_s": dict(waits) if lane.ttfts == lane.waits else summary(lane.ttfts),  # the same, where tokens come at once
        "tpot_s": summary(lane.tpots),
    }


def _over(amount: float, of: float) -> float:
    return amount / of if of > 0 else 0.0


def merged(runs: Sequence[Document]) -> Document:
    """Several runs of one file under different seeds: every number is the mean over them, intervals are over the runs."""
    first = runs[0]
    if len(runs) == 1:
        return first
    found = _mean([{key: run[key] for key in run if key not in ("file", "seed", "events", "batch")} for run in runs])
    for name, lane in found["lanes"].items():
        for key in ("queue_wait_s", "ttft_s", "tpot_s"):
            means = [run["lanes"][name][key]["mean"] for run in runs]
            known = [mean for mean in means if mean is not None]
            over_runs = interval(known)
            lane[key]["mean_ci95"] = None if over_runs is None else list(over_runs)
    result: Document = {"file": first["file"], "seed": [run["seed"] for run in runs], "runs": len(runs), **found, "events": first["events"]}
    if "batch" in first:
        result["batch"] = {**first["batch"], "in_time": all(run["batch"]["in_time"] for run in runs)}
    return result


def _mean(values: Sequence[Any]) -> Any:
    """Of numbers their mean; of mappings, the mapping of means; what one of them lacks counts as 0, None not at all."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    if isinstance(present[0], Mapping):
        keys = list(dict.fromkeys(key for value in present for key in value))
        return {key: _mean([value.get(key, 0) for value in present]) for key in keys}
    if isinstance(present[0], list):
        return None
    mean = math.fsum(present) / len(values if len(present) == len(values) else present)
    return int(mean) if mean.is_integer() and all(isinstance(value, int) for value in present) else mean


COMPARED = ("offered", "answered", "throughput_rps", "goodput_rps", "abandoned")
COMPARED_TIMES = ("mean", "p50", "p95", "p99")


def changes(before: Document, after: Document) -> Document:
    """What the second file changes, lane by lane and backend by backend: second minus first."""
    lanes = {}
    for name in before["lanes"].keys() & after["lanes"].keys():
        one, other = before["lanes"][name], after["lanes"][name]
        lanes[name] = {
            **{key: other[key] - one[key] for key in COMPARED},
            "refused": sum(other["refused"].values()) - sum(one["refused"].values()),
            **{kind: {key: _difference(one[kind][key], other[kind][key]) for key in COMPARED_TIMES} for kind in ("queue_wait_s", "ttft_s")},
        }
    backends = {
        name: {key: after["backends"][name][key] - before["backends"][name][key] for key in ("mean_in_flight", "utilisation")}
        for name in before["backends"].keys() & after["backends"].keys()
    }
    ordered = {name: lanes[name] for name in before["lanes"] if name in lanes}
    return {"lanes": ordered, "backends": backends, "failovers": after["failovers"] - before["failovers"]}


def _difference(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else other - one
