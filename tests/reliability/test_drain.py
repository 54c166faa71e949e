"""Group D, drain: does a process end as its supervisor expects, and lose nothing that it had time for?"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.proxy.test_process import process, text
from tests.wire import JS, RawClient, ScriptedBackend, post, scripts

HEALTH = b"GET /health HTTP/1.1\r\nHost: t\r\n\r\n"


Connect = Callable[[int], Awaitable[RawClient]]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Callers that are there until the test is over."""
    opened: list[RawClient] = []

    async def one(port: int) -> RawClient:
        opened.append(await RawClient.connect(port, timeout_s=20))
        return opened[-1]

    yield one
    for caller in opened:
        caller.close()


async def streaming(connect: Connect, port: int, count: int) -> list[RawClient]:
    """So many callers in the middle of a stream."""
    callers = [await connect(port) for _ in range(count)]
    for caller in callers:
        await caller.send(post(JS, key=None))
    for caller in callers:
        assert (await caller.head()).status == 200
    return callers


async def test_d01_fifty_streams_end_whole_and_the_process_with_the_last(tmp_path: Path, connect: Connect) -> None:
    gate = asyncio.Event()
    last = [scripts.wait(gate), scripts.chunked(scripts.finish() + scripts.DONE), scripts.end()]
    async with ScriptedBackend(scripts.head(), scripts.event("a"), *last) as backend:
        async with process(tmp_path / "f.yaml", text(backend.url, cap=64, grace="500ms", timeout="60s")) as running:
            callers = await streaming(connect, running.port, 50)
            running.signal(signal.SIGTERM)
            await running.line('"event":"draining"')
            assert (await running.get("/readyz"))[0] == 503
            assert (await running.get("/healthz"))[0] == 200
            async with await RawClient.connect(running.port) as late:
                assert (await late.ask(HEALTH)).status == 503, "still accepting, for the balancer to notice"
            async with asyncio.timeout(5):
                while True:
                    try:
                        (await RawClient.connect(running.port)).close()
                    except OSError:
                        break
            gate.set()
            began_at = time.monotonic()
            for caller in callers:
                body, whole = await caller.body()
                assert whole and body.endswith(scripts.DONE)
            assert await running.process.wait() == 0
            assert time.monotonic() - began_at < 10, "as soon as the last stream has ended, not at the timeout"


async def test_d02_what_outlasts_the_timeout_is_told_so_and_cut(tmp_path: Path, connect: Connect) -> None:
    async with ScriptedBackend(scripts.head(), scripts.event("a"), scripts.hang()) as backend:
        async with process(tmp_path / "f.yaml", text(backend.url, timeout="500ms")) as running:
            (streams,) = await streaming(connect, running.port, 1)
            silent = await connect(running.port)
            backend.then(scripts.hang())
            await silent.send(post(JS, key=None))
            await backend.seen(2)
            running.signal(signal.SIGTERM)
            body, whole = await streams.body()
            assert not whole and b"[DONE]" not in body
            assert b'"code":"draining"' in body.split(b"\n\n")[-2]
            answer = await silent.response()
            assert (answer.status, answer.header("x-fairlane-reason")) == (503, "draining")
            assert 1 <= int(answer.header("retry-after") or 0) <= 60
            async with asyncio.timeout(5):
                assert await running.process.wait() == 0
            await backend.all_closed()


@pytest.mark.parametrize("served", [True, False], ids=["served", "refused"])
async def test_d03_who_waits_at_the_signal_is_served_in_time_or_told(tmp_path: Path, connect: Connect, served: bool) -> None:
    gate = asyncio.Event()
    async with ScriptedBackend(scripts.wait(gate), scripts.ok()) as backend:
        file = text(backend.url, cap=2, timeout="20s" if served else "500ms").replace("primary: p", "primary: p, queue: {places: 30}")
        async with process(tmp_path / "f.yaml", file) as running:
            callers = [await connect(running.port) for _ in range(32)]
            for caller in callers:
                await caller.send(post(JS, key=None))
            await backend.until(lambda: backend.active == 2)
            while 'waiting": 30' not in (await running.get("/debug/state"))[1]:
                await asyncio.sleep(0.02)
            running.signal(signal.SIGTERM)
            await running.line('"event":"draining"')
            if served:
                gate.set()
            answers = await asyncio.gather(*(caller.response() for caller in callers))
            if served:
                assert {answer.status for answer in answers} == {200}
            else:
                assert {(answer.status, answer.header("x-fairlane-reason")) for answer in answers} == {(503, "draining")}
                assert all(1 <= int(answer.header("retry-after") or 0) <= 60 for answer in answers)
            assert await running.process.wait() == 0


async def test_d11_a_second_signal_ends_it_at_once_and_a_reload_does_not_stop_a_drain(tmp_path: Path, connect: Connect) -> None:
    async with ScriptedBackend(scripts.head(), scripts.event("a"), scripts.hang()) as backend:
        async with process(tmp_path / "f.yaml", text(backend.url, timeout="60s")) as running:
            (caller,) = await streaming(connect, running.port, 1)
            running.signal(signal.SIGINT)
            await running.line('"event":"draining"')
            running.signal(signal.SIGHUP)
            await running.line('"event":"reload_ignored"')
            assert (await running.get("/-/reload", "POST"))[0] == 422
            assert (await running.get("/readyz"))[0] == 503
            running.signal(signal.SIGTERM)
            began_at = time.monotonic()
            body, whole = await caller.body()
            assert not whole and b"[DONE]" not in body
            assert await running.process.wait() == 0
            assert time.monotonic() - began_at < 10
            await backend.all_closed()


async def test_d11_a_signal_during_a_reload_drains(tmp_path: Path) -> None:
    async with ScriptedBackend() as backend, process(tmp_path / "f.yaml", text(backend.url)) as running:
        running.signal(signal.SIGHUP)
        running.signal(signal.SIGTERM)
        assert await running.process.wait() == 0


async def test_d13_its_end_frees_the_port_and_no_process_stays_behind(tmp_path: Path, connect: Connect) -> None:
    """There is one process and no master: what its death leaves is the port, to be had at once."""
    async with ScriptedBackend(scripts.hang()) as backend:
        async with process(tmp_path / "f.yaml", text(backend.url)) as running:
            caller = await connect(running.port)
            await caller.send(post(JS, key=None))
            await backend.seen(1)
            running.signal(signal.SIGKILL)
            assert await running.process.wait() == -signal.SIGKILL
            await backend.all_closed()
            server = await asyncio.start_server(lambda *_: None, "127.0.0.1", running.port)
            server.close()
            await server.wait_closed()
