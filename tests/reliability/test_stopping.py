"""C10: does a story that stops at any of its awaits leave anything behind? Cancelled there, and with a fault raised there.

Each scenario is run once to count the places where its story waits, then once for each place. That these places are all the awaits there
are is read from the source: an await that no scenario stops at fails the test.
"""

from __future__ import annotations

import ast
import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import proxy
from policies.hedging import Hedging
from policies.retries import Budget
from proxy.story import Story
from tests.reliability.files import two
from tests.reliability.shapes import hurry
from tests.reliability.stepping import Stepped
from tests.reliability.watch import Watch, watched
from tests.wire import JS, J, ScriptedBackend, post, scripts
from tests.wire.backend import Step

SOURCE = Path(proxy.__file__).parent
WALKED = ("story.py", "hedge.py", "onward.py", "dispatch.py", "attempt.py", "http1/client.py")  # what a story awaits, to its end
NOT_A_STORYS = {("attempt.py", "wait_on")}  # of a late probe, which outlives its story: test_breaker, test_f08_*


class Scenario(NamedTuple):
    """What the backends do, what is asked, and whom it meets."""

    primary: list[Step]
    standby: list[Step]
    body: bytes
    behind: str = ""  # another on the only slot of the "primary", of the "standby", or of both
    pool: str = ""
    drained: str = ""  # this platform


OTHER = {
    "primary": ([scripts.ok(gap_s=0.01)], []),
    "both": ([scripts.status(500)], [scripts.ok(gap_s=0.01)]),
    "standby": ([scripts.status(500)], [scripts.ok(gap_s=0.02)]),
}
CUT = [scripts.head(), scripts.chunked(scripts.ROLE), scripts.event("a"), scripts.delay(0.01), scripts.fin()]
SCENARIOS = {
    "stream": Scenario([scripts.ok(gap_s=0.01)], [scripts.ok()], JS),
    "whole": Scenario([scripts.ok()], [scripts.ok()], J),
    "queued": Scenario([scripts.ok(gap_s=0.01)], [scripts.ok()], JS, "primary"),
    "retried": Scenario([scripts.status(500)], [scripts.ok(gap_s=0.01)], JS),
    "retried-and-queued": Scenario([scripts.status(500)], [scripts.ok(gap_s=0.01)], JS, "both"),
    "reset-then-retried": Scenario([scripts.head(), scripts.chunked(scripts.ROLE), scripts.rst()], [scripts.ok()], JS),
    "hedged": Scenario([scripts.hang()], [scripts.delay(0.01), scripts.ok(gap_s=0.01)], JS, pool=", hedge: {after: 10ms}"),
    "hedge-denied": Scenario([scripts.delay(0.1), scripts.ok()], [scripts.ok()], JS, pool=", hedge: {after: 10ms}", drained="s"),
    "continued": Scenario(CUT, [scripts.delay(0.01), scripts.ok(gap_s=0.01)], JS, pool=", continue: true"),
    "continued-and-queued": Scenario(CUT, [scripts.ok()], JS, "standby", ", continue: true"),
}
Stage = tuple[Watch, ScriptedBackend, ScriptedBackend]
Place = tuple[str, int]  # file within proxy/, line


def awaits() -> dict[Place, tuple[int, str]]:
    """Every await of what a story walks through: its last line, and the function it is in."""
    found = {}
    for name in WALKED:
        for function in ast.walk(ast.parse((SOURCE / name).read_text())):
            if isinstance(function, ast.AsyncFunctionDef) and (name, function.name) not in NOT_A_STORYS:
                for node in ast.walk(function):
                    if isinstance(node, ast.Await):
                        found[name, node.lineno] = node.end_lineno or node.lineno, function.name
    return found


def test_the_awaits_are_found_in_the_source() -> None:
    functions = {function for _, function in awaits().values()}
    assert {"tell", "_find_answer", "_hand_over", "first_token", "connect"} <= functions and len(awaits()) >= 8


@asynccontextmanager
async def stage(scenario: Scenario) -> AsyncIterator[Stage]:
    here, there = OTHER.get(scenario.behind, ([], []))
    async with ScriptedBackend(*scenario.primary, named={"other": here}) as first:
        async with ScriptedBackend(*scenario.standby, named={"other": there}) as second:
            text = two(first, second, cap=1, pool=", queue: {places: 4, max_wait: 10s}" + scenario.pool)
            async with watched(text, first, second) as proxy:
                if scenario.drained:
                    assert (await proxy.admin(f"/-/drain/{scenario.drained}", "POST"))[0] == 200
                yield proxy, first, second


