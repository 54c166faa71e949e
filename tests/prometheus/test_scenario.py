"""Does every panel show something when it should, and the truth? Fairlane under load, read by a real Prometheus. Rung 4 of the proof.

Idle, normal, overload, the primary dies, and (in `make soak`) it is healed. The short form leaves out the healing.
"""

from __future__ import annotations

import asyncio
import math
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from shutil import which

import pytest

from lab.engine.engine import Engine
from proxy.telemetry import catalogue
from tests.prometheus.promql import plain
from tests.prometheus.stage import Callers, Prometheus, buckets_apart, p95, prometheus, tally
from tests.proxy.serving import TWO_LANES, Serving, serving
from tests.wire import eventually

pytest.importorskip("grafana_foundation_sdk", reason="needs the extra dashboards")

from lab.dashboards.panel import When
from lab.dashboards.write import DASHBOARDS

pytestmark = [
    pytest.mark.skipif(which("prometheus") is None, reason="needs prometheus: apt-get install prometheus"),
]

SLOTS, OUTPUT_TOKENS, TPOT_S = 4, 20, 0.01  # an engine gives about 17 answers per second
NORMAL = {"fast": 6.0, "slow": 8.0}
OVERLOAD = {"fast": 12.0, "slow": 50.0}


@dataclass(frozen=True)
class Lengths:
    """How long each phase lasts, in seconds; healed 0: left out."""

    idle: float
    normal: float
    overload: float
    killed: float
    healed: float

    @property
    def window(self) -> str:
        """What rates are taken over: within one phase."""
        return f"{max(3, int(min(self.normal, self.overload, self.killed) / 2))}s"


SHORT = Lengths(idle=1.0, normal=4.0, overload=4.0, killed=4.0, healed=0.0)
LONG = Lengths(idle=15.0, normal=25.0, overload=25.0, killed=25.0, healed=40.0)


def file(own: list[Engine], rented: Engine) -> str:
    backends = ", ".join(f'own-{number}: "{engine.url}"' for number, engine in enumerate(own, 1))
    return (
        TWO_LANES
        + "lanes: {fast: {max_wait: 1500ms}, slow: {max_wait: 1s, share: 10%}}\n"
        + f"platforms:\n  own: {{max_streams: {SLOTS}, backends: {{{backends}}}, cost: {{per_hour: 2.1}}}}\n"
        + f'  rented: {{max_streams: {2 * SLOTS}, backends: {{api: "{rented.url}"}}, '
        + "cost: {input_per_million: 0.5, output_per_million: 1.5}}\n"
        + "pools:\n  chat: {primary: own, standby: rented, slo: {ttft: 600ms, tpot: 150ms}, queue: {places: 12},"
        + " failback: {hold: 3s, ramp: 3s}}\n"
    )


