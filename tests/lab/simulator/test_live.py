"""Does the live proxy do what the simulator says? The same file and the same callers, at 1:40 of the time, against the fake engine.

The simulated run knows each caller: both hosts of the policies see the same arrivals and the same answers to be generated, so that the
difference is what sockets and the loop add, and not chance. That addition is measured first, on callers who come alone, and given to the
engine's model: the live proxy agrees within 10 % plus its own latency.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import pytest

from lab.engine.engine import Engine
from lab.engine.model import Latency
from lab.simulator.draws import Spread
from lab.simulator.report import document
from lab.simulator.run import host
from lab.simulator.scenario import PoolFacts, Scenario
from lab.simulator.statistics import quantile
from lab.simulator.workload import Arrivals, Caller, Sizes, Tenants, by_rate, until
from proxy import translation
from proxy.settings.loader import loads
from tests.proxy.serving import TWO_LANES, Serving, serving

SCALE = 40.0
TOKEN_S = 0.002
KEYS = ("sk-A", "sk-B")
SERVER = 'server: {listen: "127.0.0.1:0", admin: "127.0.0.1:0", access_log: off, trace: trace.jsonl, drain: {grace: 0s, timeout: 5s}}\n'


@dataclass(frozen=True)
class Experiment:
    """Rates and seconds of the full scale."""

    streams: int
    rates: tuple[float, float]
    share: str = "0%"
    places: int = 100_000

    def text(self, url: str) -> str:
        return (
            TWO_LANES
            + f"lanes: {{fast: {{max_wait: 1h}}, slow: {{max_wait: 1h, share: {self.share}}}}}\n"
            + f'platforms: {{p: {{probe: none, max_streams: {self.streams}, backends: {{b: "{url}"}}}}}}\n'
            + f"pools: {{main: {{primary: p, queue: {{places: {self.places}}}}}}}\n"
        )

    def callers(self, requests: int, seed: int) -> Iterator[Caller]:
        """Exponential times of 8 s / 40, as tokens of 2 ms."""
        rates = {name: rate * SCALE for name, rate in zip(("fast", "slow"), self.rates, strict=True) if rate}
        sizes = Sizes(None, Spread("fixed", 1.0), Spread("exponential", 8.0 / SCALE / TOKEN_S))
        return until(by_rate(Arrivals(rates), sizes, ("fast", "slow"), Tenants(), seed), requests, None)


def latency(streams: int, ttft_s: float) -> Latency:
    return Latency(slots=streams, ttft_s=ttft_s, tpot_s=TOKEN_S, prefill_rate=1e9, load_factor=1.0, prefill_slowdown=0.0)


async def ask(proxy: Serving, caller: Caller) -> int:
    message = [{"role": "user", "content": "hi"}]
    body = json.dumps({"model": "m", "max_tokens": caller.output_tokens, "messages": message}).encode()
    return int((await proxy.ask(body, key=KEYS[caller.request.lane])).status)


async def own_latency_s(proxy: Serving, callers: Iterator[Caller]) -> float:
    """How much longer is a slot held than the model says, by callers who come alone?"""
    took = []
    for caller, _ in zip(callers, range(12), strict=False):
        began_at = time.monotonic()
        await ask(proxy, caller._replace(output_tokens=10))
        took.append(time.monotonic() - began_at - 9 * TOKEN_S)
    return sorted(took)[len(took) // 2]


async def run(experiment: Experiment, requests: int, seed: int) -> tuple[dict[str, list[float]], Any, dict[str, Any]]:
    """Live waits by lane, the engine's log, and the simulated document with its waits by lane."""
    async with Engine(
        slots=experiment.streams, ttft_s=0.0, tpot_s=TOKEN_S, prefill_rate=1e9, load_factor=1.0, prefill_slowdown=0.0
    ).serving() as engine:
        text = experiment.text(engine.url)
        async with serving(text, server=SERVER) as proxy:
            extra_s = await own_latency_s(proxy, experiment.callers(100, seed + 1_000))
            alone = len(proxy.file.with_name("trace.jsonl").read_bytes().splitlines())
            began_at = time.monotonic() + 0.05
            asked = []
            for caller in experiment.callers(requests, seed):
                await asyncio.sleep(max(0.0, began_at + caller.at - time.monotonic()))
                asked.append(asyncio.ensure_future(ask(proxy, caller)))
            await asyncio.gather(*asked)
            await proxy.at_rest()
            file = proxy.file.with_name("trace.jsonl")
            await proxy.until(lambda: file.read_bytes().count(b"\n") == requests + 12, 10.0)
            lines = [json.loads(line) for line in file.read_bytes().splitlines()][12:]
            del alone
            waits: dict[str, list[float]] = {"fast": [], "slow": []}
            for line in lines:
                if line["outcome"] == "ok":
                    waits[line["lane"]].append(line["queue_s"])
            log = engine.log
    settings = loads(experiment.text("http://127.0.0.1:1").encode(), {}).settings
    scenario = Scenario(
        translation.plan(settings), lambda request: "main", {"main": PoolFacts()}, latency=latency(experiment.streams, extra_s), seed=seed
    )
    tally = host(scenario, experiment.callers(requests, seed))
    found = document(tally, "live", seed)
    print(f"own latency {extra_s * 1e3:.1f} ms")
    for lane in tally.lanes:
        live = waits[lane.name]
        if live:
            print(
                f"{lane.name}: live mean {fmean(live):.4f} p95 {quantile(sorted(live), 0.95):.4f} n {len(live)}, "
                f"simulated {found['lanes'][lane.name]['queue_wait_s']}"
            )
    return waits, log, found


