"""Does `fairlane simulate` keep its promises: the document, exit codes, events, batches, comparison, page, traces?"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from lab.simulator.asked import Asked, UsageError, engine
from lab.simulator.draws import time_spread, token_spread
from lab.simulator.page import nice_ticks
from lab.simulator.run import run, simulate
from lab.simulator.statistics import batch_interval, quantile
from lab.simulator.workload import arrivals
from proxy.settings.loader import load

ROOT = Path(__file__).resolve().parents[3]
FILE = """
lanes: {fast: {max_wait: 4s}, slow: {max_wait: 20s, share: 10%}}
keys:
  - {name: acme, secret: sk-000000000000000000000001, lane: fast}
  - {name: trial, secret: sk-000000000000000000000002, lane: slow}
  - {name: cron, secret: sk-000000000000000000000003, lane: slow, traffic: batch}
platforms:
  own:
    backends: {gpu-a: {url: "http://127.0.0.1:8001", max_streams: 8}, gpu-b: {url: "http://127.0.0.1:8002", max_streams: 8}}
  rented: {backends: {api: {url: "http://127.0.0.1:8003", max_streams: 8}}}
pools:
  chat: {primary: own, standby: rented, profile: chat}
  batch: {primary: rented, queue: {places: 100, max_wait: 2h}}
routes: [{when: {traffic: batch}, pool: batch}, {pool: chat}]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "fairlane.yaml"
    path.write_text(FILE)
    return path


def document(file: Path, capsys: pytest.CaptureFixture[str], code: int = 0, compare: Path | None = None, **asked: Any) -> Any:
    assert run(file, Asked(**asked), {}, as_json=True, compare=compare) == code
    return json.loads(capsys.readouterr().out)


def test_the_document_says_what_the_contract_says(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(file, capsys, arrivals="fast=1,slow=2", requests=3_000)
    assert list(found["lanes"]) == ["fast", "slow"]
    for lane in found["lanes"].values():
        assert {"offered", "answered", "refused", "abandoned", "throughput_rps", "goodput_rps", "queue_wait_s", "ttft_s"} <= set(lane)
        assert set(lane["queue_wait_s"]) >= {"mean", "p50", "p95", "p99", "max"}
    assert list(found["backends"]) == ["gpu-a", "gpu-b", "api"]
    assert all({"mean_in_flight", "max_in_flight", "utilisation"} <= set(each) for each in found["backends"].values())
    assert found["failovers"] == 0
    assert found["requests"] == 3_000


def test_planned_events_fail_over_and_change_caps(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = tmp_path / "events.yaml"
    events.write_text("""
- {at: 60s, platform: own, event: dies}
- {at: 120s, platform: own, event: returns}
- {at: 180s, backend: api, cap: 3}
""")
    found = document(file, capsys, arrivals="fast=1,slow=0.2", generation_time="exponential:4s", duration="15m", events=events)
    assert found["failovers"] == 1
    texts = [event["text"] for event in found["events"]]
    assert "own dies" in texts and "api: cap 3" in texts and "pool chat is back on own" in texts
    assert found["backends"]["api"]["max_streams"] == 3
    assert found["lanes"]["fast"]["failed"].get("truncated", 0) > 0, "who had its first token is not tried again"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("- {at: 60, backend: gpu-a, event: dies}", "unit"),
        ("- {at: 60s, backend: gpu-x, event: dies}", 'did you mean "gpu-a"'),
        ("- {at: 60s, backend: gpu-a, event: explodes}", "must be one of"),
        ("- {at: 60s, event: dies}", "either a backend or a platform"),
        ("- {at: 60s, backend: gpu-a, cap: none}", "whole number"),
        ("at: 60s", "must be a list"),
    ],
)
def test_an_event_that_cannot_be_is_told_with_its_place(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, said: str
) -> None:
    events = tmp_path / "events.yaml"
    events.write_text(line + "\n")
    assert run(file, Asked(arrivals="fast=1", events=events), {}) == 1
    err = capsys.readouterr().err
    assert re.match(rf"{re.escape(str(events))}:1:\d+: ", err)
    assert said in err


