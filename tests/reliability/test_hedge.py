"""A second attempt beside the first: does the caller get one clean stream, and does the loser cost nothing?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.reliability.files import two
from tests.reliability.test_leaving import MANNERS
from tests.reliability.watch import Watch, watched
from tests.wire import JS, J, ScriptedBackend, eventually, post, scripts
from tests.wire.backend import Step

CONTENT = b"".join(scripts.chat_events(3))
HEDGE = ", hedge: {after: 100ms}"
Stage = tuple[Watch, ScriptedBackend, ScriptedBackend]


@asynccontextmanager
async def stage(*first: Step, second: tuple[Step, ...] = (scripts.ok(),), pool: str = HEDGE, cap: int = 8) -> AsyncIterator[Stage]:
    """A primary that does `first` and a standby, with answers enough behind them to pay for one hedge."""
    async with ScriptedBackend(named={"pay": (scripts.ok(),)}) as primary, ScriptedBackend(*second) as standby:
        async with watched(two(primary, standby, cap=cap, pool=pool), primary, standby) as proxy:
            await paid(proxy)
            primary.script = first
            yield proxy, primary, standby
            primary.script = standby.script = (scripts.ok(),)


async def paid(proxy: Any, answers: int = 21) -> None:
    async with await proxy.connect() as caller:
        for _ in range(answers):
            assert (await caller.ask(post(J, headers={"x-script": "pay"}))).status == 200


async def last_line(proxy: Watch, requests: int = 1) -> dict[str, Any]:
    """The log's last line, once the requests after the paying ones have ended."""
    return (await proxy.logged(21 + requests))[-1]


async def test_a_late_first_token_is_had_from_an_idle_backend_and_the_loser_is_cancelled() -> None:
    async with stage(scripts.head(), scripts.chunked(scripts.ROLE), scripts.hang()) as (proxy, first, second):
        began = time.monotonic()
        answer = await proxy.ask(JS)
        assert 0.09 < time.monotonic() - began < 2.0
        assert (answer.body, answer.whole, answer.body.count(b'"role"')) == (CONTENT, True, 1)
        assert answer.header("x-fairlane-attempts") == "2"
        loser = first.requests[-1]
        await eventually(lambda: loser.close_seen_at is not None)
        answered_at = second.requests[-1].first_byte_at
        assert answered_at is not None and loser.close_seen_at is not None and loser.close_seen_at - answered_at < 0.5
        assert second.requests[-1].header("x-fairlane-attempt") == "2"
        assert second.requests[-1].body == loser.body
        line = await last_line(proxy)
        assert (line["outcome"], line["attempts"], line["hedges"], line["backend"], line["platform"]) == ("ok", 2, 1, "c", "s")
        assert (line["tokens_in"], line["tokens_out"], line["tokens_source"]) == (5, 3, "usage")
        assert await proxy.metric("fairlane_hedges_total", pool="main", result="won") == 1
        assert await proxy.metric("fairlane_retries_total") == 0, "it was none"
        assert await proxy.metric("fairlane_attempts_total", backend="b", outcome="cancelled") == 1
        assert await proxy.metric("fairlane_attempts_total", backend="c", outcome="ok") == 1


async def test_the_first_may_still_speak_first() -> None:
    gate = asyncio.Event()
    async with stage(scripts.wait(gate), scripts.ok(), second=(scripts.hang(),)) as (proxy, first, second):
        asked = asyncio.ensure_future(proxy.ask(JS))
        await second.seen(1)
        gate.set()
        answer = await asked
        assert (answer.body, answer.whole) == (CONTENT, True)
        await second.all_closed()
        line = await last_line(proxy)
        assert (line["outcome"], line["attempts"], line["hedges"], line["backend"]) == ("ok", 2, 1, "b")
        assert await proxy.metric("fairlane_hedges_total", pool="main", result="lost") == 1
        assert len(first.requests) == 22


async def test_who_is_in_time_is_not_hedged_and_who_is_not_for_it_neither() -> None:
    async with stage(scripts.ok()) as (proxy, first, second):
        assert (await proxy.ask(JS)).whole
        first.script = (scripts.delay(0.3), scripts.ok())
        assert (await proxy.ask(J)).whole, "an answer that is not streamed has no first token"
        assert (await proxy.ask(JS, key="sk-B")).whole, "of the slow lane"
        assert second.requests == []
        assert await proxy.metric("fairlane_hedges_total") == 0


async def test_both_at_once_are_one_answer() -> None:
    for _ in range(3):
        gate = asyncio.Event()
        both = (scripts.wait(gate), scripts.ok())
        async with stage(*both, second=both) as (proxy, first, second):
            asked = asyncio.ensure_future(proxy.ask(JS))
            await second.seen(1)
            gate.set()
            answer = await asked
            assert (answer.body, answer.whole) == (CONTENT, True)
            await proxy.at_rest()
            await eventually(lambda: first.active == 0 and second.active == 0)


