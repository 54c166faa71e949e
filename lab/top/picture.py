"""How does it look in a terminal? One picture of one look: pools with their lanes, platforms with their backends, levers, what happened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from lab.top.reading import Look, rates

SLOTS_MAX = 32  # cells of a backend's bar
NEWS_MAX = 6
STATES = {"healthy": "green", "probing": "yellow", "ejected": "red", "drained": "dim"}
LANES = ("blue", "magenta", "yellow", "cyan")


def span(seconds: float | None) -> str:
    """A duration, short."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def picture(before: Look | None, after: Look, lost: str = "") -> RenderableType:
    """`lost`: since when nobody has answered; what is shown is from before."""
    return Group(*_parts(before, after, lost))


def _parts(before: Look | None, after: Look, lost: str) -> Iterator[RenderableType]:
    state = after.state
    serves = any(pool["in_service"] for pool in state["pools"].values())
    word = (
        "[red]no answer[/]"
        if lost
        else "[yellow]draining[/]"
        if state["draining"]
        else "[green]serving[/]"
        if serves
        else "[red]not ready[/]"
    )
    yield Text.from_markup(
        f"[bold]Fairlane[/] {escape(state['version'])}  {word}  up {span(state['uptime_s'])}   "
        f"[bold]{state['in_flight']}[/] in flight  [bold]{state['waiting']}[/] waiting"
    )
    if lost:
        yield Text(f"No answer since {lost}; what is shown is from before. Asking again.", style="red")
    for lever in state["levers"]:
        value = "" if lever["value"] is None else f" {lever['value']}"
        idle = "" if lever["holds"] else ", holds nothing now"
        yield Text(f"by hand: {lever['lever']} {lever['on']}{value} for {span(lever['since_s'])}{idle}; {lever['undo']}", style="yellow")
    yield _pools(before, after)
    yield _backends(state)
    yield from _news(state)


def _pools(before: Look | None, after: Look) -> Table:
    table = Table(expand=True, box=None, pad_edge=False, header_style="dim")
    table.add_column("pool", overflow="fold", min_width=8)
    table.add_column("served by", overflow="fold", min_width=9)
    table.add_column("lane", overflow="ellipsis", no_wrap=True, min_width=4)
    for name in ("waiting", "oldest", "ok/s", "refused/s", "TTFT p95"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, pool in after.state["pools"].items():
        head, served = f"[bold]{escape(name)}[/]", _served(pool)
        for index, (lane, seen) in enumerate(pool["lanes"].items()):
            went = rates(before, after, name, lane)
            oldest = span(seen["oldest_s"]) if seen["waiting"] else "-"
            late = seen["oldest_s"] > 0.75 * seen["max_wait_s"]
            refused = "-" if went.refused_rps is None else f"{went.refused_rps:.1f}"
            table.add_row(
                head,
                served,
                f"[{LANES[index % 4]}]{escape(lane)}[/]",
                f"{seen['waiting']} of {pool['places']}",
                f"[yellow]{oldest}[/]" if late else oldest,
                "-" if went.answered_rps is None else f"{went.answered_rps:.1f}",
                f"[red]{refused}[/]" if went.refused_rps else refused,
                span(went.ttft_p95_s),
            )
            head = served = ""
    return table


def _served(pool: Mapping[str, Any]) -> str:
    if not pool["in_service"]:
        return "[red]nobody[/]"
    first = pool["platforms"][0]
    said = (
        f"[{'green' if name == first else 'yellow'}]{escape(name)}[/]{'' if name == first else ' (standby)'}" for name in pool["in_service"]
    )
    return ", ".join(said) + (" pinned" if pool["pinned"] else "")


def _backends(state: Mapping[str, Any]) -> Table:
    table = Table(expand=True, box=None, pad_edge=False, header_style="dim")
    for name in ("platform", "backend", "streams"):
        table.add_column(name, overflow="fold")
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("state", overflow="fold")
    for platform, holder in state["platforms"].items():
        head = f"[bold]{escape(platform)}[/]"
        for name in holder["backends"]:
            seen = state["backends"][name]
            style = STATES[seen["state"]]
            words = [seen["state"]] if seen["why"] in ("", seen["state"]) else [seen["state"], seen["why"]]
            until = f", {span(seen['until_s'])} more" if seen["until_s"] and seen["until_s"] > 0 else ""
            by_hand = "" if seen["cap_override"] is None else " [yellow](cap by hand)[/]"
            table.add_row(
                head,
                escape(name),
                _bar(seen),
                f"{seen['in_flight']} of {seen['max_streams']}",
                f"[{style}]{escape(': '.join(words))}{until}[/]{by_hand}",
            )
            head = ""
    return table


def _bar(seen: Mapping[str, Any]) -> Text:
    """A cell for each slot, or for several where there are many."""
    cells = min(SLOTS_MAX, max(1, seen["max_streams"]))
    taken = min(cells, -(-seen["in_flight"] * cells // max(1, seen["max_streams"])))
    usable = -(-seen["cap"] * cells // max(1, seen["max_streams"]))
    style = "blue" if seen["in_flight"] <= seen["max_streams"] else "red"
    open_ = max(0, usable - taken) if seen["state"] in ("healthy", "probing") else 0
    return Text.assemble(("■" * taken, style), ("□" * open_, "default"), ("·" * (cells - taken - open_), "dim"))


def _news(state: Mapping[str, Any]) -> Iterator[RenderableType]:
    events = [f"{_clock(each['time_unix'])}  {each['event'].replace('_', ' ')}  {each['text']}" for each in state["events"][:NEWS_MAX]]
    refusals = [
        f"{_clock(each['last_unix'])}  {each['count']} x {each['outcome'].replace('_', ' ')}"
        + (f" in {each['pool']}, lane {each['lane']}" if each["pool"] else "")
        for each in state["refusals"][:NEWS_MAX]
    ]
    for title, lines in (("what happened", events), ("last refusals", refusals)):
        if lines:
            yield Panel(Text("\n".join(lines)), title=title, title_align="left", border_style="dim", padding=(0, 1))


def _clock(unix: float) -> str:
    return f"{datetime.fromtimestamp(unix):%H:%M:%S}"
