"""What do levers do to a running proxy, and where are they seen while they hold? Through the admin port, with real requests."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from proxy import clock
from proxy.levers import Levers
from tests.proxy.serving import TWO_LANES, Serving, serving
from tests.wire import JS, J, RawClient, ScriptedBackend, eventually, post, scripts

STREAM = [scripts.head(), scripts.event("one"), scripts.hang()]


def file(own: ScriptedBackend, rented: ScriptedBackend, cap: int = 1) -> str:
    return (
        TWO_LANES
        + f'platforms:\n  own: {{probe: none, backends: {{a: {{url: "{own.url}", max_streams: {cap}}}}}}}\n'
        + f'  rented: {{probe: none, backends: {{r: {{url: "{rented.url}", max_streams: 4}}}}}}\n'
        + "pools: {chat: {primary: own, standby: rented, queue: {places: 4, max_wait: 30s}}}\n"
    )


async def state(proxy: Serving) -> Any:
    return json.loads((await proxy.admin("/debug/state"))[1])


async def pull(proxy: Serving, lever: str) -> str:
    status, text = await proxy.admin(f"/-/{lever}", "POST")
    assert status == 200, text
    return text.strip()


async def requests(proxy: Serving) -> Any:
    return json.loads((await proxy.admin("/debug/requests"))[1])["requests"]


async def asking(proxy: Serving, name: str, body: bytes = JS, key: str = "sk-A") -> RawClient:
    """A caller that has asked, and reads later."""
    caller = await proxy.connect()
    await caller.send(post(body, key=key, headers={"x-request-id": name}))
    return caller


async def seen_in_phase(proxy: Serving, name: str, phase: str) -> Any:
    async with asyncio.timeout(5.0):
        while True:
            for found in await requests(proxy):
                if (found["id"], found["phase"]) == (name, phase):
                    return found


async def test_a_pin_moves_new_requests_and_is_seen_everywhere_until_it_is_taken_back(capfd: pytest.CaptureFixture[str]) -> None:
    async with ScriptedBackend() as own, ScriptedBackend() as rented, serving(file(own, rented)) as proxy:
        assert await pull(proxy, "serve/chat/rented") == "chat: served by rented"
        assert (await proxy.ask()).status == 200
        assert (len(own.requests), len(rented.requests)) == (0, 1)
        shown = await state(proxy)
        assert shown["pools"]["chat"]["pinned"] == "rented" and shown["pools"]["chat"]["in_service"] == ["rented"]
        assert [(each["lever"], each["on"], each["value"], each["holds"], each["undo"]) for each in shown["levers"]] == [
            ("pin", "chat", "rented", True, "POST /-/unpin/chat")
        ]
        assert shown["levers"][0]["since"].endswith("Z")
        assert shown["events"][0]["text"] == "pin chat rented" and shown["events"][1]["text"] == "chat: own → rented (pinned)"
        assert await proxy.metric("fairlane_levers", lever="pin") == 1
        assert await proxy.metric("fairlane_platform_pinned", pool="chat", platform="rented") == 1
        assert await proxy.metric("fairlane_platform_in_service", platform="rented") == 1
        assert await proxy.metric("fairlane_failovers_total", reason="pinned", to="rented") == 1
        assert (await proxy.admin("/-/reload", "POST"))[0] == 200
        assert (await state(proxy))["pools"]["chat"]["in_service"] == ["rented"]
        assert await pull(proxy, "unpin/chat") == "chat: not pinned, served by own"
        assert (await proxy.ask()).status == 200
        assert (len(own.requests), len(rented.requests)) == (1, 1)
        assert await proxy.metric("fairlane_levers", lever="pin") == 0
        assert (await state(proxy))["levers"] == []
    log = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    said = [(each["event"], each["level"]) for each in log if each["event"].startswith("lever")]
    assert said == [("lever_pulled", "warning"), ("lever_released", "info")]


async def test_a_pin_to_a_platform_that_is_out_says_who_serves_instead() -> None:
    async with ScriptedBackend() as own, ScriptedBackend() as rented, serving(file(own, rented)) as proxy:
        await pull(proxy, "drain/rented")
        assert await pull(proxy, "serve/chat/rented") == "chat: pinned to rented, which is not available; until it is, served by own"
        assert [each["holds"] for each in (await state(proxy))["levers"]] == [True, False]
        await pull(proxy, "undrain/rented")
        assert (await state(proxy))["pools"]["chat"]["in_service"] == ["rented"]


async def test_a_raised_cap_lets_in_who_waits_and_a_lowered_one_is_hard() -> None:
    async with ScriptedBackend() as own, ScriptedBackend() as rented, serving(file(own, rented)) as proxy:
        own.then(*STREAM, times=4)
        callers = [await asking(proxy, f"r{number}") for number in range(3)]
        await proxy.until(lambda: own.active == 1 and proxy.state.waiting == 2)
        assert await pull(proxy, "cap/a/2") == "a: capped at 2 streams, was 1; 1 in flight"
        await own.until(lambda: own.active == 2)
        assert proxy.state.waiting == 1
        assert await proxy.metric("fairlane_backend_cap_override", backend="a") == 2
        assert await proxy.metric("fairlane_backend_max_streams", backend="a") == 2
        assert (await proxy.admin("/-/reload", "POST"))[0] == 200
        assert (await state(proxy))["backends"]["a"]["cap_override"] == 2
        assert await pull(proxy, "uncap/a") == "a: not overridden, capped at 1 streams by the file"
        assert await proxy.metric("fairlane_backend_cap_override", backend="a") == 0
        callers[0].close()
        await own.until(lambda: own.active == 1)
        assert proxy.state.waiting == 1  # one slot came back, and there is one too many in flight no more
        callers[1].close()
        await proxy.until(lambda: proxy.state.waiting == 0)
        callers[2].close()
        await proxy.at_rest()


@pytest.mark.parametrize(
    ("lever", "status", "said"),
    [
        ("serve/caht/own", 404, "no pool of that name; did you mean chat? there are: chat"),
        ("serve/chat/rentd", 404, "no platform of pool chat of that name; did you mean rented? there are: own, rented"),
        ("unpin/x", 404, "no pool of that name; there are: chat"),
        ("cap/own/3", 404, "no backend of that name; there are: a, r"),
        ("cap/a/0", 400, "a cap is from 1 to 1000000 streams; to send a backend nothing, drain it"),
        ("cap/a/-1", 400, "a cap is a whole number of streams"),
        ("cap/a/1e3", 400, "a cap is a whole number of streams"),
        ("cap/a/99999999999999999999", 400, "a cap is from 1 to 1000000 streams; to send a backend nothing, drain it"),
        ("uncap/b", 404, "no backend of that name; there are: a, r"),
        ("drain/ow", 404, "no backend or platform of that name; did you mean own? there are: a, own, r, rented"),
        ("cancel/r9", 404, "no request of that id is waiting or in flight; GET /debug/requests lists those that are"),
    ],
)
async def test_what_cannot_be_pulled_is_said_and_nothing_changes(lever: str, status: int, said: str) -> None:
    async with ScriptedBackend() as own, ScriptedBackend() as rented, serving(file(own, rented)) as proxy:
        assert await proxy.admin(f"/-/{lever}", "POST") == (status, said + "\n")
        assert (await state(proxy))["levers"] == []


async def test_the_requests_under_way_are_listed_oldest_first() -> None:
    async with ScriptedBackend() as own, ScriptedBackend() as rented, serving(file(own, rented)) as proxy:
        own.then(*STREAM)
        async with await asking(proxy, "first", b'{"model":"m","stream":true,"max_tokens":9,"messages":[]}') as first:
            await first.head()
            async with await asking(proxy, "second", J, key="sk-B"):
                second = await seen_in_phase(proxy, "second", "queued")
                listed = await requests(proxy)
                assert [each["id"] for each in listed] == ["first", "second"]
                shown = listed[0]
                assert (shown["key"], shown["lane"], shown["pool"], shown["platform"], shown["backend"]) == (
                    "A",
                    "fast",
                    "chat",
                    "own",
                    "a",
                )
                assert (shown["phase"], shown["model"], shown["max_tokens"], shown["tokens"]) == ("streaming", "m", 9, 1)
                assert shown["age_s"] >= shown["waited_s"] >= 0
                assert (second["key"], second["lane"], second["backend"], second["attempts"]) == ("B", "slow", None, 0)
                while not second["waited_s"]:
                    second = await seen_in_phase(proxy, "second", "queued")
                assert second["waited_s"] <= second["age_s"]
                whole = json.loads((await proxy.admin("/debug/requests"))[1])
                assert (whole["waiting"], whole["in_flight"]) == (1, 1)
                assert "sk-" not in json.dumps(whole)
        await proxy.at_rest()
        assert await requests(proxy) == []


async def test_a_waiting_request_is_cancelled_and_told_not_to_come_back() -> None:
    async with ScriptedBackend() as own, ScriptedBackend() as rented, serving(file(own, rented)) as proxy:
        own.then(*STREAM)
        async with await asking(proxy, "first") as first:
            await first.head()
            async with await asking(proxy, "second") as second:
                await seen_in_phase(proxy, "second", "queued")
                assert await pull(proxy, "cancel/second") == "second: cancelled"
                answer = await second.response()
                assert (answer.status, answer.header("x-fairlane-reason"), answer.header("x-should-retry")) == (503, "cancelled", "false")
                assert answer.header("x-fairlane-attempts") == "0"
                assert (await proxy.admin("/-/cancel/second", "POST"))[0] == 404
        await proxy.at_rest()
        assert await proxy.metric("fairlane_requests_total", outcome="cancelled", code="503") == 1
        assert await proxy.metric("fairlane_queue_wait_seconds_count", outcome="cancelled") == 1
        assert len(own.requests) == 1


@pytest.mark.parametrize("body", [JS, J], ids=["streamed", "whole"])
async def test_a_request_without_an_answer_yet_is_cancelled_and_its_slot_is_back(body: bytes) -> None:
    async with ScriptedBackend() as own, ScriptedBackend() as rented, serving(file(own, rented)) as proxy:
        own.then(scripts.hang())
        async with await asking(proxy, "first", body) as first:
            await own.seen(1)
            await pull(proxy, "cancel/first")
            answer = await first.response()
            assert (answer.status, answer.header("x-fairlane-attempts")) == (503, "1")
            await own.until(lambda: own.active == 0)  # the backend sees the connection close
            assert (await first.ask(post(J))).status == 200  # the caller's connection goes on
        await proxy.at_rest()
        assert await proxy.metric("fairlane_attempts_total", backend="a", outcome="cancelled") == 1
        assert (await state(proxy))["backends"]["a"]["state"] == "healthy"


async def test_a_stream_that_is_cancelled_ends_in_one_error_event_and_never_looks_whole() -> None:
    async with ScriptedBackend() as own, ScriptedBackend() as rented, serving(file(own, rented)) as proxy:
        own.then(*STREAM)
        async with await asking(proxy, "first") as first:
            await seen_in_phase(proxy, "first", "streaming")
            await pull(proxy, "cancel/first")
            answer = await first.response()
            assert answer.status == 200 and not answer.whole
            assert answer.body.count(b'"error"') == 1 and b"[DONE]" not in answer.body and b"cancelled" in answer.body
            await own.until(lambda: own.active == 0)
        await proxy.at_rest()
        assert await proxy.metric("fairlane_requests_total", outcome="cancelled", code="200") == 1


async def test_all_requests_of_one_id_are_cancelled() -> None:
    async with ScriptedBackend() as own, ScriptedBackend() as rented, serving(file(own, rented, cap=2)) as proxy:
        own.then(scripts.hang(), times=2)
        async with await asking(proxy, "same") as one, await asking(proxy, "same") as other:
            await own.seen(2)
            assert await pull(proxy, "cancel/same") == "same: cancelled, 2 requests of that id"
            assert [(await caller.response()).status for caller in (one, other)] == [503, 503]
        await proxy.at_rest()


async def test_what_was_refused_lately_is_told_in_episodes() -> None:
    async with ScriptedBackend() as own, ScriptedBackend() as rented, serving(file(own, rented)) as proxy:
        await pull(proxy, "drain/own")
        await pull(proxy, "drain/rented")
        for name in ("x1", "x2", "x3"):
            assert (await proxy.ask(x_request_id=name)).status == 503
        assert (await proxy.ask(key="nobody")).status == 401
        shown = (await state(proxy))["refusals"]
        assert [(each["pool"], each["lane"], each["outcome"], each["count"]) for each in shown] == [
            ("", "", "unauthenticated", 1),
            ("chat", "fast", "no_backend", 3),
        ]
        assert shown[1]["last_id"] == "x3"


async def test_while_a_lever_holds_the_log_says_so_again_and_again(capfd: pytest.CaptureFixture[str]) -> None:
    async with ScriptedBackend() as own, ScriptedBackend() as rented, serving(file(own, rented)) as proxy:
        fairlane = proxy.fairlane
        levers = Levers(fairlane.lobby, fairlane.service, fairlane._log, asyncio.get_running_loop(), remind_s=0.05)
        levers.cap("a", "3")
        reminded: list[str] = []

        def told() -> bool:
            reminded.extend(line for line in capfd.readouterr().err.splitlines() if '"levers_hold"' in line)
            return len(reminded) >= 2

        await eventually(told)
        assert json.loads(reminded[0])["levers"] == ["cap a 3"]
        levers.uncap("a")
        began_at = clock.now()
        await eventually(lambda: levers._timer is None)
        assert clock.now() - began_at < 5.0
        levers.close()