FAILURES: dict[str, tuple[Step, ...]] = {
    "busy": (scripts.status(429, {"Retry-After": "5"}),),
    "queue-full": (scripts.status(503, {"Retry-After": "5"}),),
    "error": (scripts.status(500),),
    "bad-request": (scripts.status(400),),
    "reset": (scripts.head(), scripts.chunked(scripts.ROLE), scripts.delay(0.02), scripts.rst()),
    "error-event": (scripts.head(), scripts.chunked(b'data: {"error":{"message":"x"}}\n\n'), scripts.end()),
    "empty": (scripts.head(), scripts.end()),
}


@pytest.mark.parametrize("failure", FAILURES)
async def test_a_second_attempt_that_fails_is_not_seen(failure: str) -> None:
    gate = asyncio.Event()
    async with stage(scripts.wait(gate), scripts.ok(), second=FAILURES[failure]) as (proxy, _first, second):
        proxy.alive = False
        asked = asyncio.ensure_future(proxy.ask(JS))
        await second.seen(1)
        await eventually(lambda: proxy.state.in_flight == 1)
        assert not asked.done()
        gate.set()
        answer = await asked
        assert (answer.body, answer.whole) == (CONTENT, True)
        assert await proxy.metric("fairlane_hedges_total", pool="main", result="lost") == 1


@pytest.mark.parametrize("failure", sorted(FAILURES.keys() - {"bad-request"}))
async def test_a_first_attempt_that_fails_leaves_the_second_to_answer(failure: str) -> None:
    gate, other = asyncio.Event(), asyncio.Event()
    async with stage(scripts.wait(gate), *FAILURES[failure], second=(scripts.wait(other), scripts.ok())) as (proxy, _first, second):
        proxy.alive = False
        asked = asyncio.ensure_future(proxy.ask(JS))
        await second.seen(1)
        gate.set()
        await eventually(lambda: proxy.state.backends["b"].in_flight == 0)
        assert not asked.done()
        other.set()
        answer = await asked
        assert (answer.body, answer.whole) == (CONTENT, True)
        assert len(second.requests) == 1, "asked once"
        line = await last_line(proxy)
        assert (line["outcome"], line["attempts"], line["backend"]) == ("ok", 2, "c")


async def test_a_mistake_of_the_callers_ends_both() -> None:
    gate = asyncio.Event()
    async with stage(scripts.wait(gate), scripts.status(400), second=(scripts.hang(),)) as (proxy, _first, second):
        asked = asyncio.ensure_future(proxy.ask(JS))
        await second.seen(1)
        gate.set()
        answer = await asked
        assert (answer.status, answer.header("x-fairlane-attempts")) == (400, "2")
        await second.all_closed()


@pytest.mark.parametrize(
    ("first", "second", "status", "reason"),
    [
        ((scripts.rst(),), (scripts.status(500),), 502, "upstream_reset"),
        ((scripts.hang(),), (scripts.status(500),), 504, "first_token_timeout"),
        ((scripts.hang(),), (scripts.hang(),), 504, "first_token_timeout"),
    ],
    ids=["reset", "silence", "both-silent"],
)
async def test_both_fail_and_the_last_one_says_how(first: tuple[Step, ...], second: tuple[Step, ...], status: int, reason: str) -> None:
    gate = asyncio.Event()
    pool = HEDGE + ", timeouts: {first_token: 600ms}"
    async with stage(scripts.wait(gate), *first, second=second, pool=pool) as (proxy, _first, standby):
        proxy.alive = False
        asked = asyncio.ensure_future(proxy.ask(JS))
        await standby.seen(1)
        if status == 502:
            await eventually(lambda: proxy.state.backends["c"].in_flight == 0)
        gate.set()
        answer = await asked
        assert (answer.status, answer.header("x-fairlane-reason")) == (status, reason)
        assert answer.header("x-fairlane-attempts") == "2"
        assert await proxy.metric("fairlane_hedges_total", pool="main", result="failed") == 1
        assert await proxy.metric("fairlane_retries_total", result="denied") == 1


@pytest.mark.parametrize("manner", MANNERS)
async def test_who_leaves_during_a_hedge_closes_both(manner: str) -> None:
    async with stage(scripts.hang(), second=(scripts.head(), scripts.hang())) as (proxy, first, second):
        caller = await proxy.connect()
        await caller.send(post(JS))
        await second.seen(1)
        await eventually(lambda: proxy.state.in_flight == 2)
        left_at = time.monotonic()
        getattr(caller, manner)()
        await second.all_closed()
        await eventually(lambda: first.requests[-1].close_seen_at is not None)
        assert time.monotonic() - left_at < 0.5
        await eventually(lambda: proxy.state.in_flight == 0)
        line = await last_line(proxy)
        assert (line["outcome"], line["attempts"]) == ("client_gone", 2)
        assert await proxy.metric("fairlane_disconnects_total", phase="first_token") == 1
        assert await proxy.metric("fairlane_hedges_total", pool="main", result="cancelled") == 1
        for backend in ("b", "c"):
            assert await proxy.metric("fairlane_attempts_total", backend=backend, outcome="client_gone") == 1
            assert await proxy.metric("fairlane_backend_state", backend=backend) == 0
        caller.close()


