"""Is the page whole, and does it say what the report says? Also of reports with nothing in them."""

from __future__ import annotations

import io
from html.parser import HTMLParser
from typing import Any

import pytest
from rich.console import Console

from lab.bench import terminal
from lab.bench.curves import Curve, Plot, svg
from lab.bench.drive import Step
from lab.bench.figures import Price, Slo, step_figures
from lab.bench.page import page
from lab.bench.ranking import WEIGHTS, best_step, by_cost, by_weights, knee
from tests.lab.test_bench_figures import call, lost

VOID = {"meta", "line", "circle", "polyline", "br"}


class Balanced(HTMLParser):
    """Raises where an element is not closed; gathers the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def run_of(count: int, ttft: float) -> Step:
    calls = [call(n * 9 / count, ttft=ttft, lane="fast" if n % 2 else "slow") for n in range(count)]
    return Step(0.0, 10.0, calls, ended_at=11.0, loop_late_s=[0.001])


def report(steps: list[Step], names: tuple[str, ...] = ("a & b", "<c>")) -> dict[str, Any]:
    slo = Slo(1.0, 0.1)
    platforms: list[dict[str, Any]] = []
    for number, name in enumerate(names):
        figures = [
            {
                "label": f"{2**n} streams",
                "load": {"concurrency": 2**n, "rate_rps": None},
                **step_figures(step, slo, Price(per_hour=number + 1.0)),
            }
            for n, step in enumerate(steps)
        ]
        best = best_step(figures, True)
        platforms.append(
            {
                "name": name,
                "url": "http://x",
                "model": "m",
                "price": {"per_hour": 1.0, "per_million": None},
                "floor": {"connections": 0, "connect_s": None, "tls_s": None, "first_byte_s": None},
                "steps": figures,
                "knee": {"concurrency": knee(figures), "rate_rps": None},
                "find_max": {"concurrency": 4, "max_streams": 4, "rate_rps": 2.5, "generation_time_s": 1.0},
                "best": best["label"] if best else None,
            }
        )
    best_of = {platform["name"]: best_step(platform["steps"], True) for platform in platforms}
    return {
        "fairlane": "0",
        "at": "2026-01-01T00:00:00+00:00",
        "settings": {
            "prompt_tokens": "128",
            "output_tokens": "11",
            "arrivals": "poisson",
            "lanes": {"fast": 0.5, "slow": 0.5},
            "duration_s": 10.0,
            "rounds": 1,
            "seed": 0,
            "slo": {"ttft_s": 1.0, "tpot_s": 0.1},
        },
        "platforms": platforms,
        "ranking": {
            "by_cost": by_cost(best_of, True),
            "weights": {"name": "batch", **WEIGHTS["batch"]},
            "by_weights": by_weights(best_of, WEIGHTS["batch"], True),
        },
        "warnings": ["mind <this>"],
    }


def read(whole: dict[str, Any]) -> str:
    parser = Balanced()
    parser.feed(page(whole))
    assert parser.open == []
    return parser.text


def test_the_page_begins_with_the_verdict() -> None:
    text = read(report([run_of(10, 0.1), run_of(20, 0.1), run_of(40, 2.0)]))
    promised = "while 19 of 20 callers get their first token within 1 s and then a token every 100 ms or faster"
    assert f"a & b is the cheapest {promised}: $0.126" in text  # 1 / 3600 / 22 x 10,000
    assert "<c> costs 2.00 times that, at 2 streams." in text
    assert "max_streams: 4" in text and "mind <this>" in text
    assert "By lane" in text and "Jain" in text


def test_nothing_measured_is_still_a_page() -> None:
    empty = Step(0.0, 10.0, [], ended_at=10.0)
    refused = Step(0.0, 10.0, [lost(1.0), lost(2.0)], ended_at=10.0)
    text = read(report([empty, refused]))
    assert "keeps the targets at no load that was tried" in text and "2 queue_full" in text


def test_the_terminal_shows_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(terminal, "Console", lambda **_: Console(file=out, width=200))
    terminal.show(report([run_of(10, 0.1), Step(0.0, 10.0, [lost(1.0)], ended_at=10.0)]))
    said = out.getvalue()
    assert "By cost per token under the SLO" in said and "1 queue_full" in said and "max_streams: 4" in said


def test_a_curve_stands_where_its_numbers_say() -> None:
    drawn = svg(Plot("t", "x", "y", [Curve("c", "#000", [(1.0, 0.0), (2.0, 50.0), (3.0, 100.0)])], straight=True))
    (points,) = [part.split('"')[0] for part in drawn.split('points="')[1:]]
    (x1, y1), (x2, y2), (x3, y3) = (tuple(map(float, point.split(","))) for point in points.split())
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.3) and y1 - y2 == pytest.approx(y2 - y3, abs=0.3) and y1 > y3
    assert svg(Plot("t", "x", "y", [])) == ""
    assert svg(Plot("t", "x", "y", [Curve("c", "#000", [(1.0, 0.0)])]))  # one point, at nothing
