"""How does a curve become a picture? One SVG, drawn by hand: axes with round numbers, one colour a platform, a line for the target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 520, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 16, 14, 44
COLOURS = ("#2563eb", "#d97706", "#059669", "#9333ea", "#dc2626", "#0891b2")


@dataclass(frozen=True)
class Curve:
    """Points in order of x. `faint`: a thin dashed companion of the curve of the same colour."""

    name: str
    colour: str
    points: Sequence[tuple[float, float]]
    faint: bool = False
    labels: Sequence[str] = ()  # of the points, for who hovers
    hollow: Sequence[bool] = ()  # which points are drawn as rings


@dataclass(frozen=True)
class Plot:
    """One picture. `level`: a horizontal line with its name. `straight`: never by doubling on the upright axis."""

    title: str
    x_title: str
    y_unit: str
    curves: Sequence[Curve]
    level: tuple[float, str] | None = None
    marks: Sequence[tuple[float, str, str]] = field(default_factory=tuple)  # x, colour, what: vertical lines
    straight: bool = False


def svg(plot: Plot) -> str:
    """The picture as an element to put into a page; empty where there is nothing to draw."""
    points = [point for curve in plot.curves for point in curve.points]
    if not points:
        return ""
    xs = sorted({x for x, _ in points})
    x_axis = _Axis(xs[0], xs[-1], LEFT, WIDTH - RIGHT, by_doubling=xs[0] > 0 and xs[-1] / xs[0] >= 8)
    highest = max([y for _, y in points] + ([plot.level[0]] if plot.level else []))
    lowest = min(y for _, y in points)
    steep = not plot.straight and lowest > 0 and highest / lowest > 40
    y_axis = _Axis(lowest / 1.3 if steep else 0.0, highest * (1.3 if steep else 1.08) or 1.0, HEIGHT - BOTTOM, TOP, by_doubling=steep)
    out = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(plot.title)}">']
    for y in _decades(y_axis) if steep else _round_steps(y_axis.high):
        at = y_axis.place(y)
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        out.append(f'<text class="tick" x="{LEFT - 7}" y="{at + 4:.1f}" text-anchor="end">{_number(y)}</text>')
    for x in _apart(xs, x_axis):
        at = x_axis.place(x)
        out.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM + 4}"/>')
        out.append(f'<text class="tick" x="{at:.1f}" y="{HEIGHT - BOTTOM + 17}" text-anchor="middle">{_number(x)}</text>')
    out.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM}"/>')
    out.append(f'<text class="name" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(plot.x_title)}</text>')
    middle = (TOP + HEIGHT - BOTTOM) / 2
    out.append(f'<text class="name" transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">{escape(plot.y_unit)}</text>')
    if plot.level is not None:
        at = y_axis.place(plot.level[0])
        out.append(f'<line class="level" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        out.append(f'<text class="level-name" x="{LEFT + 6}" y="{at - 5:.1f}">{escape(plot.level[1])}</text>')
    for x, colour, what in plot.marks:
        at = x_axis.place(x)
        out.append(
            f'<line class="mark" stroke="{colour}" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}">'
            f"<title>{escape(what)}</title></line>"
        )
    for curve in sorted(plot.curves, key=lambda curve: not curve.faint):
        out.append(_drawn(curve, x_axis, y_axis))
    return "".join([*out, "</svg>"])


def legend(curves: Sequence[tuple[str, str, bool]], also: str = "") -> str:
    """Names with their colours: (name, colour, faint)."""
    keys = []
    for name, colour, faint in curves:
        dash = ' stroke-dasharray="3 3"' if faint else ""
        style = f'stroke="{colour}" stroke-width="{1.5 if faint else 2.5}"{dash}'
        line = f'<svg width="26" height="10"><line x1="1" x2="25" y1="5" y2="5" {style}/></svg>'
        keys.append(f"<span>{line} {escape(name)}</span>")
    return f'<p class="legend">{"".join(keys)}<span>{escape(also)}</span></p>'


class _Axis:
    """From a number to a place, straight or by doubling (logarithmic)."""

    def __init__(self, low: float, high: float, start: float, end: float, *, by_doubling: bool) -> None:
        self.low, self.high, self.start, self.end, self.by_doubling = low, high, start, end, by_doubling

    def place(self, value: float) -> float:
        if self.high <= self.low:
            return (self.start + self.end) / 2
        if self.by_doubling:
            part = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return self.start + part * (self.end - self.start)


def _drawn(curve: Curve, x_axis: _Axis, y_axis: _Axis) -> str:
    places = [(x_axis.place(x), y_axis.place(y)) for x, y in curve.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    style = 'stroke-width="1.5" stroke-dasharray="3 3"' if curve.faint else 'stroke-width="2.5"'
    out = [f'<polyline fill="none" stroke="{curve.colour}" {style} stroke-linejoin="round" points="{path}"/>']
    for number, (x, y) in enumerate(places):
        said = curve.labels[number] if number < len(curve.labels) else _number(curve.points[number][1])
        radius = 2 if curve.faint else 3.5
        title = f"<title>{escape(curve.name)}: {escape(said)}</title>"
        ring = number < len(curve.hollow) and curve.hollow[number]
        fill = f'fill="var(--card)" stroke="{curve.colour}" stroke-width="{1 if curve.faint else 2}"' if ring else f'fill="{curve.colour}"'
        out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" {fill}>{title}</circle>')
    return "".join(out)


def _round_steps(high: float) -> list[float]:
    """Four to eight round numbers from 0 up to `high`."""
    raw = high / 5
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * times for times in (1, 2, 5, 10) if unit * times >= raw)
    return [step * n for n in range(int(high / step + 1e-9) + 1)]


def _decades(axis: _Axis) -> list[float]:
    """Round numbers on an axis by doubling."""
    first, last = math.floor(math.log10(axis.low)), math.ceil(math.log10(axis.high))
    times = (1, 2, 5) if last - first <= 3 else (1, 3)
    return [n * 10.0**power for power in range(first, last + 1) for n in times if axis.low <= n * 10.0**power <= axis.high]


def _apart(xs: Sequence[float], axis: _Axis) -> list[float]:
    """Those that have room for their number."""
    kept: list[float] = []
    for x in xs:
        if not kept or axis.place(x) - axis.place(kept[-1]) >= 30:
            kept.append(x)
    return kept


def _number(value: float) -> str:
    if value and abs(value) < 0.001:
        return f"{value:.1e}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