def agree(live: list[float], simulated: dict[str, Any], margin: float, own_s: float) -> None:
    assert fmean(live) == pytest.approx(simulated["mean"], rel=margin, abs=own_s)
    assert quantile(sorted(live), 0.95) == pytest.approx(simulated["p95"], rel=margin, abs=own_s)


@pytest.mark.parametrize(("requests", "margin", "own_s"), [(300, 0.2, 0.02), pytest.param(4_000, 0.1, 0.003, marks=pytest.mark.soak)])
async def test_1_2_and_3_two_strict_lanes(requests: int, margin: float, own_s: float) -> None:
    waits, log, found = await run(Experiment(8, (0.3, 0.6)), requests, seed=1)
    for name, live in waits.items():
        agree(live, found["lanes"][name]["queue_wait_s"], margin, own_s)
    assert (log.at_most_held, log.at_most_waiting) == (8, 0), "never above the cap, and no queue in the engine"
    assert found["backends"]["b"]["max_in_flight"] == 8


@pytest.mark.soak
async def test_2_one_lane_of_eighty_streams() -> None:
    """360 requests a second."""
    waits, log, found = await run(Experiment(80, (9.0, 0.0)), 12_000, seed=2)
    assert fmean(waits["fast"]) == pytest.approx(found["lanes"]["fast"]["queue_wait_s"]["mean"], rel=0.1, abs=0.005)
    assert (log.at_most_held, log.at_most_waiting) == (80, 0)


@pytest.mark.parametrize(("requests", "margin"), [(500, 0.25), pytest.param(4_000, 0.1, marks=pytest.mark.soak)])
async def test_4_the_owed_share(requests: int, margin: float) -> None:
    """Overload: 12 and 3 in 15 on a capacity of 10, at a tenth of the size. Slow gets its tenth of the dispatches."""
    waits, log, found = await run(Experiment(8, (1.2, 0.3), "10%", places=10), requests, seed=3)
    live = {name: len(found_) for name, found_ in waits.items()}
    simulated = {name: lane["answered"] for name, lane in found["lanes"].items()}
    assert live["slow"] / (live["fast"] + live["slow"]) == pytest.approx(0.1, abs=0.1 * margin + 0.01)
    for name in ("fast", "slow"):
        assert live[name] == pytest.approx(simulated[name], rel=margin)
    assert log.at_most_held == 8
