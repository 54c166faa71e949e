"""Which curves does the page show? Each figure of the report against the load, one colour a platform."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lab.bench.curves import Curve, Plot, legend, svg
from lab.bench.terminal import ms

JSON = dict[str, Any]
FEW_RATIO = 0.05


def pictures(report: JSON, colours: dict[str, str]) -> list[str]:
    """The curves, once over streams at once and once over arrivals, as far as each was measured."""
    out = []
    for kind, heading, x_title in (
        ("concurrency", "Against streams at once", "streams at once"),
        ("rate_rps", "Against requests per second", "requests per second, arriving at their own times"),
    ):
        steps = {
            platform["name"]: sorted((s for s in platform["steps"] if s["load"][kind] is not None), key=lambda s: float(s["load"][kind]))
            for platform in report["platforms"]
        }
        if max(len(found) for found in steps.values()) < 2:
            continue
        keys = [(name, colours[name], False) for name in steps]
        keys += [("p95", "var(--soft)", False), ("p50", "var(--soft)", True)]
        drawn = "".join(_figures(report, steps, kind, x_title, colours))
        keyed = legend(keys, "vertical dots: the knee" + ("; rings: targets missed at p95" if report["settings"]["slo"] else ""))
        out.append(f"<h2>{heading}</h2>{keyed}<div class='plots'>{drawn}</div>")
    return out


def _figures(report: JSON, steps: dict[str, list[JSON]], kind: str, x_title: str, colours: dict[str, str]) -> list[str]:
    slo = report["settings"]["slo"] or {"ttft_s": None, "tpot_s": None}
    knees = {platform["name"]: platform["knee"][kind] for platform in report["platforms"]}
    marks = [
        (next(float(s["load"][kind]) for s in found if s["label"] == knee["at"]), colours[name], f"{name}: knee at {knee['at']}")
        for name, found in steps.items()
        if (knee := knees[name]) is not None
    ]

    def curves(amount: Callable[[JSON], float | None], faint: bool, unit: str) -> list[Curve]:
        found = []
        for name, rungs in steps.items():
            drawn = [(float(s["load"][kind]), value, s) for s in rungs if (value := amount(s)) is not None]
            labels = [f"{step['label']}, {value:.4g} {unit}" for _, value, step in drawn]
            missed = [step.get("slo_kept") is False for _, _, step in drawn]
            found.append(Curve(name, colours[name], [(x, y) for x, y, _ in drawn], faint, labels, missed))
        return found

    def of(key: str, q: str, scale: float) -> Callable[[JSON], float | None]:
        return lambda step: step[key][q] * scale if step[key] else None

    def picture(
        title: str, aside: str, unit: str, drawn: list[Curve], level: tuple[float, str] | None = None, straight: bool = False
    ) -> str:
        drawing = svg(Plot(title, x_title, unit, drawn, level, marks, straight))
        return f"<figure><figcaption>{title} <span>{aside}</span></figcaption>{drawing}</figure>" if drawing else ""

    def latency(key: str, scale: float, unit: str) -> list[Curve]:
        return curves(of(key, "p95", scale), False, unit) + curves(of(key, "p50", scale), True, unit)

    def target(key: str, scale: float) -> tuple[float, str] | None:
        return (slo[key] * scale, f"target {ms(slo[key])}") if slo[key] is not None else None

    out = [
        picture("Time to first token", "lower is better", "seconds", latency("ttft_s", 1, "s"), target("ttft_s", 1)),
        picture("Time per output token", "lower is better", "milliseconds", latency("tpot_s", 1000, "ms"), target("tpot_s", 1000)),
        picture(
            "Throughput", "output tokens", "tokens per second", curves(lambda s: s["output_tokens_per_s"], False, "tokens/s"), straight=True
        ),
    ]
    if report["settings"]["slo"]:
        aside = "solid: requests that met the targets; dashed: all answered"
        drawn = curves(lambda s: s["goodput_rps"], False, "good requests/s") + curves(lambda s: s["throughput_rps"], True, "requests/s")
        out.append(picture("Goodput", aside, "requests per second", drawn, straight=True))
    cost = curves(_cost_under if report["settings"]["slo"] else lambda s: s.get("cost_per_10k_tokens"), False, "$")
    if any(curve.points for curve in cost):
        under = "that met the targets; no point where hardly any did; lower is better" if report["settings"]["slo"] else "lower is better"
        out.append(picture("Cost of 10,000 output tokens", under, "dollars", cost))
    whole = curves(of("e2e_s", "p95", 1), False, "s") + curves(of("e2e_s", "p50", 1), True, "s")
    out.append(picture("Whole answer", "lower is better", "seconds", whole))
    return out


def _cost_under(step: JSON) -> float | None:
    """Of the tokens under the targets; None where they are so few that the figure says nothing, and would press the others flat."""
    cost: float | None = step.get("cost_per_10k_tokens_slo")
    return cost if step["goodput_rps"] >= FEW_RATIO * step["throughput_rps"] else None
