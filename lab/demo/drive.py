"""What does each lane get at twice what the model carries, and does anyone notice when the primary dies?

Three parts: a closed loop finds what the model carries; an open loop, Poisson, sends twice that over both lanes, streamed; a
last one, within what one engine carries, goes on while the primary is killed. The last one asks for whole answers: what is
being generated when the engine dies can then be done again, while a stream that has begun can only end in an error event.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import NoReturn

import aiohttp
from rich.console import Console, RenderableType
from rich.live import Live

from lab.demo.caller import Call, Got, ask, question
from lab.demo.children import DemoProblem
from lab.demo.metrics import Metrics, scrape
from lab.demo.score import Score, picture
from lab.demo.stage import STREAMS, Stage

LANES = ("fast", "slow")
SHARES_AT_TWICE = {"fast": 0.5, "slow": 1.5}  # of what the model carries; together twice that
SHARES_AT_KILL = {"fast": 0.4, "slow": 0.4}
MEASURE_S = 5.0
KILL_AFTER_S = 4.0
GENERATING_S = 0.2  # into an answer that takes longer
AFTER_KILL_MIN_S = 8.0
LOOK_EVERY_S = 0.5


class Driver:
    """Sends the load and watches both sides of it."""

    def __init__(self, stage: Stage, session: aiohttp.ClientSession, console: Console) -> None:
        self.stage = stage
        self.session = session
        self.console = console
        self.random = random.Random(1)
        self.keys = {"fast": stage.places.paying_key, "slow": stage.places.free_key}
        self.engines_waiting = 0.0  # the highest seen
        self.fairlane = Metrics(())
        self._number = 0

    async def call(self, score: Score, lane: str, sent_at: float, *, streamed: bool) -> None:
        call = Call(lane, sent_at)
        score.calls.append(call)
        self._number += 1
        await ask(self.session, self.stage.places.url, self.keys[lane], call, question(self._number, streamed))

    async def carried(self) -> float:
        """Answers per second with as many callers as the engine has streams, each asking again at once."""
        score, start = Score(), time.monotonic()

        async def caller() -> None:
            while time.monotonic() < start + MEASURE_S:
                await self.call(score, "fast", time.monotonic(), streamed=True)

        await asyncio.gather(*(caller() for _ in range(STREAMS)))
        if score.unserved():
            raise DemoProblem(f"the model does not answer: {score.unserved()[0].why}")
        return len(score.calls) / (time.monotonic() - start)

    async def load(self, score: Score, lane: str, rate_rps: float, seconds: float, *, streamed: bool) -> None:
        """Open loop: calls leave when they are due, whatever became of those before. Ends when all have ended."""
        due = time.monotonic()
        end = due + seconds
        async with asyncio.TaskGroup() as calls:
            while (due := due + self.random.expovariate(rate_rps)) < end:
                await asyncio.sleep(due - time.monotonic())
                calls.create_task(self.call(score, lane, due, streamed=streamed))

    async def look(self) -> None:
        """Asks Fairlane, and the engines that live. Raises aiohttp.ClientError or TimeoutError."""
        places = self.stage.places
        self.fairlane = await scrape(self.session, places.admin_url)
        for child, url in ((self.stage.primary, places.primary_url), (self.stage.standby, places.standby_url)):
            if not child.ended:
                engine = await scrape(self.session, url)
                self.engines_waiting = max(self.engines_waiting, engine.sum("llamacpp:requests_deferred"))

    async def show(self, live: Live, title: str, score: Score) -> NoReturn:
        """Keeps the live table up to date, until cancelled."""
        while True:
            try:
                await self.look()
            except (aiohttp.ClientError, TimeoutError):
                pass  # an engine killed just now; the next look knows
            live.update(self._picture(title, score), refresh=True)
            await asyncio.sleep(LOOK_EVERY_S)

    def _picture(self, title: str, score: Score) -> RenderableType:
        return picture(title, score, LANES, self.fairlane, self.engines_waiting)

    async def part(self, title: str, rates_rps: dict[str, float], seconds: float, *, streamed: bool, kill: bool = False) -> Score:
        """One stretch of load on both lanes, shown live."""
        score = Score()
        with Live(console=self.console, auto_refresh=False) as live:
            table = asyncio.ensure_future(self.show(live, title, score))
            try:
                async with asyncio.TaskGroup() as loads:
                    for lane, rate_rps in rates_rps.items():
                        loads.create_task(self.load(score, lane, rate_rps, seconds, streamed=streamed))
                    if kill:
                        loads.create_task(self.kill_primary(score))
                await self.look()
            finally:
                table.cancel()
                live.update(self._picture(title, score))
        self.console.print()
        return score

    async def kill_primary(self, score: Score) -> None:
        """After a while, and while it is generating: SIGKILL, as a machine dies."""
        await asyncio.sleep(KILL_AFTER_S)
        async with asyncio.TaskGroup() as calls:
            calls.create_task(self.call(score, "fast", time.monotonic(), streamed=False))
            await asyncio.sleep(GENERATING_S)
            self.stage.primary.process.kill()


async def drive_lanes(stage: Stage, seconds: float, console: Console) -> dict[str, object]:
    """Runs the three parts, tells what happened on `console`, and returns it as a report."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as session:
        driver = Driver(stage, session, console)
        console.print(f"Measuring what the model carries with {STREAMS} streams, for {MEASURE_S:.0f} s ...")
        carried = await driver.carried()
        rates = {lane: share * carried for lane, share in SHARES_AT_TWICE.items()}
        console.print(
            f"It carries {carried:.2f} answers/s. Now twice that: " + ", ".join(f"{lane} {rate:.2f}/s" for lane, rate in rates.items())
        )
        twice = await driver.part("Both lanes at twice what the model carries", rates, seconds, streamed=True)
        _tell_lanes(console, twice)

        await driver.look()
        before = driver.fairlane.platforms_in_service()
        console.print("\nNow the primary dies under load (whole answers, within what one engine carries).")
        rates = {lane: share * carried for lane, share in SHARES_AT_KILL.items()}
        killed = await driver.part("The primary dies", rates, KILL_AFTER_S + max(AFTER_KILL_MIN_S, seconds / 4), streamed=False, kill=True)
        await driver.look()
        after = driver.fairlane.platforms_in_service()
        failovers = driver.fairlane.sum("fairlane_failovers_total")
        console.print(
            f"In service before: {', '.join(before) or 'none'}; after: {', '.join(after) or 'none'}; failovers: {failovers:.0f}.\n"
            f"Callers: {len(killed.calls)}; failed: {len(killed.failed())}; refused: {len(killed.unserved()) - len(killed.failed())}."
        )
        for call in killed.unserved()[:5]:
            console.print(f"  {call.lane}: {call.why}")
        console.print("No caller noticed." if not killed.unserved() else "Callers noticed.")
        return {
            "carried_rps": carried,
            "seconds": seconds,
            "lanes": twice.report(LANES),
            "engines_waiting_max": driver.engines_waiting,
            "kill": {"lanes": killed.report(LANES), "in_service_before": before, "in_service_after": after, "failovers": failovers},
        }


def _tell_lanes(console: Console, score: Score, lanes: Sequence[str] = LANES) -> None:
    for lane in lanes:
        calls = score.lane(lane)
        answered = sum(call.got is Got.ANSWER for call in calls)
        ratio = answered / len(calls) if calls else 0.0
        console.print(f"{lane}: {answered} of {len(calls)} answered ({ratio:.0%}), {answered / score.span_s():.2f} answers/s")
