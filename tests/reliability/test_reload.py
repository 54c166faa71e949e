"""Group D, reload: does another file change what it should, and nothing else?"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.proxy.serving import SERVER, Serving, serving
from tests.reliability.shapes import alone, backed
from tests.wire import JS, ScriptedBackend, eventually, post, scripts

CONTENT = b"".join(scripts.chat_events(3))


async def reload(proxy: Serving, text: str, server: str = SERVER % "off") -> Any:
    """Another file, read now."""
    proxy.file.write_text(server + text)
    return await proxy.fairlane.reload()


async def test_d04_reloads_under_load_lose_nothing() -> None:
    await reloads_under_load(reloads=6, requests=300, streams=10)


@pytest.mark.soak
async def test_d04_twenty_reloads_under_ten_thousand_requests_lose_nothing() -> None:
    await reloads_under_load(reloads=20, requests=10_000, streams=100)


async def reloads_under_load(reloads: int, requests: int, streams: int) -> None:
    """Short requests on eight connections, streams that last over all of it, and a file with another cap again and again."""
    gate = asyncio.Event()
    events = scripts.chat_events(3)
    held = [
        scripts.head(),
        scripts.chunked(events[0] + events[1]),
        scripts.wait(gate),
        scripts.chunked(b"".join(events[2:])),
        scripts.end(),
    ]
    async with ScriptedBackend(named={"held": held}) as backend:
        cap = streams + 16
        async with serving(alone(backend.url, cap=cap)) as proxy:
            callers = [await proxy.connect(timeout_s=300) for _ in range(streams)]
            for caller in callers:
                await caller.send(post(JS, headers={"x-script": "held"}))
            await backend.until(lambda: backend.active == streams, timeout_s=30)
            told: list[tuple[int, bytes, bool]] = []

            async def ask(count: int) -> None:
                async with await proxy.connect() as one:
                    for _ in range(count):
                        answer = await one.ask(post(JS))
                        told.append((answer.status, answer.body, answer.whole))

            asking = [asyncio.ensure_future(ask(requests // 8)) for _ in range(8)]
            for number in range(1, reloads + 1):
                await eventually(lambda: len(told) >= requests * number // (reloads + 1), timeout_s=300)  # noqa: B023
                assert (await reload(proxy, alone(backend.url, cap=cap + number % 2))).ok
            await asyncio.gather(*asking)
            assert set(told) == {(200, CONTENT, True)}
            gate.set()
            for caller in callers:
                answer = await caller.response()
                assert (answer.body, answer.whole) == (CONTENT, True)
                caller.close()
            await proxy.at_rest()
            assert await proxy.metric("fairlane_requests_total") == len(told) + streams
            assert await proxy.metric("fairlane_requests_total", outcome="ok") == len(told) + streams


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda text: text + "  : [", "fairlane.yaml"),
        (lambda text: text.replace("max_streams", "max_streems"), "max_streems"),
        (lambda text: text.replace("platforms:", "platforms:\n  p: {backends: {}}"), "platforms.p"),
        (lambda text: text.replace("max_streams: 8", "max_streams: -8"), "max_streams"),
    ],
    ids=["syntax", "unknown", "twice", "negative"],
)
async def test_d05_a_wrong_file_changes_nothing_and_its_fault_is_named(wrong: Any, named: str) -> None:
    async with ScriptedBackend() as backend, serving(alone(backend.url)) as proxy:
        result = await reload(proxy, wrong(alone(backend.url)))
        assert not result.ok
        assert any(named in problem for problem in result.problems), result.problems
        assert await proxy.metric("fairlane_config_last_reload_successful") == 0
        assert (await proxy.ask(JS)).body == CONTENT
        assert (await reload(proxy, alone(backend.url))).ok
        assert await proxy.metric("fairlane_config_last_reload_successful") == 1


async def test_d06_a_cap_by_hand_is_kept_by_who_waits_and_given_up_at_once() -> None:
    gate = asyncio.Event()
    async with ScriptedBackend(scripts.wait(gate), scripts.ok()) as backend:
        async with serving(alone(backend.url, cap=8, pool=", queue: {places: 20, max_wait: 60s}")) as proxy:
            assert (await proxy.admin("/-/cap/p-1/0", "POST"))[0] == 400, "a cap of nothing is a drain"
            assert (await proxy.admin("/-/cap/p-1/1", "POST"))[0] == 200
            asked = [asyncio.ensure_future(proxy.ask(JS)) for _ in range(8)]
            await proxy.until(lambda: proxy.state.waiting == 7)
            assert (await proxy.admin("/-/cap/p-1/3", "POST"))[0] == 200
            await backend.seen(3)
            assert (proxy.state.waiting, proxy.state.in_flight) == (5, 3)
            assert (await proxy.admin("/-/uncap/p-1", "POST"))[0] == 200
            await backend.seen(8)
            gate.set()
            assert {answer.status for answer in await asyncio.gather(*asked)} == {200}
            assert backend.max_active == 8


async def test_d06_a_lowered_cap_is_kept_once_it_is_reached_and_a_raised_one_is_used_at_once() -> None:
    gates = [asyncio.Event() for _ in range(16)]
    asked = iter(gates)

    async def each_its_own(exchange: Any) -> None:
        await next(asked).wait()

    async with ScriptedBackend(each_its_own, scripts.ok()) as backend:

        def file(cap: int) -> str:
            return alone(backend.url, cap=cap, pool=", queue: {places: 20, max_wait: 60s}")

        async with serving(file(8)) as proxy:
            callers = [asyncio.ensure_future(proxy.ask(JS)) for _ in range(12)]
            await proxy.until(lambda: (proxy.state.in_flight, proxy.state.waiting) == (8, 4))
            assert (await reload(proxy, file(4))).ok
            for ended in range(4):
                gates[ended].set()
                await proxy.until(lambda: proxy.state.in_flight == 7 - ended)  # noqa: B023
                assert (proxy.state.waiting, len(backend.requests)) == (4, 8), "no grant above the lowered cap"
            gates[4].set()
            await backend.seen(9)
            assert proxy.state.in_flight == 4
            assert (await proxy.admin("/-/drain/p-1", "POST"))[0] == 200
            await proxy.until(lambda: proxy.state.waiting == 0)  # with nothing left to wait for they are told
            assert (await reload(proxy, file(8))).ok
            assert (await proxy.ask(JS)).header("x-fairlane-reason") == "no_backend", "what a lever drained stays drained"
            assert (await proxy.admin("/-/undrain/p-1", "POST"))[0] == 200
            late = asyncio.ensure_future(proxy.ask(JS))
            await backend.seen(10)
            for gate in gates:
                gate.set()
            answers = await asyncio.gather(*callers, late)
            assert sorted(answer.status for answer in answers) == [200] * 10 + [503] * 3


async def sent_as_it_closes(requests: int) -> None:
    """Requests on kept connections, sent around the instant at which the server closes them for being idle."""
    async with ScriptedBackend() as backend, serving(alone(backend.url)) as proxy:
        proxy.fairlane.door.limits = dataclasses.replace(proxy.fairlane.door.limits, keep_alive_s=0.05)
        answered = 0
        for number in range(requests):
            async with await proxy.connect() as caller:
                assert (await caller.ask(post(JS))).whole
                await asyncio.sleep(0.05 + 0.1 * (number % 7) / 7)  # the sweep is every 0.1 s
                seen = len(backend.requests)
                try:
                    answer = await caller.ask(post(JS))
                except (EOFError, OSError):
                    assert len(backend.requests) == seen, "read, and dropped"
                else:
                    assert (answer.status, answer.whole) == (200, True)
                    answered += 1
        assert 0 < answered < requests, "both sides of the instant were met"


async def test_d09_a_request_sent_as_its_connection_closes_is_answered_or_was_never_read() -> None:
    await sent_as_it_closes(14)


@pytest.mark.soak
async def test_d09_a_thousand_requests_sent_as_their_connections_close() -> None:
    await sent_as_it_closes(1000)


async def test_d10_a_revoked_key_is_refused_at_once_and_what_runs_under_it_runs_on() -> None:
    gate = asyncio.Event()
    last = [scripts.wait(gate), scripts.chunked(scripts.finish() + scripts.DONE), scripts.end()]
    async with ScriptedBackend(scripts.head(), scripts.event("a"), *last) as backend, serving(alone(backend.url)) as proxy:
        async with await proxy.connect() as caller, await proxy.connect() as idle:
            await caller.send(post(JS))
            assert (await caller.head()).status == 200
            assert (await idle.ask(b"GET /v1/models HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer sk-A\r\n\r\n")).status == 200
            assert (await reload(proxy, alone(backend.url).replace("sk-A", "sk-new"))).ok
            assert (await idle.ask(post(JS))).status == 401, "on a connection from before too"
            gate.set()
            body, whole = await caller.body()
            assert whole and body.endswith(scripts.DONE)
            assert (await proxy.ask(JS, key="sk-new")).status == 200


def certificate(directory: Path, name: str) -> tuple[Path, Path]:
    """A certificate for localhost that calls itself so."""
    cert, key = directory / "cert.pem", directory / "key.pem"
    asks = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    asks += ["-subj", f"/CN={name}", "-keyout", str(key), "-out", str(cert)]
    try:
        subprocess.run(asks, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    return cert, key


async def test_d10_a_new_certificate_is_shown_at_the_next_handshake(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "old")
    server = SERVER.replace("server: {", f'server: {{tls: {{cert: "{cert}", key: "{key}"}}, ') % "off"

    async def shown(proxy: Serving) -> bytes:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        _, writer = await asyncio.open_connection("127.0.0.1", proxy.port, ssl=context)
        found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        await writer.wait_closed()
        return found

    async with ScriptedBackend() as backend, serving(alone(backend.url), server=server) as proxy:
        before = await shown(proxy)
        certificate(tmp_path, "new")
        assert await shown(proxy) == before, "not before it is asked to"
        assert (await reload(proxy, alone(backend.url), server)).ok
        after = await shown(proxy)
        assert b"new" in after and b"new" not in before


async def test_d12_reloads_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    await many_reloads(monkeypatch, 30)


@pytest.mark.soak
async def test_d12_two_hundred_reloads_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    await many_reloads(monkeypatch, 200)


async def many_reloads(monkeypatch: pytest.MonkeyPatch, reloads: int) -> None:
    monkeypatch.setattr("proxy.prober.EVERY_S", 0.05)
    async with ScriptedBackend() as a, ScriptedBackend() as b:
        one = backed(a.url, b.url, more="smoke: 1h,", behind="smoke: 1h,")
        other = backed(b.url, a.url, more="smoke: 2h,", behind="probe: models,")

        def counts() -> tuple[int, int]:
            return len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))

        async with serving(one) as proxy:
            before = (0, 0)
            for number in range(reloads):
                assert (await reload(proxy, other if number % 2 == 0 else one)).ok
                assert (await proxy.ask(JS)).body == CONTENT
                if number == 9:
                    before = counts()
            tasks, files = counts()
            assert tasks <= before[0] + 5 and files <= before[1] + 5, (before, (tasks, files))
            assert (await reload(proxy, alone(a.url))).ok
            await proxy.until(lambda: len(asyncio.all_tasks()) < tasks)
            await asyncio.sleep(0.1)  # what was under way may end
            seen = len(a.requests) + len(b.requests)
            await asyncio.sleep(0.3)
            assert len(a.requests) + len(b.requests) == seen, "its probes have stopped"
