"""Does it stay as it is for as long as it runs? Mixed traffic for minutes against one Fairlane, sampled; slopes and a report at the end.

`python -m tests.reliability.soak [--minutes 20 | --requests 10000] [--at-once 24]`; `make soak`, `make storm`. Half good streams, the rest
callers who leave, faults of the backend and malformed bytes. Sampled: memory (private pages), descriptors, tasks, objects, slots.
Exit 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path

from tests.reliability.files import one
from tests.reliability.process import Processed, processed
from tests.reliability.storm import Storm
from tests.wire import ScriptedBackend

CAP = 16
SLOPE_BYTES_PER_REQUEST = 20.0  # reliability targets Q13
SLACK = 5  # Q14
DRIFT = 1.2  # of the last third's p99 against the first's
SETTLE_REQUESTS = 15_000  # warm-up: caches, memos, the allocator
SAMPLES = 60


@dataclass(frozen=True)
class Sample:
    """One look at the process."""

    at_s: float
    requests: int
    private_bytes: int
    descriptors: int
    tasks: int
    objects: int


@dataclass(frozen=True)
class Report:
    """What a soak came to."""

    minutes: float
    requests: int
    endings: dict[str, int]
    slope_bytes_per_request: float  # median of all slopes (Theil-Sen)
    slope_low: float
    slope_high: float  # 95 % bounds
    descriptors_grew: int
    tasks_grew: int
    objects_per_request: float
    private_mib: float
    p99_first_s: float
    p99_last_s: float
    missed: list[str]
    problems: list[str]


def theil_sen(points: list[tuple[float, float]]) -> tuple[float, float, float]:
    """The median of the slopes between all pairs, and bounds of it at 95 % by resampling."""
    if len(points) < 3:
        return 0.0, 0.0, 0.0

    def slope(chosen: list[tuple[float, float]]) -> float:
        slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(sorted(chosen), 2) if b[0] > a[0]]
        return statistics.median(slopes) if slopes else 0.0

    chance = random.Random(1)
    again = sorted(slope([chance.choice(points) for _ in points]) for _ in range(200))
    return slope(points), again[5], again[194]


def private_bytes(pid: int) -> int:
    """Memory that is this process's alone (USS)."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return 1024 * sum(int(kib) for kib in re.findall(r"^Private_\w+:\s+(\d+) kB", text, re.MULTILINE))


def looked(proxy: Processed, requests: int, began: float) -> Sample:
    """A sample, taken at rest."""
    told = re.findall(r'\{"tasks": (\d+), "objects": (\d+)\}', proxy.said)
    tasks, objects = map(int, told[-1]) if told else (0, 0)
    return Sample(time.monotonic() - began, requests, private_bytes(proxy.child.pid), proxy.descriptors(), tasks, objects)


async def rest(proxy: Processed) -> str:
    """Wait until nothing is in flight or waiting; the metrics then."""
    async with asyncio.timeout(30):
        while True:
            text = await proxy.metrics()
            held = re.findall(r"^fairlane_(?:backend_streams|queue_waiting)\{[^}]*\} (\S+)$", text, re.MULTILINE)
            if all(float(value) == 0 for value in held):
                return text
            await asyncio.sleep(0.1)


async def soak(minutes: float, at_once: int, settle_requests: int = SETTLE_REQUESTS, count: int = 0, seed: int = 1) -> Report:
    """The whole of it: so many minutes, or until `count` requests have come after the warm-up."""
    async with ScriptedBackend(named=Storm.SCRIPTS) as backend:
        text = one(backend, cap=CAP, pool=", queue: {places: 400, max_wait: 20s}, timeouts: {idle: 4s, first_token: 8s}")
        async with processed(text, module="tests.reliability.served") as proxy:
            began = time.monotonic()
            until, burst = began + minutes * 60, max(50, at_once * 10)
            every = count / SAMPLES * 2
            storm = Storm(proxy.port, random.Random(seed))
            samples: list[Sample] = []
            latencies: list[tuple[float, float]] = []
            requests, next_at = 0, 0.0

            def over() -> bool:
                return requests >= settle_requests + count if count else time.monotonic() >= until

            def due() -> bool:
                if requests < settle_requests:
                    return False
                return requests >= settle_requests + every * len(samples) if count else time.monotonic() - began >= next_at

            while not over():
                await storm.run(burst, at_once)
                requests += burst
                at = time.monotonic() - began
                latencies += [(at, latency) for latency in storm.latencies_s]
                storm.latencies_s.clear()
                _forget(backend)
                if due():
                    await rest(proxy)
                    await asyncio.sleep(1.2)  # until the process has told its counts at rest
                    samples.append(looked(proxy, requests, began))
                    next_at = time.monotonic() - began + minutes * 60 / SAMPLES
                    print(json.dumps(asdict(samples[-1])), file=sys.stderr, flush=True)
            metrics = await rest(proxy)
    minutes = (time.monotonic() - began) / 60 if count else minutes
    return _report(minutes, requests, storm, samples, latencies, metrics)


