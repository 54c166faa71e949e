"""How does a result look on a terminal? Tables of lanes and backends, what happened, and what a second file changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from lab.simulator.report import Document

EVENTS_SHOWN = 30


def show(found: Document, console: Console, title: str | None = None) -> None:
    """One result."""
    runs = found.get("runs", 1)
    over = f", means of {runs} runs" if runs > 1 else ""
    console.print(
        f"{title or found['file']}: {found['requests']:,.0f} requests in {_span(found['simulated_s'])}{over}; "
        f"measured {_span(found['measured_s'])} after a warm-up of {_span(found['warm_up_s'])}"
    )
    console.print(_lanes(found["lanes"]))
    for name, lane in found["lanes"].items():
        turned_away = {**lane["refused"], **{f"{reason} (failed)": count for reason, count in lane["failed"].items()}}
        if turned_away:
            console.print(f"  {name}: " + ", ".join(f"{reason} {count:,.0f}" for reason, count in turned_away.items()))
    console.print(_backends(found["backends"]))
    if found["failovers"]:
        console.print(f"failovers: {found['failovers']:g}")
    for event in found["events"][:EVENTS_SHOWN]:
        console.print(f"  {_span(event['at']):>9}  {event['text']}", highlight=False)
    if len(found["events"]) > EVENTS_SHOWN:
        console.print(f"  and {len(found['events']) - EVENTS_SHOWN:,} more (--json has them all)")
    if "batch" in found:
        console.print(_batch(found["batch"]))


def _lanes(lanes: Mapping[str, Any]) -> Table:
    table = _table(
        "lane",
        "offered",
        "answered",
        "refused",
        "abandoned",
        "answers/s",
        "good/s",
        "wait mean",
        "± 95 %",
        "p50",
        "p95",
        "p99",
        "max",
        "TTFT p95",
    )
    for name, lane in lanes.items():
        wait, around = lane["queue_wait_s"], lane["queue_wait_s"]["mean_ci95"]
        table.add_row(
            name, f"{lane['offered']:,.0f}", f"{lane['answered']:,.0f}",
            f"{sum(lane['refused'].values()):,.0f}", f"{lane['abandoned']:,.0f}",
            f"{lane['throughput_rps']:.2f}", f"{lane['goodput_rps']:.2f}", _time(wait["mean"]),
            "" if around is None else _time((around[1] - around[0]) / 2),
            *(_time(wait[key]) for key in ("p50", "p95", "p99", "max")), _time(lane["ttft_s"]["p95"]),
        )  # fmt: skip
    return table


def _backends(backends: Mapping[str, Any]) -> Table:
    table = _table("backend", "cap", "in flight", "at most", "used", "attempts")
    for name, backend in backends.items():
        table.add_row(
            name, f"{backend['max_streams']:g}", f"{backend['mean_in_flight']:.1f}", f"{backend['max_in_flight']:g}",
            f"{backend['utilisation']:.0%}", f"{backend['attempts']:,.0f}",
        )  # fmt: skip
    return table


def _batch(batch: Mapping[str, Any]) -> str:
    again = batch["handed_in_again"]
    how = f"{batch['finished']:g} of {batch['jobs']} jobs"
    when = "" if batch["finished_at_s"] is None else f", the last after {_span(batch['finished_at_s'])}"
    verdict = "in time" if batch["in_time"] else "NOT in time"
    deadline = "" if batch["deadline_s"] is None else f"; deadline {_span(batch['deadline_s'])}: {verdict}"
    return f"batch: {how}{when}{deadline}; handed in again: {again['refused']:g} refused, {again['failed']:g} failed"


def show_changes(changed: Document, console: Console) -> None:
    """Second file minus first."""
    table = _table("lane", "answered", "refused", "abandoned", "answers/s", "good/s", "wait mean", "p50", "p95", "p99")
    for name, lane in changed["lanes"].items():
        wait = lane["queue_wait_s"]
        table.add_row(
            name, *(f"{lane[key]:+,.0f}" for key in ("answered", "refused", "abandoned")),
            *(f"{lane[key]:+.2f}" for key in ("throughput_rps", "goodput_rps")),
            *(_time(wait[key], "+") for key in ("mean", "p50", "p95", "p99")),
        )  # fmt: skip
    console.print("what the second file changes:")
    console.print(table)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    return table


def _time(seconds: float | None, sign: str = "") -> str:
    if seconds is None:
        return "-"
    return f"{seconds:{sign}.3f} s" if abs(seconds) < 10 else f"{seconds:{sign}.1f} s"


def _span(seconds: float) -> str:
    """A duration as one says it."""
    if seconds < 600:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
