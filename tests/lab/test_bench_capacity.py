"""Does the load generator itself keep up? 200 streams started a second and 2,000 at once, on one core: `make bench`.

Not part of `make test`: it takes a minute, and an engine that feeds 2,000 streams needs a core of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "proxy"]
ENGINE = (
    "--slots",
    "4000",
    "--ttft",
    "80ms",
    "--tpot",
    "200ms",
    "--load-factor",
    "1",
    "--prefill-slowdown",
    "0",
    "--prefill-rate",
    "1000000",
)
LOAD = ("--rate", "200", "--arrivals", "constant", "--duration", "25s", "--prompt-tokens", "128", "--output-tokens", "51")  # 10 s each


@pytest.mark.skipif(not os.environ.get("FAIRLANE_CAPACITY"), reason="make bench")
def test_it_starts_200_streams_a_second_and_holds_2000() -> None:
    engine = subprocess.Popen([*COMMAND, "engine", "--port", "0", *ENGINE], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        assert engine.stderr is not None
        url = engine.stderr.readline().rsplit(" on ", 1)[1].strip()
        command = [*COMMAND, "bench", "--url", url, *LOAD, "--json"]
        one_core = f"import os; os.sched_setaffinity(0, {{max(os.sched_getaffinity(0))}}); os.execv({sys.executable!r}, {command!r})"
        done = subprocess.run([sys.executable, "-c", one_core], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    finally:
        engine.terminate()
        engine.communicate(timeout=20)
    assert done.returncode == 0, done.stderr
    step = json.loads(done.stdout)["platforms"][0]["steps"][0]
    print(done.stderr, {key: step[key] for key in ("client", "ttft_s", "tpot_s", "in_flight_mean", "requests")})
    assert step["requests"]["answered"] == step["requests"]["offered"] >= 4999
    assert step["in_flight_mean"] > 1500  # the first ten seconds fill it; 2,000 from then on
    assert step["client"]["core_share"] < 0.8
    # Its own lateness, typically: the worst is the machine's, and is said in the report.
    assert step["client"]["late_s"]["p50"] < 0.02
    assert step["tpot_s"]["p50"] == pytest.approx(0.2, rel=0.25)
