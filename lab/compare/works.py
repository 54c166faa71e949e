"""Which work is measured, and what does one round of it say? Short requests in a closed loop by wrk, or many streams at once.

The processor time is that of the proxy's own process tree over the client's run, divided by what was done in it.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from lab.compare.contestants import KEY, Contestant
from lab.compare.processes import cpu_s, rss_kib, running, tree

CONNECTIONS = 64
WARM_UP_S = 2
_STREAM_PROMPT_BYTES = 100
_LOOK_EVERY_S = 0.25
_PATH = "/v1/chat/completions"
_UNITS_US = {"us": 1.0, "ms": 1e3, "s": 1e6, "m": 6e7}


@dataclass(frozen=True)
class Work:
    """One kind of work. `streams` 0: a closed loop of short requests with prompts of `prompt_bytes`."""

    name: str
    says: str
    prompt_bytes: int = _STREAM_PROMPT_BYTES
    streams: int = 0
    tokens: int = 16
    gap_us: int = 0
    ttft_us: int = 0

    @property
    def unit(self) -> str:
        """What its processor time is per."""
        return "chunk" if self.streams else "request"


WORKS = {
    work.name: work
    for work in (
        Work("plain", f"{CONNECTIONS} connections in a closed loop, short JSON answers"),
        Work("stream", "400 streams at 50 tokens/s each", streams=400, tokens=100, gap_us=20_000, ttft_us=100_000),
        Work("wide", "2,000 streams at 5 tokens/s each", streams=2_000, tokens=20, gap_us=200_000, ttft_us=100_000),
        Work("prompt", f"{CONNECTIONS} connections in a closed loop, prompts of 32 kB, short JSON answers", prompt_bytes=32_768),
    )
}


@dataclass(frozen=True)
class Measured:
    """One round of one contestant. Processor time in microseconds per request or chunk; None: this work has no such figure."""

    us: float
    per_s: float
    bad: int  # answers that were not 200, or that broke
    rss_mib: float
    p99_us: float | None = None  # of a whole request, as the client saw it
    delay_p50_us: float | None = None  # added to a chunk on its way
    delay_p99_us: float | None = None
    ttft_p99_us: float | None = None  # the engine's own included
    kib_per_stream: float | None = None


def measure(contestant: Contestant, work: Work, seconds: int, folder: Path) -> Measured:
    """One round: start it, drive it, stop it. The tools and logs are in `folder`. Raises NotUp."""
    with running(contestant, folder) as pid:
        if work.streams:
            return _streams(pid, contestant.port, work, seconds + 2, folder)
        return _closed_loop(pid, contestant.port, work, seconds, folder)


def _closed_loop(pid: int, port: int, work: Work, seconds: int, folder: Path) -> Measured:
    script = folder / "post.lua"
    script.write_text(lua(work))
    wrk = ["wrk", "-t1", f"-c{CONNECTIONS}", "--latency", "--timeout", "30s", "-s", str(script)]
    url = f"http://127.0.0.1:{port}{_PATH}"
    pids = tree(pid)
    subprocess.run([*wrk, f"-d{WARM_UP_S}s", url], capture_output=True, check=True)
    cpu_before_s, began_at = cpu_s(pids), time.monotonic()
    said = subprocess.run([*wrk, f"-d{seconds}s", url], capture_output=True, text=True, check=True).stdout
    used_s, wall_s = cpu_s(tree(pid)) - cpu_before_s, time.monotonic() - began_at
    requests, bad, p99_us = read_wrk(said)
    return Measured(used_s / max(requests, 1) * 1e6, requests / wall_s, bad, rss_kib(tree(pid)) / 1024, p99_us)


def lua(work: Work) -> str:
    """What wrk sends."""
    asked = {"model": "m", "messages": [{"role": "user", "content": "x" * work.prompt_bytes}], "max_tokens": work.tokens, "stream": False}
    body = json.dumps(asked).replace('"max_tokens": ', '"max_tokens":')
    return (
        "wrk.method='POST'\nwrk.headers['Content-Type']='application/json'\n"
        f"wrk.headers['Authorization']='Bearer {KEY}'\nwrk.body=[==[{body}]==]\n"
    )


def read_wrk(said: str) -> tuple[int, int, float]:
    """Requests, bad answers and the 99th percentile in microseconds, of what wrk printed. ValueError: it printed something else."""
    requests, bad = re.search(r"(\d+) requests in", said), re.search(r"Non-2xx or 3xx responses: (\d+)", said)
    p99 = re.search(r"99%\s+([\d.]+)([a-z]+)", said)
    if requests is None or p99 is None:
        raise ValueError(f"wrk printed no figures: {said[-200:]!r}")
    return int(requests[1]), int(bad[1]) if bad else 0, float(p99[1]) * _UNITS_US[p99[2]]


def _streams(pid: int, port: int, work: Work, seconds: int, folder: Path) -> Measured:
    pids = tree(pid)
    rss_before_kib = peak_kib = rss_kib(pids)
    cpu_before_s = cpu_s(pids)
    command = [str(folder / "streams"), str(port), str(work.streams), str(seconds), str(work.tokens)]
    with subprocess.Popen([*command, str(work.prompt_bytes), _PATH, KEY], stdout=subprocess.PIPE, text=True) as client:
        while client.poll() is None:
            time.sleep(_LOOK_EVERY_S)
            peak_kib = max(peak_kib, rss_kib(tree(pid)))
        assert client.stdout is not None
        said = json.loads(client.stdout.read())
    used_s = cpu_s(tree(pid)) - cpu_before_s
    return Measured(
        us=used_s / max(said["chunks"], 1) * 1e6,
        per_s=said["chunks"] / seconds,
        bad=said["bad"] + said["closed"],
        rss_mib=peak_kib / 1024,
        delay_p50_us=said["delay_us"][0],
        delay_p99_us=said["delay_us"][1],
        ttft_p99_us=said["ttft_us"][1],
        kib_per_stream=(peak_kib - rss_before_kib) / work.streams,
    )
