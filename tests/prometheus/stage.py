"""What does a scenario need? A real Prometheus that scrapes a real Fairlane, and callers who remember what they got."""

from __future__ import annotations

import asyncio
import json
import math
import random
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from tests.proxy.serving import Serving
from tests.wire import RawClient, eventually, post

ROOT = Path(__file__).resolve().parents[2]
SCRAPE_S = 0.5
Series = dict[str, str]


@dataclass(frozen=True)
class Result:
    """One series of an answer: its labels and its samples, instant and value."""

    labels: Series
    samples: list[tuple[float, float]]

    @property
    def value(self) -> float:
        return self.samples[-1][1]


class Prometheus:
    """A running Prometheus. Every question raises AssertionError with the query if it is refused."""

    def __init__(self, port: int, session: aiohttp.ClientSession) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self._session = session

    async def ask(self, query: str) -> list[Result]:
        """The value now."""
        found = await self._get("query", {"query": query})
        return [Result(each["metric"], [_sample(each["value"])]) for each in found]

    async def one(self, query: str) -> float:
        """The only value there is."""
        (only,) = await self.ask(query)
        return only.value

    async def over(self, query: str, start: float, end: float) -> list[Result]:
        """The values between two instants, seconds since 1970, as a panel asks for them."""
        found = await self._get("query_range", {"query": query, "start": f"{start}", "end": f"{end}", "step": "1"})
        return [Result(each["metric"], [_sample(pair) for pair in each["values"]]) for each in found]

    async def has_scraped_since(self, instant: float) -> bool:
        """Is there a scrape that began after it?"""
        times = await self.ask("timestamp(fairlane_build_info)")  # of the sample; of anything but a selector it would be the query's
        return bool(times) and times[0].value > instant

    async def ready(self) -> bool:
        try:
            async with self._session.get(f"{self._url}/-/ready") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False

    async def _get(self, what: str, parameters: Mapping[str, str]) -> Any:
        async with self._session.post(f"{self._url}/api/v1/{what}", data=parameters) as answer:
            said = await answer.json()
        assert said["status"] == "success", f"{parameters['query']}: {said.get('error')}"
        return said["data"]["result"]


def _sample(pair: tuple[float, str]) -> tuple[float, float]:
    return float(pair[0]), float(pair[1])


@asynccontextmanager
async def prometheus(admin_port: int, folder: Path) -> AsyncIterator[Prometheus]:
    """Prometheus with our rules, on a Fairlane's admin port, until the block ends."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = yaml.safe_load((ROOT / "config" / "prometheus" / "prometheus.yaml").read_text())
    config["global"] = {"scrape_interval": f"{int(SCRAPE_S * 1000)}ms", "evaluation_interval": "1s"}
    config["rule_files"] = [str(ROOT / "config" / "prometheus" / name) for name in config["rule_files"]]
    config["scrape_configs"][0]["static_configs"] = [{"targets": [f"127.0.0.1:{admin_port}"]}]
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    process = await asyncio.create_subprocess_exec(
        "prometheus",
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    )
    try:
        async with aiohttp.ClientSession() as session:
            running = Prometheus(port, session)
            await eventually(lambda: process.returncode is not None or running.ready(), 20.0)
            assert process.returncode is None, "prometheus has ended; see its stderr"
            yield running
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@dataclass
class Call:
    """One request, as its caller saw it. `ttft_s`: sent to head, which Fairlane holds until the first token."""

    lane: str
    status: int = 0
    reason: str = ""
    whole: bool = False
    queue_s: float = 0.0
    ttft_s: float = 0.0
    tokens: int = 0

    @property
    def outcome(self) -> str:
        """What Fairlane should call it."""
        if self.status == 200:
            return "ok" if self.whole else "truncated"
        return self.reason


@dataclass
class Callers:
    """An open loop of callers, Poisson in each lane."""

    proxy: Serving
    output_tokens: int
    random: random.Random = field(default_factory=lambda: random.Random(1))
    calls: list[Call] = field(default_factory=list)

    async def come(self, seconds: float, rps: Mapping[str, float]) -> list[Call]:
        """They come for so long; returns what those of this time got, once all have their answer."""
        mine: list[Call] = []
        at = time.monotonic()
        end = at + seconds
        async with asyncio.TaskGroup() as tasks:
            while (at := at + self.random.expovariate(sum(rps.values()))) < end:
                await asyncio.sleep(max(0.0, at - time.monotonic()))
                call = Call(self.random.choices(list(rps), list(rps.values()))[0])
                mine.append(call)
                tasks.create_task(self._ask(call))
        self.calls += mine
        return mine

    async def _ask(self, call: Call) -> None:
        words = self.random.choice([5, 5, 5, 900])
        asked = {
            "model": "m",
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": self.output_tokens,
            "messages": [{"role": "user", "content": "word " * words}],
        }
        began_at = time.monotonic()
        async with await RawClient.connect(self.proxy.port, timeout_s=30.0) as caller:
            await caller.send(post(json.dumps(asked).encode(), key="sk-A" if call.lane == "fast" else "sk-B"))
            head = await caller.head()
            call.ttft_s = time.monotonic() - began_at
            call.status, call.reason = head.status, head.header("x-fairlane-reason") or ""
            call.queue_s = int(head.header("x-fairlane-queue-ms") or 0) / 1000
            body, framed_to_the_end = await caller.body()
            call.whole = framed_to_the_end and body.endswith(b"data: [DONE]\n\n")
            call.tokens = body.count(b'"content":') if call.whole else 0


def tally(calls: list[Call]) -> Counter[tuple[str, str]]:
    """How many of each lane ended how."""
    return Counter((call.lane, call.outcome) for call in calls)


def p95(values: list[float]) -> float:
    """The value below which 95 % lie."""
    return sorted(values)[max(0, math.ceil(0.95 * len(values)) - 1)]


def buckets_apart(a: float, b: float, bounds: tuple[float, ...]) -> int:
    """How many boundaries lie between two values?"""
    return sum(min(a, b) <= bound < max(a, b) for bound in bounds)
