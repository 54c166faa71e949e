"""Does `fairlane bench` keep its promises from end to end: report, page, ranking, exit codes? As processes, against fake engines."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.bench.command import options
from lab.bench.run import measure
from lab.engine.engine import Engine
from tests.lab.test_bench_options import USUAL
from tests.proxy.serving import TWO_LANES, serving
from tests.wire import measured_in_one_of

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "proxy"]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, "bench", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[str, str]]:
    """A quick one of 8 slots, and a slow one of 4."""
    quick = ("--slots", "8", "--ttft", "40ms", "--tpot", "10ms", "--load-factor", "1", "--prefill-slowdown", "0")
    slow = ("--slots", "4", "--ttft", "120ms", "--tpot", "30ms", "--load-factor", "1", "--prefill-slowdown", "0")
    children, urls = [], {}
    try:
        for name, flags in (("quick", quick), ("slow", slow)):
            child = subprocess.Popen([*COMMAND, "engine", "--port", "0", *flags], cwd=ROOT, stderr=subprocess.PIPE, text=True)
            children.append(child)
            assert child.stderr is not None
            urls[name] = child.stderr.readline().rsplit(" on ", 1)[1].strip()
        yield urls
    finally:
        for child in children:
            child.terminate()
            child.communicate(timeout=20)


def test_two_platforms_are_ranked_by_what_a_token_costs(engines: dict[str, str], tmp_path: Path) -> None:
    page = tmp_path / "report.html"

    def once() -> dict[str, Any]:
        done = bench(
            *("--url", f"quick={engines['quick']}", "--url", f"slow={engines['slow']}"),
            *("--price-per-hour", "quick=4.00", "--price-per-hour", "slow=0.40"),
            *("--concurrency", "1,4", "--rounds", "1", "--duration", "1s", "--prompt-tokens", "40", "--output-tokens", "21"),
            *("--slo", "ttft=1s,tpot=150ms", "--json", "--html", str(page)),
        )
        assert done.returncode == 0, done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        for platform in report["platforms"]:
            rung = platform["steps"][1]
            assert rung["output_tokens_mean"] == 21 and rung["prompt_tokens_mean"] == pytest.approx(40, abs=2)
        ranked = report["ranking"]["by_cost"]
        assert [(row["place"], row["platform"], row["at"]) for row in ranked] == [(1, "slow", "4 streams"), (2, "quick", "4 streams")]
        assert report["ranking"]["by_weights"][0]["platform"] == "quick"  # realtime: half of it is latency
        return report

    def verdict(report: dict[str, Any]) -> None:
        by_name = {platform["name"]: platform for platform in report["platforms"]}
        # A stream of the quick one: 40 ms, 10 ms for the prompt's 40 tokens, then 20 gaps of 10 ms: 21 tokens in 0.25 s; four at once make
        # 336 tokens/s. At $4.00 an hour, 10,000 tokens cost 4 / 3600 / 336 x 10,000 = $0.0331. The slow one: 120 ms, 10 ms, 20 x 30 ms:
        # 21 tokens in 0.73 s, 115 tokens/s, $0.40: 0.4 / 3600 / 115 x 10,000 = $0.00966.
        for name, tokens_per_s, cost in (("quick", 336, 0.0331), ("slow", 115, 0.00966)):
            rung = by_name[name]["steps"][1]
            assert rung["output_tokens_per_s"] == pytest.approx(tokens_per_s, rel=0.25)
            assert rung["cost_per_10k_tokens_slo"] == pytest.approx(cost, rel=0.3)
        assert report["ranking"]["by_cost"][1]["times_the_cheapest"] == pytest.approx(0.0331 / 0.00966, rel=0.4)

    measured_in_one_of(3, once, verdict)
    html = page.read_text()
    assert html.count("<svg viewBox") == 6 and "is the cheapest" in html
    assert not re.search(r"""<script|<link|(?:src|href)=|url\(|@import""", html)  # nothing is fetched


def test_a_report_becomes_the_baseline_of_the_next(engines: dict[str, str], tmp_path: Path) -> None:
    usual = (
        "--url",
        engines["quick"],
        "--rate",
        "20",
        "--duration",
        "700ms",
        "--floor",
        "3",
        "--prompt-tokens",
        "40",
        "--output-tokens",
        "9",
    )
    first = bench(*usual, "--json")
    assert first.returncode == 0, first.stderr
    last_week = tmp_path / "last-week.json"
    last_week.write_text(first.stdout)
    again = bench(*usual, "--baseline", str(last_week), "--fail-if", "ttft.p50 > 5x", "--fail-if", "goodput_rps < 0.1x")
    assert again.returncode == 0, again.stderr
    assert "Against the baseline" in again.stdout
    report = json.loads(first.stdout)
    report["platforms"][0]["steps"][0]["ttft_s"]["p50"] /= 100
    last_week.write_text(json.dumps(report))
    drifted = bench(*usual, "--baseline", str(last_week), "--fail-if", "ttft.p50 > 5x")
    assert (drifted.returncode, "FAILED" in drifted.stdout) == (1, True)


def test_the_slo_missed_at_every_step_is_1(engines: dict[str, str]) -> None:
    usual = ("--url", engines["slow"], "--concurrency", "1", "--rounds", "1", "--duration", "400ms", "--output-tokens", "5", "--floor", "2")
    missed = bench(*usual, "--slo", "ttft=1ms")
    assert missed.returncode == 1 and "misses the SLO" in missed.stderr


def test_find_max_says_what_to_write(engines: dict[str, str]) -> None:
    # Above four streams the slow engine makes one wait for another's whole answer, 0.28 s, before its own 0.13 s: above the SLO.
    usual = ("--url", engines["slow"], "--duration", "300ms", "--prompt-tokens", "40", "--output-tokens", "6", "--floor", "0")

    def once() -> dict[str, Any]:
        done = bench(*usual, "--find-max", "--slo", "ttft=280ms", "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)["platforms"][0]["find_max"]
        return found

    def verdict(found: dict[str, Any]) -> None:
        assert found["max_streams"] in (3, 4, 5)
        assert found["rate_rps"] is None or 0.5 < found["rate_rps"] < 20

    measured_in_one_of(3, once, verdict)


def test_nobody_there_is_3_and_wrong_usage_is_2() -> None:
    nobody = bench("--url", "http://127.0.0.1:9", "--rate", "1")
    assert nobody.returncode == 3 and "is it running" in nobody.stderr and "Traceback" not in nobody.stderr
    wrong = bench("--url", "http://127.0.0.1:9", "--rate", "fast")
    assert wrong.returncode == 2 and "must be a number" in " ".join(wrong.stderr.replace("│", " ").split())


async def test_an_interruption_is_130(engines: dict[str, str]) -> None:
    child = await asyncio.create_subprocess_exec(
        *[*COMMAND, "bench", "--url", engines["quick"], "--concurrency", "2,4", "--rounds", "1", "--duration", "2s"],
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert child.stderr is not None
    while b"[1/2]" not in await asyncio.wait_for(child.stderr.readline(), 30):
        pass
    child.send_signal(signal.SIGINT)
    said, complaint = await asyncio.wait_for(child.communicate(), 30)
    assert (child.returncode, said) == (130, b"") and b"Traceback" not in complaint


async def test_lanes_before_fairlane_and_what_each_got() -> None:
    async with Engine(slots=2, ttft_s=0.02, tpot_s=0.004, load_factor=1).serving() as engine:
        file = f"platforms: {{gpu: {{backends: {{a: {{url: '{engine.url}', max_streams: 2}}}}}}}}\n"
        file += "lanes: {fast: {max_wait: 2s}, slow: {max_wait: 1s, share: 10%}}\n"
        async with serving(file + "pools: {chat: {primary: gpu, queue: {places: 4}}}\n" + TWO_LANES) as fairlane:
            mix = {"lanes": ["fast=sk-A:1", "slow=sk-B:3"], "models": ["m"]}
            run = options(**{**USUAL, **mix, "urls": [fairlane.url], "rate": "40", "duration": "2s", "output_tokens": "21", "floor": 2})
            report: dict[str, Any] = await measure(run)
            await fairlane.at_rest()
    (step,) = report["platforms"][0]["steps"]
    fast, slow = step["lanes"]["fast"], step["lanes"]["slow"]
    assert fast["requests"]["offered"] + slow["requests"]["offered"] == step["requests"]["offered"]
    assert not fast["requests"]["failed"] and not slow["requests"]["failed"]
    assert slow["requests"]["refused"] and set(slow["requests"]["refused"]) <= {"queue_full", "queue_timeout", "displaced"}
    assert step["fairness"]["answered_ratio"]["fast"] > step["fairness"]["answered_ratio"]["slow"] > 0.0
    assert step["queue_wait_s"]["max"] > 0.0
    assert "sk-A" not in json.dumps(report)
