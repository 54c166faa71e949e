"""Group O: is everything that happens said once, in bounded space, and truly? Log lines and metrics of a running Fairlane."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from policies.model import Outcome
from proxy.telemetry import catalogue
from tests.proxy.serving import Serving, serving
from tests.reliability.shapes import alone, backed
from tests.wire import JS, J, ScriptedBackend, ev, eventually, post, scripts
from tests.wire.backend import Script

KEYS = (
    "keys:\n  - {name: A, secret: sk-A, lane: fast}\n  - {name: B, secret: sk-B, lane: slow}\n"
    "  - {name: C, secret: sk-C, lane: slow, models: [other]}\n"
)
POOL = ", queue: {places: 1, max_wait: 200ms}, timeouts: {first_token: 200ms, idle: 200ms, total: 700ms}"
CONTENT = b"".join(scripts.chat_events(3))


def lines(log: Path) -> list[dict[str, Any]]:
    """The access log so far."""
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


# --- O01: every way to end, provoked -----------------------------------------------------------------------------------

Provoke = Callable[[Serving, ScriptedBackend, pytest.MonkeyPatch], Awaitable[Any]]
PROVOKED: dict[Outcome, Provoke] = {}


def provokes(outcome: Outcome) -> Callable[[Provoke], Provoke]:
    def enter(provoke: Provoke) -> Provoke:
        PROVOKED[outcome] = provoke
        return provoke

    return enter


def by(outcome: Outcome, *steps: Any, body: bytes = JS, **asked: Any) -> None:
    """A request that the backend answers by these steps, or that ends before it gets there."""

    async def provoke(proxy: Serving, backend: ScriptedBackend, _: pytest.MonkeyPatch) -> None:
        backend.script = steps or backend.script
        await proxy.ask(body, **asked)

    PROVOKED[outcome] = provoke


def raw(outcome: Outcome, data: bytes, **limits: float) -> None:
    """These bytes on a connection."""

    async def provoke(proxy: Serving, backend: ScriptedBackend, _: pytest.MonkeyPatch) -> None:
        proxy.fairlane.door.limits = dataclasses.replace(proxy.fairlane.door.limits, **limits)  # type: ignore[arg-type]
        async with await proxy.connect() as caller:
            await caller.ask(data)

    PROVOKED[outcome] = provoke


by(Outcome.OK)
by(Outcome.UNAUTHENTICATED, key="sk-nobody")
by(Outcome.FORBIDDEN, key="sk-C")
by(Outcome.UNSUPPORTED, content_encoding="gzip")
by(Outcome.UPSTREAM_RESET, scripts.rst())
by(Outcome.UPSTREAM_PROTOCOL, scripts.garbage())
by(Outcome.UPSTREAM_AUTH, scripts.status(401))
by(Outcome.UPSTREAM_STATUS, scripts.status(400))
by(Outcome.FIRST_TOKEN_TIMEOUT, scripts.hang())
by(Outcome.TOTAL_TIMEOUT, scripts.hang(), body=J)
by(Outcome.TRUNCATED, scripts.head(), scripts.event("a"), scripts.fin())
by(Outcome.IDLE_TIMEOUT, scripts.head(), scripts.event("a"), scripts.hang())
raw(Outcome.MALFORMED, b"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n")
raw(Outcome.NOT_FOUND, b"GET /v1/nothing HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer sk-A\r\n\r\n")
raw(Outcome.METHOD_NOT_ALLOWED, b"GET /v1/chat/completions HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer sk-A\r\n\r\n")
raw(Outcome.TOO_LARGE, post(J).replace(b"Content-Length: 57", b"Content-Length: 99999999999"))
raw(Outcome.CLIENT_TIMEOUT, post(J)[:-1], body_idle_s=0.1)


async def full(proxy: Serving, backend: ScriptedBackend) -> list[asyncio.Future[Any]]:
    """The only slot is taken, and the only place by somebody of the slow lane."""
    backend.script = [scripts.delay(0.5), scripts.ok()]
    asked: list[asyncio.Future[Any]] = [asyncio.ensure_future(proxy.ask(J))]
    await backend.seen(1)
    asked.append(asyncio.ensure_future(proxy.ask(J, key="sk-B")))
    await proxy.until(lambda: proxy.state.waiting == 1)
    return asked


@provokes(Outcome.QUEUE_TIMEOUT)
async def _waits_in_vain(proxy: Serving, backend: ScriptedBackend, _: pytest.MonkeyPatch) -> None:
    await asyncio.gather(*await full(proxy, backend))


@provokes(Outcome.QUEUE_FULL)
async def _one_too_many(proxy: Serving, backend: ScriptedBackend, _: pytest.MonkeyPatch) -> None:
    asked = await full(proxy, backend)
    await proxy.ask(J, key="sk-B")
    await asyncio.gather(*asked)


@provokes(Outcome.DISPLACED)
async def _gives_way(proxy: Serving, backend: ScriptedBackend, _: pytest.MonkeyPatch) -> None:
    await asyncio.gather(*await full(proxy, backend), proxy.ask(J))


@provokes(Outcome.NO_BACKEND)
async def _nobody_there(proxy: Serving, _: ScriptedBackend, __: pytest.MonkeyPatch) -> None:
    await proxy.admin("/-/drain/p-1", "POST")
    await proxy.ask(J)


@provokes(Outcome.DRAINING)
async def _going_away(proxy: Serving, _: ScriptedBackend, __: pytest.MonkeyPatch) -> None:
    proxy.fairlane.lobby.apply(proxy.fairlane.lobby.dispatcher.close)
    await proxy.ask(J)


@provokes(Outcome.UPSTREAM_CONNECT)
async def _refused(proxy: Serving, backend: ScriptedBackend, _: pytest.MonkeyPatch) -> None:
    await backend.refuse()
    await proxy.ask(J)


@provokes(Outcome.CLIENT_GONE)
async def _leaves(proxy: Serving, backend: ScriptedBackend, _: pytest.MonkeyPatch) -> None:
    backend.script = [scripts.hang()]
    caller = await proxy.connect()
    await caller.send(post(J))
    await backend.seen(1)
    caller.close()


@provokes(Outcome.CANCELLED)
async def _is_cancelled(proxy: Serving, backend: ScriptedBackend, _: pytest.MonkeyPatch) -> None:
    backend.script = [scripts.hang()]
    asked = asyncio.ensure_future(proxy.ask(J, x_request_id="that-one"))
    await backend.seen(1)
    assert (await proxy.admin("/-/cancel/that-one", "POST"))[0] == 200
    await asked


@provokes(Outcome.WRITE_TIMEOUT)
async def _stops_reading(proxy: Serving, backend: ScriptedBackend, _: pytest.MonkeyPatch) -> None:
    proxy.fairlane.door.limits = dataclasses.replace(proxy.fairlane.door.limits, write_stall_s=0.1)

    async def flood(exchange: Any) -> None:
        for _ in range(2000):
            exchange.write(scripts.chunk(ev("x" * 16_000)))
            await exchange.drained()

    backend.script = [scripts.head(), flood]
    async with await proxy.connect(rcvbuf_bytes=4096) as caller:
        await caller.send(post(JS.replace(b'"stream":true', b'"stream":true,"x":1')))
        await eventually(lambda: not proxy.fairlane.service.stories and bool(backend.requests), timeout_s=10)


@provokes(Outcome.INTERNAL)
async def _breaks(proxy: Serving, _: ScriptedBackend, patch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    patch.setattr("policies.routing.Router.choose", broken)
    await proxy.ask(J)


def test_o01_there_is_no_ending_that_is_not_provoked() -> None:
    assert set(Outcome) - set(PROVOKED) == {Outcome.RATE_LIMITED, Outcome.QUOTA_EXHAUSTED}, "those need limits of keys"


@pytest.mark.parametrize("outcome", PROVOKED, ids=[outcome.value for outcome in PROVOKED])
async def test_o01_each_ending_is_one_line_that_says_all(outcome: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedBackend() as backend:
        text = alone(backend.url, cap=1, more="probe: none, api_key: sk-ours,", pool=POOL)
        text = KEYS + text[text.index("platforms:") :]
        async with serving(text, access_log="file") as proxy:
            before = await proxy.metric("fairlane_requests_total")
            await PROVOKED[outcome](proxy, backend, monkeypatch)
            await proxy.at_rest()
            ended = int(await proxy.metric("fairlane_requests_total") - before)
            await eventually(lambda: len(lines(proxy.log)) >= ended)
            said = lines(proxy.log)
            assert len(said) == ended, "one line each"
            (line,) = [line for line in said if line["outcome"] == outcome]
            for key in ("id", "tenant", "lane", "pool", "model", "platform", "backend", "path", "method", "peer"):
                assert isinstance(line[key], str)
            for key in ("attempts", "status", "tokens_in", "tokens_out", "bytes_in", "bytes_out"):
                assert isinstance(line[key], int) and line[key] >= 0
            assert line["total_ms"] >= line["queue_ms"] >= 0
            assert line["id"]
            assert all(line[key] is None or line[key] >= 0 for key in ("connect_ms", "first_token_ms"))
            if line["attempts"]:
                assert (line["tenant"], line["pool"], line["backend"], line["lane"]) == ("A", "main", "p-1", "fast")
            assert await proxy.metric("fairlane_requests_total", outcome=outcome.value) == 1
            assert await proxy.metric("fairlane_backend_streams") == 0


# --- series ------------------------------------------------------------------------------------------------------------


async def series(proxy: Serving) -> list[str]:
    text = (await proxy.admin("/metrics"))[1]
    return [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]


async def strange_requests(number: int) -> None:
    """Every request another model, path, key, agent and status."""
    draw = random.Random(1)
    statuses = sorted({200, *range(400, 600)} - {429, 503, 529})  # without those that ask for a rest

    async def odd(exchange: Any) -> None:
        exchange.write(scripts.answer("{}", draw.choice(statuses)))

    async with ScriptedBackend(odd) as backend, serving(backed(backend.url, backend.url, cap=64)) as proxy:
        before = await series(proxy)
        async with await proxy.connect(timeout_s=60) as caller:
            for each in range(number):
                body = J.replace(b'"m"', f'"m-{each}"'.encode())
                headers = {"User-Agent": f"agent-{each}", "x-own": str(each)}
                await caller.ask(post(body, headers=headers))
                if each % 5 == 0:
                    for asked in (post(body, key=f"sk-{each}"), post(body, path=f"/v1/odd-{each}")):
                        async with await proxy.connect() as stranger:
                            await stranger.ask(asked)
        assert await series(proxy) == before
        assert len(before) <= 2000


async def test_o02_nothing_that_callers_or_backends_choose_makes_a_series() -> None:
    await strange_requests(300)


@pytest.mark.soak
async def test_o02_ten_thousand_strange_requests_make_no_series() -> None:
    await strange_requests(10_000)


async def mixed(number: int) -> None:
    """All sorts of endings, and the callers' truth against the counters."""
    draw = random.Random(2)
    sorts: dict[str, Script] = {
        "ok": [scripts.ok()],
        "bad": [scripts.status(400)],
        "cut": [scripts.head(), scripts.event("a"), scripts.fin()],
        "reset": [scripts.head(), scripts.delay(0.01), scripts.rst()],  # a kept connection that closes unused is no attempt
    }
    async with ScriptedBackend(named=sorts) as backend, ScriptedBackend() as standby:
        async with serving(backed(backend.url, standby.url, cap=64)) as proxy:
            truth: Counter[str] = Counter()

            async def caller(count: int) -> None:
                for _ in range(count):
                    sort = draw.choice(["ok", "ok", "ok", "ok", "bad", "cut", "reset", "nobody"])
                    if sort == "nobody":
                        assert (await proxy.ask(J, key="sk-nobody")).status == 401
                        truth["unauthenticated"] += 1
                        continue
                    answer = await proxy.ask(JS, x_script=sort if sort != "nobody" else "ok")
                    if answer.status == 400:
                        truth["upstream_status"] += 1
                    elif answer.status == 200 and answer.whole:
                        truth["ok"] += 1
                    else:
                        truth["truncated"] += 1

            standby.named = {sort: [scripts.ok()] if sort == "reset" else steps for sort, steps in sorts.items()}
            await asyncio.gather(*(caller(number // 8) for _ in range(8)))
            await proxy.at_rest()
            assert await proxy.metric("fairlane_requests_total") == sum(truth.values())
            for outcome, count in truth.items():
                assert await proxy.metric("fairlane_requests_total", outcome=outcome) == count, outcome
            attempts = await proxy.metric("fairlane_attempts_total", backend="p-1")
            assert attempts == len(backend.requests)
            assert await proxy.metric("fairlane_attempts_total", backend="s-1") == len(standby.requests)
            assert await proxy.metric("fairlane_requests_total", outcome="internal") == 0


async def test_o03_counters_are_the_callers_and_the_backends_truth() -> None:
    await mixed(400)


@pytest.mark.soak
async def test_o03_counters_are_the_truth_after_ten_thousand_requests() -> None:
    await mixed(10_000)


def test_o05_buckets_tell_ten_milliseconds_from_five_minutes() -> None:
    waits = [0.01, 0.1, 1, 10, 60, 120, 300, 600]
    for metric in (catalogue.REQUEST_S, catalogue.QUEUE_WAIT):
        assert len({sum(bound < wait for bound in metric.bounds) for wait in waits}) == len(waits), metric.name
    assert max(catalogue.TTFT.bounds) >= 60 and max(catalogue.ITL.bounds) >= 2
    apart = {catalogue.TTFT.name, catalogue.ITL.name, catalogue.QUEUE_WAIT.name, catalogue.BACKEND_TTFT.name, catalogue.CONNECT.name}
    assert len(apart) == 5


# --- health, ids, clocks -----------------------------------------------------------------------------------------------


async def test_o06_alive_is_not_ready_and_both_answer_at_full_load() -> None:
    gate = asyncio.Event()
    async with ScriptedBackend(scripts.wait(gate), scripts.ok()) as backend, serving(alone(backend.url, cap=32)) as proxy:

        async def asked(path: str) -> int:
            began_at = time.monotonic()
            status, _ = await proxy.admin(path)
            assert time.monotonic() - began_at < 1.0
            return status

        full = [asyncio.ensure_future(proxy.ask(JS)) for _ in range(39)]
        await proxy.until(lambda: proxy.state.in_flight == 32)
        assert (await asked("/healthz"), await asked("/readyz")) == (200, 200), "busy is no reason to be sent nothing"
        gate.set()
        await asyncio.gather(*full)
        await proxy.admin("/-/drain/p", "POST")
        assert (await asked("/healthz"), await asked("/readyz")) == (200, 503)
        await proxy.admin("/-/undrain/p", "POST")
        assert await asked("/readyz") == 200
        proxy.fairlane.draining = True
        assert (await asked("/healthz"), await asked("/readyz")) == (200, 503)


PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize("given", [PARENT, "nonsense", "0" * 7000, None], ids=["valid", "malformed", "long", "none"])
async def test_o08_a_trace_is_passed_on_and_every_answer_has_an_id(given: str | None) -> None:
    async with ScriptedBackend() as backend, serving(alone(backend.url), access_log="file") as proxy:
        headers = {} if given is None else {"traceparent": given}
        answer = await proxy.ask(JS, **headers)
        assert (answer.status, answer.body) == (200, CONTENT)
        assert backend.requests[0].header("traceparent") == given, "the caller's other fields go upstream as they came"
        refused = await proxy.ask(JS, key="sk-nobody", **headers)
        for each in (answer, refused):
            assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", each.header("x-request-id") or "")
        await eventually(lambda: len(lines(proxy.log)) == 2)
        assert lines(proxy.log)[0]["trace_id"] == (PARENT.split("-")[1] if given == PARENT else "")


async def test_o09_what_is_going_wrong_moves_a_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = asyncio.Event()
    async with ScriptedBackend(scripts.wait(gate), scripts.status(500)) as primary, ScriptedBackend() as standby:
        text = backed(primary.url, standby.url, cap=5, pool=", queue: {places: 3, max_wait: 30s}")
        async with serving(text) as proxy:
            asked = [asyncio.ensure_future(proxy.ask(JS)) for _ in range(6)]
            await proxy.until(lambda: (proxy.state.in_flight, proxy.state.waiting) == (5, 1))
            await asyncio.sleep(0.01)
            assert await proxy.metric("fairlane_backend_streams", backend="p-1") == 5
            assert await proxy.metric("fairlane_backend_max_streams", backend="p-1") == 5
            assert await proxy.metric("fairlane_queue_waiting", pool="main") == 1
            assert await proxy.metric("fairlane_queue_oldest_seconds", pool="main", lane="fast") > 0
            assert await proxy.metric("fairlane_queue_bytes") == len(JS)
            assert await proxy.metric("fairlane_backend_state", backend="p-1") == 0
            standby.script = [scripts.delay(0.3), scripts.ok()]
            gate.set()
            await proxy.until(lambda: proxy.state.retries > 0)
            assert await proxy.metric("fairlane_retries_in_flight") > 0
            await asyncio.gather(*asked)
            assert await proxy.metric("fairlane_backend_state", backend="p-1") == 2
            assert await proxy.metric("fairlane_failovers_total", pool="main") == 1
            assert await proxy.metric("fairlane_retries_in_flight") == 0
            assert await proxy.metric("fairlane_log_lines_dropped_total") == 0


async def test_o10_a_wall_clock_that_goes_back_changes_no_duration(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = asyncio.Event()
    last = [scripts.wait(gate), scripts.chunked(scripts.finish() + scripts.DONE), scripts.end()]
    async with ScriptedBackend(scripts.head(), scripts.event("a"), *last) as backend:
        async with serving(alone(backend.url), access_log="file") as proxy, await proxy.connect() as caller:
            await caller.send(post(JS))
            await caller.head()
            monkeypatch.setattr("proxy.clock.wall", lambda: time.time() - 3600)
            gate.set()
            await caller.body()
            await proxy.at_rest()
            await eventually(lambda: bool(lines(proxy.log)))
            (line,) = lines(proxy.log)
            assert 0 <= line["first_token_ms"] <= line["total_ms"] < 60_000
            assert line["queue_ms"] >= 0
            text = (await proxy.admin("/metrics"))[1]
            assert not re.search(r"_sum\S* -", text)


async def test_o11_a_flood_of_malformed_requests_is_thinned_in_the_log_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.telemetry.access_log.STRANGERS_BURST", 50)
    monkeypatch.setattr("proxy.telemetry.access_log.STRANGERS_PER_S", 5.0)
    async with ScriptedBackend() as backend, serving(alone(backend.url), access_log="file") as proxy:
        proxy.fairlane.telemetry._access_log._allowance = 50
        began_at = time.monotonic()
        for _ in range(300):
            async with await proxy.connect() as caller:
                await caller.send(b"GARBAGE\r\n\r\n")
                await caller.until_closed()
        took_s = time.monotonic() - began_at
        assert (await proxy.ask(JS)).status == 200
        await proxy.at_rest()
        assert await proxy.metric("fairlane_requests_total", outcome="malformed") == 300
        await eventually(lambda: any(line["outcome"] == "ok" for line in lines(proxy.log)))
        written = sum(line["outcome"] == "malformed" for line in lines(proxy.log))
        assert 0 < written <= 51 + 5 * took_s
        assert await proxy.metric("fairlane_log_lines_dropped_total") == 300 - written