def test_a_batch_is_in_time_or_not(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """100 jobs of 8 s on 8 streams are 13 rounds: 104 s."""
    found = document(file, capsys, jobs=100, deadline="105s", generation_time="fixed:8s")
    batch = found["batch"]
    assert (batch["jobs"], batch["finished"], batch["finished_at_s"], batch["in_time"]) == (100, 100, 104.0, True)
    late = document(file, capsys, code=1, jobs=100, deadline="100s", generation_time="fixed:8s")["batch"]
    assert (late["finished"], late["in_time"]) == (96, False)


def test_a_batch_of_500_comes_back_until_all_are_done(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch = document(file, capsys, jobs=500, deadline="3h", generation_time="fixed:8s")["batch"]
    assert (batch["finished"], batch["in_time"]) == (500, True)
    assert batch["handed_in_again"]["refused"] >= 392
    assert 500 * 8 / 8 <= batch["finished_at_s"] < 1.5 * 500


def test_two_files_under_the_same_arrivals(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(FILE.replace("max_streams: 8}}\n  rented", "max_streams: 16}}\n  rented"))
    found = document(file, capsys, arrivals="fast=1,slow=1.5", requests=4_000, compare=other)
    assert found["first"]["lanes"]["slow"]["offered"] == found["second"]["lanes"]["slow"]["offered"]
    assert found["changes"]["lanes"]["slow"]["queue_wait_s"]["mean"] < 0 < found["changes"]["lanes"]["slow"]["answered"]
    same = document(file, capsys, arrivals="fast=1,slow=1.5", requests=2_000, compare=file)
    assert same["first"] == same["second"]


def test_the_page_stands_alone_and_its_plots_are_well_formed(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    html = tmp_path / "page.html"
    assert run(file, Asked(arrivals="fast=1,slow=2", requests=2_000), {}, html=html, command="fairlane simulate <x>") == 0
    page = html.read_text()
    assert not re.search(r"""(src|href)=|url\(|<script|https?://""", page)
    assert "fairlane simulate &lt;x&gt;" in page
    pictures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(pictures) == 6
    assert "In flight, by lane" in page and "Throughput" in page
    for picture in pictures:
        assert ElementTree.fromstring(picture).findall("polyline")
    assert "wait" in capsys.readouterr().out


def test_a_trace_is_replayed(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded = tmp_path / "trace.jsonl"
    lines = [{"at": 1e9 + number * 0.5, "lane": "fast", "generation_s": 4.0, "key": "acme", "unknown": 1} for number in range(400)]
    random.Random(1).shuffle(lines)
    recorded.write_text("\n".join(map(json.dumps, lines)) + "\n")
    found = document(file, capsys, trace=recorded)
    assert (found["requests"], found["lanes"]["fast"]["answered"]) == (400, 400)
    assert sum(backend["mean_in_flight"] for backend in found["backends"].values()) == pytest.approx(8.0, rel=0.05)
    recorded.write_text('{"at": 1, "lane": "quick"}\n')
    assert run(file, Asked(trace=recorded), {}) == 1
    assert f"{recorded}:1:" in capsys.readouterr().err


def test_the_engine_model_times_tokens(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Alone: 512 / 4000 + 80 ms to the first token, then 99 of 20 ms."""
    found = document(
        file,
        capsys,
        arrivals="fixed:fast=0.1",
        generation_time="engine",
        prompt_tokens="512",
        output_tokens="100",
        requests=50,
        warm_up="0%",
    )
    lane = found["lanes"]["fast"]
    assert lane["ttft_s"]["p50"] == pytest.approx(0.208)
    assert lane["tpot_s"]["p50"] == pytest.approx(0.02)
    assert lane["answered"] == 50


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, "--arrivals"),
        ({"arrivals": "quick=3"}, 'knows no "quick"'),
        ({"arrivals": "fast=0"}, "above zero"),
        ({"arrivals": "weibull:fast=1"}, "knows no arrivals"),
        ({"arrivals": "fast=1", "generation_time": "exponential:8"}, "unit"),
        ({"arrivals": "fast=1", "generation_time": "normal:8s"}, "knows no distribution"),
        ({"arrivals": "fast=1", "replicas": 3}, "not available yet"),
        ({"arrivals": "fast=1", "deadline": "1h"}, "--jobs"),
        ({"arrivals": "fast=1", "patience": "5s,often"}, "--patience"),
    ],
)
def test_wrong_usage_is_2_and_names_the_option(file: Path, capsys: pytest.CaptureFixture[str], asked: dict[str, Any], said: str) -> None:
    assert run(file, Asked(**asked), {}) == 2
    assert said in capsys.readouterr().err


def test_several_seeds_are_averaged(file: Path) -> None:
    settings = load(file, {}).settings
    asked = Asked(arrivals="fast=1,slow=1", requests=1_000, runs=3)
    found, _ = simulate("x", settings, asked)
    assert (found["runs"], found["seed"]) == (3, [0, 1, 2])
    low, high = found["lanes"]["slow"]["queue_wait_s"]["mean_ci95"]
    assert low <= found["lanes"]["slow"]["queue_wait_s"]["mean"] <= high


def test_distributions_have_their_means() -> None:
    generator = random.Random(3)
    for text in ("exponential:8s", "lognormal:8s,cv=2", "gamma:8s,cv=0.5", "fixed:8s", "8s"):
        draw = time_spread(text).draw(generator)
        assert sum(draw() for _ in range(40_000)) / 40_000 == pytest.approx(8.0, rel=0.08)
    draw = token_spread("128,2048").draw(generator)
    assert {draw() for _ in range(50)} == {128.0, 2048.0}
    assert arrivals("gamma:cv=2,fast=3", ["fast", "slow"]).cv == 2.0
    assert engine("engine:slots=4,ttft=10ms")[1] == 4
    with pytest.raises(ValueError, match="ttft"):
        engine("engine:tftt=10ms")
    with pytest.raises(UsageError):
        Asked(arrivals="x", replicas=2).check()


def test_intervals_only_where_the_run_allows_them() -> None:
    generator = random.Random(4)
    independent = [generator.expovariate(1.0) for _ in range(20_000)]
    found = batch_interval(independent)
    assert found is not None
    assert found[0] < 1.0 < found[1]
    assert batch_interval(independent[:500]) is None, "too few"
    drifting = [index / 20_000 for index in range(20_000)]
    assert batch_interval(drifting) is None, "each batch is like the one before"
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.0


def test_ticks_are_round() -> None:
    assert nice_ticks(0.97) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert nice_ticks(0.0) == [0.0, 1.0]
    assert nice_ticks(3_599.0, inside=True)[-1] <= 3_599.0


def test_from_the_command_line(file: Path) -> None:
    command = [sys.executable, "-m", "proxy", "simulate", str(file), "--arrivals", "fast=1,slow=1", "--requests", "500"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert "slow" in done.stdout
    assert "a second" in done.stderr