class Scenario:
    """The phases, one after another, and what is looked at after each."""

    def __init__(self, lengths: Lengths, proxy: Serving, prometheus: Prometheus, own: list[Engine]) -> None:
        self.lengths = lengths
        self.proxy = proxy
        self.prometheus = prometheus
        self.own = own
        self.callers = Callers(proxy, OUTPUT_TOKENS)
        self.shown: dict[str, int] = {}

    async def run(self) -> None:
        lengths = self.lengths
        await eventually(lambda: self.prometheus.has_scraped_since(0.0), 10.0)
        await self.phase("idle", lengths.idle, {}, When.ALWAYS)
        await self.phase("normal", lengths.normal, NORMAL, When.ALWAYS, When.TRAFFIC)
        assert await self.prometheus.ask('ALERTS{alertstate="firing"}') == [], "an alert in normal operation"
        # Two that may be pending here: prompts of two lengths are a tail, and callers and engines share the loop of this process.
        assert await self.prometheus.ask('ALERTS{alertname!~"TailUnstable|LoopLag"}') == [], "an alert is on its way in normal operation"
        await self.phase("overload", lengths.overload, OVERLOAD, When.ALWAYS, When.TRAFFIC, When.OVERLOAD)
        assert any(call.reason == "queue_full" for call in self.callers.calls)
        await self.agree_on_waits_and_tokens()
        await self.kill_and_look()
        if lengths.healed:
            await self.heal_and_look()
        await self.proxy.at_rest()
        await self.agree_on_counts()

    async def phase(self, name: str, seconds: float, rps: dict[str, float], *expected: When) -> None:
        """Callers come (or nobody does), and then every panel of the expected kinds must have something to show."""
        began_at = time.time()
        if rps:
            await self.callers.come(seconds, rps)
        else:
            await asyncio.sleep(seconds)
        await self.look(name, began_at, *expected)

    async def look(self, name: str, began_at: float, *expected: When) -> None:
        ended_at = time.time()
        await eventually(lambda: self.prometheus.has_scraped_since(ended_at), 10.0)
        for dashboard in DASHBOARDS:
            for panel in dashboard.panels:
                for query in panel.queries:
                    found = await self.prometheus.over(plain(query.expr, self.lengths.window, "30s"), began_at, time.time())
                    values = [value for each in found for _, value in each.samples]
                    where = f"{name}: {dashboard.uid}, {panel.title}: {query.expr}"
                    assert all(math.isfinite(value) for value in values), f"not a number in {where}"
                    assert values or panel.when not in expected, f"nothing in {where}"
                    self.shown[name] = self.shown.get(name, 0) + bool(values)

    async def kill_and_look(self) -> None:
        """The primary dies under load: both its engines, connections and all."""
        began_at = time.time()
        calls = asyncio.ensure_future(self.callers.come(self.lengths.killed, NORMAL))
        await asyncio.sleep(self.lengths.killed * 0.2)
        for engine in self.own:
            await engine.stop()
        await calls
        await self.look("killed", began_at, When.ALWAYS, When.TRAFFIC, When.FAILURE)
        assert await self.prometheus.one("max by (platform) (fairlane_platform_in_service * fairlane_platform_standby) == 1") == 1
        alerts = {each.labels["alertname"] for each in await self.prometheus.ask("ALERTS")}
        assert "RunningOnStandby" in alerts and "TargetDown" not in alerts

    async def heal_and_look(self) -> None:
        """Its engines are back: it is probed, holds, ramps, and serves again."""
        for engine in self.own:
            await engine.start()
        await self.phase("healed", self.lengths.healed, NORMAL, When.ALWAYS, When.TRAFFIC)
        recovered = 'sum(fairlane_failovers_total{from="rented", to="own", reason="recovered"})'
        assert await self.prometheus.one(recovered) == 1
        assert await self.prometheus.one('fairlane_platform_in_service{platform="own"}') == 1

    async def agree_on_waits_and_tokens(self) -> None:
        """Before anything dies no dispatch is repeated: each caller's wait is one observation."""
        for lane in ("fast", "slow"):
            answered = [call for call in self.callers.calls if call.lane == lane and call.status == 200]
            waits = f'fairlane_queue_wait_seconds_bucket{{lane="{lane}", outcome="dispatched"}}'
            seen = await self.prometheus.one(f"histogram_quantile(0.95, sum by (le) ({waits}))")
            assert buckets_apart(seen, p95([call.queue_s for call in answered]), catalogue.LONG_S) <= 1
            ttft = await self.prometheus.one(f'histogram_quantile(0.95, sum by (le) (fairlane_ttft_seconds_bucket{{lane="{lane}"}}))')
            assert buckets_apart(ttft, p95([call.ttft_s for call in answered]), catalogue.TTFT_S) <= 1
        tokens = await self.prometheus.one('sum(fairlane_tokens_total{direction="output", source="usage"})')
        assert tokens == OUTPUT_TOKENS * sum(call.status == 200 for call in self.callers.calls)

    async def agree_on_counts(self) -> None:
        """Answered and refused per lane, exactly."""
        ended_at = time.time()
        await eventually(lambda: self.prometheus.has_scraped_since(ended_at), 10.0)
        counted = {
            (each.labels["lane"], each.labels["outcome"]): each.value
            for each in await self.prometheus.ask('sum by (lane, outcome) (fairlane_requests_total{pool="chat"}) > 0')
        }
        assert counted == tally(self.callers.calls)


async def play(lengths: Lengths, folder: Path) -> Scenario:
    engines = [Engine(slots=SLOTS, ttft_s=0.02, tpot_s=TPOT_S, load_factor=1.0, prefill_rate=40_000.0) for _ in range(2)]
    async with (
        engines[0].serving(),
        engines[1].serving(),
        Engine(slots=2 * SLOTS, ttft_s=0.04, tpot_s=TPOT_S, load_factor=1.0, prefill_rate=40_000.0).serving() as rented,
        serving(file(engines, rented)) as proxy,
        prometheus(proxy.fairlane.admin_port, folder) as reading,
    ):
        scenario = Scenario(lengths, proxy, reading, engines)
        await scenario.run()
        _, text = await proxy.admin("/metrics")
        checked = await asyncio.to_thread(subprocess.run, ["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, ""), checked.stdout + checked.stderr
        assert rented.log.at_most_held <= 2 * SLOTS and all(engine.log.at_most_held <= SLOTS for engine in engines)
        return scenario


async def test_every_panel_shows_the_truth_in_a_short_scenario(tmp_path: Path) -> None:
    scenario = await play(SHORT, tmp_path)
    print(scenario.shown, dict(tally(scenario.callers.calls)))


@pytest.mark.soak
async def test_every_panel_shows_the_truth_in_two_minutes(tmp_path: Path) -> None:
    scenario = await play(LONG, tmp_path)
    print(scenario.shown, dict(tally(scenario.callers.calls)))