def stepping(monkeypatch: pytest.MonkeyPatch, problem: Callable[[], BaseException]) -> dict[str, Any]:
    """Every story from now on is driven by steps; `at` says where the marked one is hit, `stopped` where it was."""
    tell = Story.tell
    told: dict[str, Any] = {"at": None, "last": None, "stopped": set()}

    async def stepped(self: Story) -> None:
        marked = any(name == b"x-mark" for name, _ in self.exchange.head.headers)
        step = Stepped(tell(self), told["at"] if marked else None, problem())
        if marked:
            told["last"] = step
        try:
            await step
        finally:
            told["stopped"] |= {(Path(file).relative_to(SOURCE).as_posix(), line) for file, line in step.stopped_at if str(SOURCE) in file}

    monkeypatch.setattr(Story, "tell", stepped)
    return told


@pytest.mark.parametrize("problem", [RuntimeError, asyncio.CancelledError], ids=["raises", "cancelled"])
async def test_c10_wherever_a_story_stops_its_slot_comes_back_and_it_ends_once(
    problem: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch, failures_in_row=1_000_000, window_samples=1_000_000)  # nobody is ejected: each run meets what the first met
    monkeypatch.setattr(Hedging, "_PRICE", 0)  # each run may hedge,
    monkeypatch.setattr(Budget, "allows", lambda self: True)  # and try again
    told = stepping(monkeypatch, lambda: problem("here"))
    for name, scenario in SCENARIOS.items():
        async with stage(scenario) as on:
            await swept(name, scenario, told, problem, on)
    missing = [
        f"proxy/{file}:{line} in {function}"
        for (file, line), (last, function) in awaits().items()
        if not any(file == stopped and line <= at <= last for stopped, at in told["stopped"])
    ]
    assert missing == [], "no scenario stops there: add one to SCENARIOS"


async def swept(name: str, scenario: Scenario, told: dict[str, Any], problem: type[BaseException], on: Stage) -> None:
    """Stop the story of this scenario at each of its places in turn."""
    proxy, first, second = on
    proxy.alive = False  # the primary fails in some scenarios; that slots are free is asked below
    others = bool(scenario.behind)
    told["at"] = None
    await once(proxy, scenario, first, second)
    places = told["last"].count
    assert places >= 1, name
    before = len(await proxy.logged(1 + others))
    for at in range(1, places + 1):
        told["at"] = at
        outcome = await once(proxy, scenario, first, second)
        await proxy.at_rest()
        lines = await proxy.logged(before + 1 + others)
        assert len(lines) == before + 1 + others, f"{name}: one line each"
        if told["last"].fired:
            marked = next(line for line in reversed(lines) if line["id"] == "marked")
            expected = {"internal"} if problem is RuntimeError else {"draining", "client_gone"}
            assert marked["outcome"] in expected, (name, at, marked)
            assert outcome in (500, 503, None), "an answer of ours, or a cut one"
            proxy.internal += problem is RuntimeError
        before = len(lines)
        assert proxy.state.in_flight == proxy.state.waiting == 0
    told["at"] = None
    first.script = second.script = (scripts.ok(),)
    proxy.complaints.clear()
    assert (await proxy.ask()).status == 200, "the only slot is usable"


async def once(proxy: Watch, scenario: Scenario, first: ScriptedBackend, second: ScriptedBackend) -> int | None:
    """One marked request, behind another if need be: its status if it was whole."""
    other: asyncio.Future[Any] | None = None
    if scenario.behind:
        holds = first if scenario.behind == "primary" else second
        seen = len(holds.requests)
        other = asyncio.ensure_future(proxy.ask(JS, x_script="other"))
        await holds.until(lambda: len(holds.requests) > seen)
    async with await proxy.connect() as caller:
        try:
            answer = await asyncio.wait_for(caller.ask(post(scenario.body, headers={"x-mark": "1", "x-request-id": "marked"})), 5)
            status = answer.status if answer.whole else None
        except EOFError:
            status = None
    if other is not None:
        await other
    return status
