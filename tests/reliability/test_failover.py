"""Group F, failover: what does a caller get when the first backend does not answer, and what is tried, once, where?"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.proxy.serving import TWO_LANES, Serving, serving
from tests.reliability.shapes import alone, backed, platform, pools
from tests.wire import JS, Blackhole, J, ScriptedBackend, eventually, post, scripts

CONTENT = b"".join(scripts.chat_events(3))


async def lines(log: Path, count: int = 1) -> list[dict[str, Any]]:
    """The first lines of the access log, once there are so many."""
    await eventually(lambda: log.exists() and log.read_text().count("\n") >= count)
    return [json.loads(line) for line in log.read_text().splitlines()]


async def test_f01_a_primary_that_refuses_is_passed_over_and_the_log_says_why() -> None:
    async with ScriptedBackend() as primary, ScriptedBackend() as standby:
        await primary.refuse()
        async with serving(backed(primary.url, standby.url), access_log="file") as proxy:
            answer = await proxy.ask(JS)
            assert (answer.status, answer.body, answer.header("x-fairlane-attempts")) == (200, CONTENT, "2")
            (line,) = await lines(proxy.log)
            assert (line["attempts"], line["platform"], line["why"], line["outcome"]) == (2, "s", "refused", "ok")


@pytest.mark.parametrize("streaming", [0, 4])
async def test_f01_when_all_backends_of_a_primary_die_at_once_the_standby_is_asked_before_attempts_run_out(streaming: int) -> None:
    """Without traffic at that instant the first caller has to find it out; with it, nobody."""
    async with ScriptedBackend() as one, ScriptedBackend() as other, ScriptedBackend() as standby:
        hold = [scripts.head(), scripts.event("a"), scripts.hang()]
        one.named["hold"] = other.named["hold"] = hold
        async with serving(backed([one.url, other.url], standby.url, more="probe: none, startup: 1ms,")) as proxy:
            for _ in range(4):
                assert (await proxy.ask(JS)).status == 200
            streams = [await proxy.connect() for _ in range(streaming)]
            for caller in streams:
                await caller.send(post(JS, headers={"x-script": "hold"}))
                await caller.head()
            for backend in (one, other):
                await backend.refuse()
                for connection in backend.connections:
                    connection.transport.abort()
            await proxy.until(lambda: proxy.state.in_flight == 0)
            statuses = [(await proxy.ask(JS)).status for _ in range(20)]
            assert statuses.count(502) <= (0 if streaming else 1) and set(statuses) <= {200, 502}, statuses
            for caller in streams:
                caller.close()


async def test_f02_a_primary_that_does_not_accept_is_left_at_the_connect_deadline() -> None:
    async with ScriptedBackend() as standby:
        with Blackhole() as hole:
            async with serving(backed(hole.url, standby.url, pool=", timeouts: {connect: 400ms}")) as proxy:
                began_at = time.monotonic()
                answer = await proxy.ask(JS)
                assert answer.header("x-fairlane-attempts") == "2"
                assert 0.35 < time.monotonic() - began_at < 1.5


@pytest.mark.parametrize("body", [J, JS], ids=["whole", "streamed"])
async def test_f03_a_reset_before_any_byte_is_answered_elsewhere_unless_it_might_be_paid_twice(body: bytes) -> None:
    async with ScriptedBackend(scripts.rst()) as primary, ScriptedBackend() as standby:
        async with serving(backed(primary.url, standby.url)) as proxy:
            answer = await proxy.ask(body)
            assert (answer.status, answer.header("x-fairlane-attempts")) == (200, "2")
        async with serving(backed(primary.url, standby.url, pool=", retries: {after_send: false}")) as proxy:
            answer = await proxy.ask(body)
            assert (answer.status, answer.header("x-fairlane-reason")) == (502, "upstream_reset")
            assert answer.header("x-fairlane-attempts") == "1"
            assert len(standby.requests) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 408, 413, 422])
async def test_f04_a_hundred_refusals_in_a_row_pass_through_and_blame_nobody(status: int) -> None:
    said = f'{{"error":{{"message":"no {status}"}}}}'
    async with ScriptedBackend(scripts.status(status, {"X-Own": "1"}, said)) as primary, ScriptedBackend() as standby:
        async with serving(backed(primary.url, standby.url)) as proxy, await proxy.connect() as caller:
            for _ in range(100):
                answer = await caller.ask(post(JS))
                assert (answer.status, answer.body.decode(), answer.header("x-own")) == (status, said, "1")
            assert (len(primary.requests), len(standby.requests)) == (100, 0)
            state = proxy.state.backends["p-1"]
            assert (state.state.name, state.why) == ("HEALTHY", "")


@pytest.mark.parametrize("status", [429, 503])
async def test_f05_a_busy_backend_rests_as_long_as_it_asked_and_is_not_dead(status: int) -> None:
    busy = scripts.status(status, {"Retry-After": "1"}, "later")
    async with ScriptedBackend() as first, ScriptedBackend() as second:
        first.then(busy)
        second.then(busy)
        async with serving(alone(first.url, second.url, cap=1)) as proxy:
            answer = await proxy.ask(JS)
            assert (answer.status, answer.header("retry-after")) == (status, "1"), "both are busy: the status is relayed"
        first.then(busy)
        async with serving(backed(first.url, second.url)) as proxy:
            assert (await proxy.ask(JS)).header("x-fairlane-attempts") == "2"
            rests = proxy.state.backends["p-1"]
            assert (rests.state.name, rests.why) == ("HEALTHY", "busy")
            assert 0 < rests.until_at - proxy.state.at <= 1
            await proxy.until(lambda: proxy.state.backends["p-1"].why == "")
            seen = len(first.requests)
            assert (await proxy.ask(JS)).status == 200
            assert len(first.requests) == seen + 1


async def test_f12_a_first_token_within_its_deadline_is_waited_for_however_late() -> None:
    async with ScriptedBackend(scripts.delay(0.7), scripts.ok()) as primary, ScriptedBackend() as standby:
        async with serving(
            backed(primary.url, standby.url, pool=", timeouts: {first_token: 1400ms, connect: 300ms, idle: 300ms}")
        ) as proxy:
            answer = await proxy.ask(JS)
            assert (answer.body, answer.header("x-fairlane-attempts"), len(standby.requests)) == (CONTENT, "1", 0)


async def test_f13_nothing_is_tried_again_after_the_first_token() -> None:
    events = scripts.chat_events(3)
    stream = scripts.sse(events[:3])
    cut = len(stream) - len(b"0\r\n\r\n")
    async with ScriptedBackend(scripts.rst_at(cut, stream)) as primary, ScriptedBackend() as standby:
        async with serving(backed(primary.url, standby.url)) as proxy:
            answer = await proxy.ask(JS)
            assert answer.body.startswith(b"".join(events[:3])) and answer.body.count(b"t1 ") == 1
            assert b'"error"' in answer.body and b"[DONE]" not in answer.body
            assert standby.requests == []


async def reused_around(closes_after_s: float, requests: int) -> None:
    """Requests sent around the instant at which the backend closes the kept connection: answered, and executed once.

    One that the backend cannot have read is sent again as the same attempt. One that it leaves unread in its kernel as it closes comes
    back as a reset, as if it had been read: that is a second attempt, and rare.
    """
    async with ScriptedBackend(close_idle_s=closes_after_s) as backend, serving(alone(backend.url)) as proxy:
        attempts: Counter[str | None] = Counter()
        for number in range(requests):
            answer = await proxy.ask(JS)
            assert (answer.status, answer.whole) == (200, True), number
            attempts[answer.header("x-fairlane-attempts")] += 1
            await asyncio.sleep(closes_after_s + 0.005 * ((number % 11) - 5) / 5)
        assert len(backend.requests) == requests, "none was executed twice"
        assert set(attempts) <= {"1", "2"} and attempts["2"] < attempts["1"] / 4, attempts


async def test_f14_a_kept_connection_that_closes_as_it_is_used_costs_nothing() -> None:
    await reused_around(0.03, 30)


@pytest.mark.soak
async def test_f14_a_thousand_times_a_kept_connection_that_closes_as_it_is_used() -> None:
    await reused_around(1.0, 300)
    await reused_around(0.05, 700)


async def test_f15_the_requests_deadline_ends_all_attempts_together() -> None:
    async with ScriptedBackend(scripts.hang()) as a, ScriptedBackend(scripts.hang()) as b, ScriptedBackend(scripts.hang()) as c:
        text = alone(a.url, b.url, c.url, pool=", retries: {attempts: 3}, timeouts: {first_token: 600ms, total: 1s}")
        async with serving(text) as proxy:
            began_at = time.monotonic()
            answer = await proxy.ask(JS)
            assert (answer.status, answer.header("x-fairlane-reason")) == (504, "total_timeout")
            assert 0.95 < time.monotonic() - began_at < 2.0
            for backend in (a, b, c):
                await backend.all_closed()


async def test_f16_a_pool_that_is_down_is_never_silently_served_by_another() -> None:
    async with ScriptedBackend() as small, ScriptedBackend() as large:
        both = platform("s", small.url) + platform("l", large.url)
        route = "routes: [{when: {model: small}, pool: small}, {pool: large}]\n"
        text = TWO_LANES + "platforms:\n" + both + pools("small: {primary: s}", "large: {primary: l}") + route
        async with serving(text) as proxy:
            assert (await proxy.admin("/-/drain/s", "POST"))[0] == 200
            answer = await proxy.ask(b'{"model":"small","messages":[]}')
            assert (answer.status, answer.header("x-fairlane-reason"), answer.header("x-fairlane-pool")) == (503, "no_backend", "small")
            assert (large.requests, small.requests) == ([], [])


async def test_f17_a_body_of_five_megabytes_reaches_the_standby_as_it_reached_the_primary() -> None:
    body = J.replace(b'"hi"', b'"' + bytes(ord("a") + n % 26 for n in range(5 * 1024 * 1024)) + b'"')
    async with ScriptedBackend(scripts.rst()) as primary, ScriptedBackend() as standby:
        async with serving(backed(primary.url, standby.url)) as proxy:
            assert (await proxy.ask(body)).header("x-fairlane-attempts") == "2"
            assert primary.requests[0].body == standby.requests[0].body == body


async def test_f17_what_is_larger_than_can_be_kept_is_refused_and_never_tried() -> None:
    async with ScriptedBackend() as backend:
        small = 'server: {listen: "127.0.0.1:0", admin: "127.0.0.1:0", access_log: off, max_body: 64KiB}\n'
        async with serving(alone(backend.url), server=small) as proxy:
            assert (await proxy.ask(J.replace(b"hi", b"x" * 65536))).status == 413
            assert backend.requests == []


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_f18_localhost_is_found_on_whichever_address_it_listens(host: str) -> None:
    try:
        socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
        families = {entry[0] for entry in socket.getaddrinfo("localhost", 80)}
    except OSError:
        pytest.skip(f"no {host} on this machine")
    if (socket.AF_INET6 if ":" in host else socket.AF_INET) not in families:
        pytest.skip(f"localhost is not {host} on this machine")
    async with ScriptedBackend(host=host) as backend, serving(alone(f"http://localhost:{backend.port}")) as proxy:
        assert (await proxy.ask(JS)).body == CONTENT


async def test_f18_a_name_that_leads_nowhere_is_answered_fast() -> None:
    async with serving(alone("http://nowhere.invalid:80")) as proxy:
        began_at = time.monotonic()
        answer = await proxy.ask(JS)
        assert (answer.status, answer.header("x-fairlane-reason")) == (502, "upstream_connect")
        assert time.monotonic() - began_at < 4.0, "the connect deadline, at the latest"


async def the_name_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    found = socket.getaddrinfo
    where = "127.0.0.1"

    def resolve(host: Any, *more: Any, **named: Any) -> Any:
        return found(where if host in ("engine.test", b"engine.test") else host, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    async with ScriptedBackend() as before:
        after = ScriptedBackend(host="127.0.0.2")
        after.port = before.port
        async with after, serving(alone(f"http://engine.test:{before.port}")) as proxy:
            assert (await proxy.ask(JS)).status == 200
            where = "127.0.0.2"
            await before.refuse()
            before.connections[0].transport.close()
            assert (await proxy.ask(JS)).header("x-fairlane-attempts") == "1"
            assert (len(before.requests), len(after.requests)) == (1, 1)


def test_f18_a_name_that_moves_is_followed_by_the_next_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(the_name_moves(monkeypatch))  # on asyncio's own loop: uvloop resolves where no test can stand in


async def test_f19_full_and_down_and_draining_are_told_apart_and_say_when_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.prober.EVERY_S", 0.05)
    gate = asyncio.Event()

    def told(answer: Any) -> tuple[int, str, bool]:
        return answer.status, answer.header("x-fairlane-reason"), 1 <= int(answer.header("retry-after")) <= 60

    async with ScriptedBackend(scripts.wait(gate), scripts.ok()) as backend:
        async with serving(alone(backend.url, cap=1, pool=", queue: {places: 1}")) as proxy:
            held = [asyncio.ensure_future(proxy.ask(JS)) for _ in range(2)]
            await proxy.until(lambda: proxy.state.waiting == 1)
            assert told(await proxy.ask(JS)) == (429, "queue_full", True)
            gate.set()
            assert [answer.status for answer in await asyncio.gather(*held)] == [200, 200]
            proxy.fairlane.lobby.apply(proxy.fairlane.lobby.dispatcher.close)
            assert told(await proxy.ask(JS)) == (503, "draining", True)
    async with ScriptedBackend(scripts.status(500)) as sick, serving(alone(sick.url, more="startup: 1ms,")) as proxy:
        await proxy.until(lambda: proxy.state.backends["p-1"].state.name == "EJECTED")
        assert told(await proxy.ask(JS)) == (503, "no_backend", True)


async def test_f20_a_request_of_two_attempts_is_charged_once_and_keeps_its_name() -> None:
    role_and_usage = [scripts.head(), scripts.chunked(scripts.ROLE), scripts.chunked(scripts.usage(7, 99)), scripts.rst()]
    async with ScriptedBackend(*role_and_usage) as primary, ScriptedBackend() as standby:
        async with serving(backed(primary.url, standby.url)) as proxy:
            assert (await proxy.ask(JS, x_request_id="mine-1")).body == CONTENT
            await proxy.at_rest()
            assert await proxy.metric("fairlane_tokens_total", direction="output") == 3
            assert await proxy.metric("fairlane_tokens_total", direction="input") == 5
            first, second = primary.requests[0], standby.requests[0]
            assert first.header("x-request-id") == second.header("x-request-id") == "mine-1"
            assert (first.header("x-fairlane-attempt"), second.header("x-fairlane-attempt")) == (None, "2")


async def test_f21_a_callers_deadline_is_not_its_backends_fault() -> None:
    async with ScriptedBackend(scripts.delay(0.6), scripts.ok()) as slow, ScriptedBackend() as standby:
        route = "routes: [{when: {lane: fast}, pool: hasty}, {pool: patient}]\n"
        hasty = "hasty: {primary: p, standby: s, timeouts: {total: 400ms}}"
        text = TWO_LANES + "platforms:\n" + platform("p", slow.url, cap=64) + platform("s", standby.url)
        async with serving(text + pools(hasty, "patient: {primary: p, standby: s}") + route) as proxy:
            answers = await asyncio.gather(*(proxy.ask(J) for _ in range(50)))
            assert {(answer.status, answer.header("x-fairlane-reason")) for answer in answers} == {(504, "total_timeout")}
            assert proxy.state.backends["p-1"].state.name == "HEALTHY"
            assert (await proxy.ask(J, key="sk-B")).status == 200
            assert standby.requests == []


async def test_an_expired_key_of_ours_is_nobodys_401_and_moves_the_metric_of_an_alert() -> None:
    async with ScriptedBackend(scripts.status(401)) as primary, ScriptedBackend() as standby:
        async with serving(backed(primary.url, standby.url, more="probe: none, api_key: sk-old,")) as proxy:
            assert await proxy.metric("fairlane_platform_refusing", platform="p") == 0
            answers = await asyncio.gather(*(proxy.ask(JS) for _ in range(8)))
            assert {answer.status for answer in answers} == {200}
            assert await proxy.metric("fairlane_platform_refusing", platform="p") == 1
            assert await proxy.metric("fairlane_platform_refusals_total", platform="p") == 1
            assert await proxy.metric("fairlane_attempts_total", backend="p-1", outcome="upstream_auth") == len(primary.requests)
            assert (await proxy.ask(JS, key="sk-nobody")).status == 401, "that one is the caller's own"


async def held(proxy: Serving, backend: ScriptedBackend, count: int) -> list[asyncio.Task[Any]]:
    """So many requests in flight at the backend."""
    asked = [asyncio.ensure_future(proxy.ask(JS)) for _ in range(count)]
    await backend.until(lambda: backend.active == count)
    return asked


async def test_overflow_sends_to_the_standby_what_would_be_refused_as_full() -> None:
    gate = asyncio.Event()
    async with ScriptedBackend(scripts.wait(gate), scripts.ok()) as primary, ScriptedBackend() as standby:
        for pool, expected in ((", queue: {places: 0}", 429), (", queue: {places: 0}, overflow: standby", 200)):
            async with serving(backed(primary.url, standby.url, cap=2, pool=pool)) as proxy:
                asked = await held(proxy, primary, 2)
                assert (await proxy.ask(JS)).status == expected
                assert await proxy.metric("fairlane_platform_in_service", platform="s") == 0
                gate.set()
                await asyncio.gather(*asked)
                gate.clear()
        assert len(standby.requests) == 1
