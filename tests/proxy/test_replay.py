"""Do the calls of a live server replay to identical answers (S0)? The dispatcher's log is recorded under load, failures and a reload."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from lab.engine.engine import Engine
from lab.engine.faults import Fault
from lab.simulator.replay import EVENTS, Log, Recording, replay
from policies.dispatcher import Dispatcher
from policies.model import Ending, Outcome, Verdict
from proxy import translation, wiring
from proxy.settings.root import Settings
from tests.proxy.serving import TWO_LANES, serving
from tests.proxy.test_lanes import asking


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Log]]:
    made: list[Log] = []

    def recording(settings: Settings, now: float, seed: int) -> Dispatcher:
        recorder: Any = Recording(translation.plan(settings), now, seed)
        made.append(recorder.log)
        return recorder  # type: ignore[no-any-return]

    monkeypatch.setattr(wiring, "dispatcher", recording)
    yield made


_OF_TRAFFIC = {"arrive", "give_back", "first_token", "again", "leave", "hedge", "resume"}


def _names(log: Log) -> set[str]:
    return {call.name for call in log.calls}


def _outcomes(log: Log) -> set[str]:
    return {answer.outcome for call in log.calls for answer in call.answers}


async def test_a_live_servers_calls_replay_to_identical_answers(logs: list[Log]) -> None:
    async with (
        Engine(slots=4, ttft_s=0.01, tpot_s=0.001).serving() as first,
        Engine(slots=4, ttft_s=0.01, tpot_s=0.001).serving() as second,
    ):
        text = (
            TWO_LANES
            + "lanes: {fast: {max_wait: 200ms}, slow: {max_wait: 300ms, share: 10%}}\n"
            + f'platforms: {{p: {{backends: {{a: {{url: "{first.url}", max_streams: 2}}, b: {{url: "{second.url}", max_streams: 2}}}}}}}}\n'
            + "pools: {main: {primary: p, continue: true, hedge: {after: 15ms}, queue: {places: 6}}}\n"
        )
        async with serving(text) as proxy:
            first.fault(Fault(fault="status", code=503, share=0.3))
            second.fault(Fault(fault="cut", after=2, share=0.3))

            enough = asyncio.Event()

            async def caller(number: int) -> None:
                while not enough.is_set():
                    try:
                        async with asyncio.timeout(0.05 if number % 4 == 0 else 5.0):
                            await proxy.ask(asking(20), key="sk-A" if number % 2 else "sk-B")
                    except (TimeoutError, ConnectionError, EOFError):
                        pass  # who gives up is part of it

            callers = asyncio.gather(*map(caller, range(12)))
            await proxy.until(lambda: _names(logs[0]) >= _OF_TRAFFIC and "queue_full" in _outcomes(logs[0]), 20.0)
            proxy.file.write_text(proxy.file.read_text().replace("places: 6", "places: 3"))
            assert (await proxy.fairlane.reload()).ok
            for lever in ("drain/a", "undrain/a", "cap/a/1", "uncap/a", "serve/main/p", "unpin/main", "drain/a"):
                assert (await proxy.admin(f"/-/{lever}", "POST"))[0] == 200
            enough.set()
            await callers
            lease = proxy.fairlane.lobby.smoke("b")
            if lease is not None:
                proxy.fairlane.lobby.give_back(lease, Ending(Verdict.OK, Outcome.OK))
            await proxy.at_rest()
    log = pickle.loads(pickle.dumps(logs[0]))
    assert _OF_TRAFFIC | {"tick", "reconfigure", "drain", "undrain", "cap", "uncap", "serve", "unpin", "smoke"} <= _names(log)
    assert "" in _outcomes(log)
    assert replay(log) is None


async def test_another_seed_or_another_call_is_noticed(logs: list[Log]) -> None:
    async with Engine(slots=4, ttft_s=0.001, tpot_s=0.001).serving() as engine:
        text = TWO_LANES + f'platforms: {{p: {{probe: none, max_streams: 1, backends: {{b: "{engine.url}"}}}}}}\n'
        async with serving(text + "pools: {main: {primary: p, queue: {places: 1}}}\n") as proxy:
            await asyncio.gather(*(proxy.ask(asking(3)) for _ in range(6)))
            await proxy.at_rest()
    log = logs[0]
    assert replay(log) is None
    arrivals = [index for index, call in enumerate(log.calls) if call.name == "arrive"]
    swapped = Log(log.plan, log.began_at, log.seed, list(log.calls))
    del swapped.calls[arrivals[0]]
    assert replay(swapped) is not None
    other = replace(log.plan.platforms[0].backends[0], max_streams=2)
    plan = replace(log.plan, platforms=(replace(log.plan.platforms[0], backends=(other,)),))
    difference = replay(Log(plan, log.began_at, log.seed, log.calls))
    assert difference is not None
    assert "arrive" in difference


def test_no_event_of_the_dispatcher_is_left_out() -> None:
    """Whatever takes the time changes something, and is written down; but for the questions."""
    questions = {"hedge_at", "snapshot"}
    methods = {
        name for name, method in vars(Dispatcher).items() if not name.startswith("_") and "now" in inspect.signature(method).parameters
    }
    assert methods - questions == EVENTS
