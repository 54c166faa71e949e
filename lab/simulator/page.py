"""How is a result shown to somebody who was not there? One self-contained HTML page: tables, and plots as inline SVG; no scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10
from typing import Any

from lab.simulator.report import Document
from lab.simulator.series import Plot

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 220, 56, 12, 10, 26
COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2", "#be185d", "#4d7c0f")
STYLE = """
:root{color-scheme:light dark;--line:#8884;--soft:#777}
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin:2rem 0 .4rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;display:block;overflow-x:auto}
th,td{padding:.2rem .7rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child{text-align:left}
svg{width:100%;height:auto}svg text{fill:currentColor;font:11px system-ui,sans-serif}
.key{margin:.1rem 0 0;font-size:.9rem}.key i{display:inline-block;width:1.1rem;height:.2rem;margin:0 .35rem .25rem .9rem}
.note{color:var(--soft);font-size:.9rem}
""".strip()


def page(results: Sequence[tuple[Document, Sequence[Plot]]], command: str) -> str:
    """The page of one run, or of two side by side in order."""
    first = results[0][0]
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Fairlane simulation: {escape(str(first['file']))}</title><style>{STYLE}</style></head><body>",
        f"<h1>Simulation of {' and '.join(escape(str(found['file'])) for found, _ in results)}</h1>",
        f'<p class="note">The file\'s own decisions in virtual time. Made by <code>{escape(command)}</code></p>',
    ]
    for found, plots in results:
        if len(results) > 1:
            parts.append(f"<h1>{escape(str(found['file']))}</h1>")
        parts += [_summary(found), _lanes(found["lanes"]), _backends(found["backends"]), _events(found["events"])]
        parts += [_figure(plot) for plot in plots if any(curve.points for curve in plot.curves)]
    parts.append("</body></html>")
    return "\n".join(part for part in parts if part)


def _summary(found: Document) -> str:
    batch = found.get("batch")
    counted = f"counted are those of the {found['measured_s']:,.0f} s after the first {found['warm_up_s']:,.0f} s"
    said = f"{found['requests']:,.0f} requests in {found['simulated_s']:,.0f} s; {counted}."
    if batch is not None:
        said += f" Batch: {batch['finished']:g} of {batch['jobs']} jobs done" + (", in time." if batch["in_time"] else ", not in time.")
    return f"<p>{said}</p>"


def _lanes(lanes: Mapping[str, Any]) -> str:
    """Who came and what became of them; then how long they waited: two tables, for one would be wider than the page."""
    counts = [
        (
            name,
            *(f"{lane[key]:,.0f}" for key in ("offered", "answered")),
            *(f"{sum(lane[key].values()):,.0f}" for key in ("refused", "failed")),
            f"{lane['abandoned']:,.0f}",
            *(f"{lane[key]:.2f}" for key in ("throughput_rps", "goodput_rps")),
        )
        for name, lane in lanes.items()
    ]
    waits = [
        (name, *(_seconds(lane["queue_wait_s"][key]) for key in ("mean", "p50", "p95", "p99", "max")), _seconds(lane["ttft_s"]["p95"]))
        for name, lane in lanes.items()
    ]
    came = _table(("lane", "offered", "answered", "refused", "failed", "abandoned", "answers/s", "good answers/s"), counts)
    waited = _table(("lane", "mean", "p50", "p95", "p99", "longest", "first token, p95"), waits)
    reasons = [
        (name, reason, f"{count:,.0f}")
        for name, lane in lanes.items()
        for reason, count in [*lane["refused"].items(), *lane["failed"].items()]
    ]
    turned_away = "<h2>Refused and failed</h2>" + _table(("lane", "reason", "requests"), reasons) if reasons else ""
    return f"<h2>Lanes</h2>{came}<h2>Wait for a slot</h2>{waited}{turned_away}"


def _backends(backends: Mapping[str, Any]) -> str:
    rows = [
        (name, f"{each['max_streams']:g}", f"{each['mean_in_flight']:.1f}", f"{each['max_in_flight']:g}", f"{each['utilisation']:.0%}")
        for name, each in backends.items()
    ]
    return "<h2>Backends</h2>" + _table(("backend", "cap", "mean in flight", "most in flight", "used"), rows)


def _events(events: Sequence[Mapping[str, Any]]) -> str:
    if not events:
        return ""
    rows = [(f"{event['at']:,.1f} s", event["text"]) for event in events[:200]]
    return "<h2>What happened</h2>" + _table(("at", "event"), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    header = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table>"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f} s"


def _figure(plot: Plot) -> str:
    points = [point for curve in plot.curves for point in curve.points if point[1] is not None]
    if not points:
        return ""
    x_max = max(at for at, _ in points) or 1.0
    ticks = nice_ticks(max(value or 0.0 for _, value in points))
    y_max = ticks[-1]

    def place(at: float, value: float) -> str:
        x = LEFT + (WIDTH - LEFT - RIGHT) * at / x_max
        y = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / y_max
        return f"{x:.1f},{y:.1f}"

    drawn = []
    for tick in ticks:
        _, y = place(0, tick).split(",")
        drawn.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="currentColor" stroke-opacity=".15"/>')
        drawn.append(f'<text x="{LEFT - 6}" y="{float(y) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in nice_ticks(x_max, inside=True):
        x, _ = place(tick, 0).split(",")
        drawn.append(f'<text x="{x}" y="{HEIGHT - 8}" text-anchor="middle">{tick:,g} s</text>')
    for at, text in plot.events[:100]:
        if at <= x_max:
            x, _ = place(at, 0).split(",")
            drawn.append(
                f'<line x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="currentColor" stroke-opacity=".5" '
                f'stroke-dasharray="3 3"><title>{escape(text)}</title></line>'
            )
    for index, curve in enumerate(plot.curves):
        for piece in _pieces(curve.points):
            path = " ".join(place(at, value) for at, value in piece)
            drawn.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[index % len(COLOURS)]}" stroke-width="1.6"/>')
    key = "".join(
        f'<i style="background:{COLOURS[index % len(COLOURS)]}"></i>{escape(curve.name)}' for index, curve in enumerate(plot.curves)
    )
    title = f"{plot.title}, {plot.unit}" if plot.unit else plot.title
    return (
        f"<h2>{escape(title)}</h2>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)} over time">{"".join(drawn)}</svg>'
        f'<p class="key">{key}</p>'
    )


def _pieces(points: Sequence[tuple[float, float | None]]) -> list[list[tuple[float, float]]]:
    """The points without their gaps."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for at, value in points:
        if value is None:
            pieces.append([])
        else:
            pieces[-1].append((at, value))
    return [piece for piece in pieces if piece]


def nice_ticks(highest: float, *, inside: bool = False) -> list[float]:
    """Round numbers from 0 to the first one that is not below the highest, or (inside) the last that is not above it."""
    if highest <= 0:
        return [0.0, 1.0]
    size = 10.0 ** floor(log10(highest / 4))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor * 5 >= highest)
    count = floor(highest / step + 1e-9) if inside else max(1, ceil(highest / step - 1e-9))
    return [round(step * index, 12) for index in range(count + 1)]