def _forget(backend: ScriptedBackend) -> None:
    """The backend keeps all it ever saw; here that would be the leak."""
    backend.requests.clear()
    backend.connections[:] = [connection for connection in backend.connections if connection.closed_at is None]
    for connection in backend.connections:
        connection.requests.clear()


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98] if len(values) > 100 else max(values, default=0.0)


def _report(
    minutes: float, requests: int, storm: Storm, samples: list[Sample], latencies: list[tuple[float, float]], metrics: str
) -> Report:
    slope, low, high = theil_sen([(sample.requests, sample.private_bytes) for sample in samples])
    objects, *_ = theil_sen([(sample.requests, sample.objects) for sample in samples])
    first, last = (samples[0], samples[-1]) if samples else (None, None)
    third = minutes * 20
    early = _p99([latency for at, latency in latencies if at < third])
    late = _p99([latency for at, latency in latencies if at > 2 * third])
    grew = (last.descriptors - first.descriptors, last.tasks - first.tasks) if first and last else (0, 0)
    missed = []
    if len(samples) < 3:
        missed.append("too short: fewer than 3 samples after the warm-up")
    if slope > SLOPE_BYTES_PER_REQUEST:
        missed.append(f"memory grows by {slope:.1f} bytes per request")
    for name, by in zip(("descriptors", "tasks"), grew, strict=True):
        if by > SLACK:
            missed.append(f"{by} {name} more than at the beginning")
    internal = sum(float(value) for value in re.findall(r'fairlane_requests_total\{[^}]*outcome="internal"[^}]*\} (\S+)', metrics))
    if internal:
        missed.append(f"{internal:.0f} requests failed inside")
    if early and late > DRIFT * early + 0.05:
        missed.append(f"p99 of good streams went from {early:.3f} s to {late:.3f} s")
    if storm.problems:
        missed.append(f"{len(storm.problems)} requests did not get what they should")
    return Report(
        minutes, requests, dict(storm.seen), slope, low, high, *grew, objects, samples[-1].private_bytes / 2**20 if samples else 0.0,
        early, late, missed, storm.problems[:20],
    )  # fmt: skip


def shown(report: Report) -> str:
    """For people."""
    endings = ", ".join(f"{name} {count}" for name, count in sorted(report.endings.items()))
    lines = [
        f"{report.requests} requests in {report.minutes:.1f} minutes: {endings}",
        f"memory    {report.private_mib:.1f} MiB; {report.slope_bytes_per_request:+.2f} bytes per request "
        f"(95 %: {report.slope_low:+.2f} to {report.slope_high:+.2f}; target {SLOPE_BYTES_PER_REQUEST:g})",
        f"at rest   descriptors {report.descriptors_grew:+d}, tasks {report.tasks_grew:+d}, "
        f"objects {report.objects_per_request:+.3f} per request",
        f"p99       of good streams {report.p99_first_s:.3f} s in the first third, {report.p99_last_s:.3f} s in the last",
        *(f"MISSED    {missed}" for missed in report.missed),
        *(f"          {problem}" for problem in report.problems),
    ]
    return "\n".join(lines if report.missed else [*lines, "all targets met"])


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--requests", type=int, default=0, help="so many after the warm-up, instead of minutes")
    parser.add_argument("--at-once", type=int, default=24)
    parser.add_argument("--settle", type=int, default=SETTLE_REQUESTS, help="requests of warm-up")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    report = asyncio.run(soak(chosen.minutes, chosen.at_once, chosen.settle, chosen.requests))
    print(json.dumps(asdict(report)) if chosen.json else shown(report))
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