async def test_who_leaves_when_the_first_has_failed_closes_the_second() -> None:
    gate = asyncio.Event()
    async with stage(scripts.wait(gate), scripts.rst(), second=(scripts.hang(),)) as (proxy, _first, second):
        proxy.alive = False
        async with await proxy.connect() as caller:
            await caller.send(post(JS))
            await second.seen(1)
            gate.set()
            await eventually(lambda: proxy.state.backends["b"].in_flight == 0)
            assert proxy.state.in_flight == 1
        await second.all_closed()
        assert (await last_line(proxy))["outcome"] == "client_gone"
        assert await proxy.metric("fairlane_attempts_total", backend="b", outcome="upstream_reset") == 1
        assert await proxy.metric("fairlane_attempts_total", backend="c", outcome="client_gone") == 1


async def test_an_operator_who_cancels_it_and_the_end_of_a_drain_end_both() -> None:
    async with stage(scripts.hang(), second=(scripts.hang(),)) as (proxy, first, second):
        asked = asyncio.ensure_future(proxy.ask(JS, x_request_id="mine"))
        await second.seen(1)
        assert (await proxy.admin("/-/cancel/mine", "POST"))[0] == 200
        assert (await asked).status == 503
        await second.all_closed()
        for backend in ("b", "c"):
            assert await proxy.metric("fairlane_attempts_total", backend=backend, outcome="cancelled") == 1
        await paid(proxy)
        asked = asyncio.ensure_future(proxy.ask(JS))
        await second.seen(2)
        proxy.fairlane.service.cut_all()
        assert (await asked).header("x-fairlane-reason") == "draining"
        await second.all_closed()
        await eventually(lambda: first.requests[-1].close_seen_at is not None)


async def test_no_idle_backend_and_no_budget_leave_one_attempt() -> None:
    async with stage(scripts.delay(0.3), scripts.ok()) as (proxy, first, second):
        proxy.alive = False
        second.script = (scripts.delay(0.2), scripts.ok())
        assert (await proxy.admin("/-/serve/main/s", "POST"))[0] == 200
        held = asyncio.ensure_future(proxy.ask(J))
        await second.seen(1)
        assert (await proxy.admin("/-/unpin/main", "POST"))[0] == 200
        assert (await proxy.ask(JS)).header("x-fairlane-attempts") == "1", "the standby was not idle"
        assert (await held).status == 200
        assert await proxy.metric("fairlane_hedges_total", pool="main", result="denied") == 1
        assert (await proxy.ask(JS)).header("x-fairlane-attempts") == "2"
        assert (await proxy.ask(JS)).header("x-fairlane-attempts") == "1", "5 % are spent"
        assert await proxy.metric("fairlane_hedges_total", pool="main", result="denied") == 2
        assert len(first.requests) == 24


async def test_never_above_five_percent_under_load() -> None:
    async with stage(scripts.delay(0.12), scripts.ok(), second=(scripts.ok(),), cap=64) as (proxy, first, second):
        for _ in range(10):
            await asyncio.gather(*(proxy.ask(JS) for _ in range(30)))
        ended = len(first.requests) + len(second.requests)
        assert 5 <= len(second.requests) <= ended / 20
        state = proxy.state
        assert state.in_flight == 0 and state.retries == 0


@pytest.mark.parametrize(("attempts", "whole"), [(2, False), (3, True)])
async def test_a_second_attempt_that_won_and_breaks_is_continued_only_by_a_third(attempts: int, whole: bool) -> None:
    pool = HEDGE + f", continue: true, retries: {{attempts: {attempts}}}"
    said = (scripts.head(), scripts.chunked(scripts.ROLE), scripts.event("t0 "), scripts.fin())
    async with stage(scripts.hang(), second=said, pool=pool) as (proxy, first, second):
        proxy.alive = False
        proxy.attempts_max = 3
        asked = asyncio.ensure_future(proxy.ask(JS))
        await second.seen(1)
        first.script = (
            scripts.head(),
            scripts.event("t1 "),
            scripts.event("t2 "),
            scripts.chunked(scripts.finish() + scripts.DONE),
            scripts.end(),
        )
        answer = await asked
        assert (answer.whole, answer.body.count(b"[DONE]"), answer.body.count(b'"role"')) == (whole, whole, 1)
        line = await last_line(proxy)
        assert (line["outcome"], line["attempts"], line["hedges"], line["continued"]) == (
            ("ok", 3, 1, 1) if whole else ("truncated", 2, 1, 0)
        )
        assert await proxy.metric("fairlane_retries_total") == 0
