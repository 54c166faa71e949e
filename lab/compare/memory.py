"""What does a live stream hold, and what a request that waits? Resident memory by the system's account, allocations by Python's.

Real sockets: the C client before the proxy, the C engine behind it. The two accounts are taken in runs of their own, since counting
allocations takes memory. What libuv and the kernel hold is in neither Python's figure nor, for sockets, in the process's.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.compare import tools
from lab.compare.contestants import KEY, ROOT, SUBJECT, Contestant
from lab.compare.machine import Machine, today
from lab.compare.processes import rss_kib, running, tree

FILE = """server: {{listen: "127.0.0.1:{port}", admin: "127.0.0.1:{admin}", access_log: "off", drain: {{grace: 0s, timeout: 1s}}}}
lanes: {{fast: {{}}, slow: {{share: 10%}}}}
keys: [{{name: perf, secret: "{key}", lane: fast}}]
platforms:
  engine: {{backends: {{a: {{url: "http://127.0.0.1:{engine}", max_streams: {streams}}}}}}}
pools:
  main: {{primary: engine, queue: {{places: 100000, max_wait: 10m}}, timeouts: {{first_token: 10m}}}}
routes: [{{pool: main}}]
"""
COUNT = 1_000
SECONDS = 8
LOOK_AFTER_S = 5.0  # all have come, and nothing comes or goes any more
_GAP_US, _TTFT_US = 200_000, 100_000
_TOLD = re.compile(r"traced (\d+)")
_TOLD_WITHIN_S = 20.0


@dataclass(frozen=True)
class Case:
    """What is held: live streams, or requests that wait behind one that never ends."""

    says: str
    waits: bool
    prompt_bytes: int


CASES = (
    Case("a live stream, prompt of 100 B", False, 100),
    Case("a live stream, prompt of 32 kB", False, 32_768),
    Case("a waiting request, prompt of 100 B", True, 100),
    Case("a waiting request, prompt of 32 kB", True, 32_768),
)


@dataclass(frozen=True)
class Held:
    """What one of them holds, in KiB."""

    case: Case
    resident_kib: float
    allocated_kib: float


def measure(cases: Sequence[Case], folder: Path, engine_port: int, count: int = COUNT, say: Callable[[str], None] = print) -> list[Held]:
    """Each case twice: once for each account. Raises NotInstalled, NotUp, OSError."""
    tools.build(folder)
    found = []
    for case in cases:
        resident = _growth(case, folder, engine_port, count, ("-m", "proxy", "serve"), lambda pid: rss_kib(tree(pid)))
        allocated = _growth(case, folder, engine_port, count, ("-m", "lab.compare.traced"), lambda pid: _traced_kib(pid, folder))
        found.append(Held(case, resident, allocated))
        say(f"{case.says}: {resident:.1f} KiB resident, {allocated:.1f} KiB allocated by Python")
    return found


def _growth(case: Case, folder: Path, engine_port: int, count: int, program: Sequence[str], look: Callable[[int], float]) -> float:
    """By how much what `look` sees grows, for each of so many."""
    port = engine_port + 9
    file = folder / "memory.yaml"
    streams = 1 if case.waits else 100_000  # of a thousand tokens each: the first holds the only slot for as long as anybody looks
    file.write_text(FILE.format(port=port, admin=port + 50, engine=engine_port, key=KEY, streams=streams))
    subject = Contestant(SUBJECT, (sys.executable, *program, str(file)), port, ROOT)
    client = [str(folder / "streams"), str(port), str(count + case.waits), str(SECONDS), "1000", str(case.prompt_bytes)]
    with tools.engine(folder, engine_port, _GAP_US, _TTFT_US), running(subject, folder) as pid:
        before = look(pid)
        with subprocess.Popen([*client, "/v1/chat/completions", KEY], stdout=subprocess.DEVNULL) as driving:
            time.sleep(LOOK_AFTER_S)
            held = look(pid) - before
            driving.wait()
        return held / count


def _traced_kib(pid: int, folder: Path) -> float:
    log = folder / f"{SUBJECT}.log"
    told = len(_TOLD.findall(log.read_text(errors="replace")))
    os.kill(pid, signal.SIGUSR1)
    end = time.monotonic() + _TOLD_WITHIN_S
    while time.monotonic() < end:
        found = _TOLD.findall(log.read_text(errors="replace"))
        if len(found) > told:
            return int(found[-1]) / 1024
        time.sleep(0.05)
    raise OSError(f"process {pid} did not tell its allocations within {_TOLD_WITHIN_S:.0f} s; see {log}")


def table(held: Sequence[Held], count: int = COUNT) -> str:
    """What docs/performance.md says of it."""
    lines = ["| of each | resident, KiB | allocated by Python, KiB |", "| --- | ---: | ---: |"]
    lines += [f"| {each.case.says} | {each.resident_kib:.1f} | {each.allocated_kib:.1f} |" for each in held]
    return "\n".join([f"{today()}, {Machine.here()}. {count:,} at once.", "", *lines])
