"""Does another client see what `fairlane bench` reports? In turn with it, at one engine of default speed: `make bench`.

A shared machine stalls now and then, whoever measures: of each client's rounds the least p50 and the least p99 are compared. What is left
between them is that `bench` lets its streams start one after another, while the other's start together and read their prompts together.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from lab.bench.figures import quantile
from tests.lab.commands import ROOT, fairlane, listening

ROUNDS, STREAMS, SECONDS, TOKENS = 3, 4, 15, 40
WORDS = 102  # of four letters and a blank: 128 tokens, as the engine counts
FIGURES = [(key, q) for key in ("ttft_s", "tpot_s") for q in ("p50", "p99")]


@pytest.mark.skipif(not os.environ.get("FAIRLANE_CAPACITY"), reason="make bench")
def test_ttft_and_tpot_agree_within_5_percent() -> None:
    seen: dict[str, list[dict[tuple[str, str], float]]] = {"bench": [], "other": []}
    asked = ("--concurrency", str(STREAMS), "--rounds", "1", "--duration", f"{SECONDS}s", "--prompt-tokens", "128")
    with listening("engine", "--port", "0") as url:
        for number in range(2 * ROUNDS):
            if number % 4 in (0, 3):  # A B B A: what drifts, drifts for both
                done = fairlane("bench", "--url", url, *asked, "--output-tokens", str(TOKENS), "--floor", "0", "--json")
                assert done.returncode == 0, done.stderr
                (step,) = json.loads(done.stdout)["platforms"][0]["steps"]
                seen["bench"].append({(key, q): step[key][q] for key, q in FIGURES})
            else:
                command = [sys.executable, "-m", "tests.lab.second_client", url, *map(str, (STREAMS, SECONDS, WORDS, TOKENS))]
                other = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
                times = {key: sorted(values) for key, values in json.loads(other.stdout).items()}
                seen["other"].append({(key, q): quantile(times[key], int(q[1:]) / 100) or 0.0 for key, q in FIGURES})
    least = {client: {figure: min(found[figure] for found in rounds) for figure in FIGURES} for client, rounds in seen.items()}
    for figure in FIGURES:
        ours, theirs = (least[client][figure] for client in ("bench", "other"))
        rounds = {client: [f"{found[figure] * 1e3:.1f}" for found in found_by] for client, found_by in seen.items()}
        print(f"{' '.join(figure)}: bench {ours * 1e3:.1f} ms, the other {theirs * 1e3:.1f} ms ({ours / theirs - 1:+.1%}); rounds {rounds}")
    for figure in FIGURES:
        assert least["bench"][figure] == pytest.approx(least["other"][figure], rel=0.05), figure
