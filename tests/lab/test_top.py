"""Does `fairlane top` show what goes on, in a terminal and for scripts, and end as commands do?"""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import signal
import socket
import sys
from pathlib import Path

import aiohttp
import pytest
from rich.console import Console

from lab.top import run as top_run
from lab.top.picture import picture, span
from lab.top.reading import Look, Unreachable, document, rates, take
from tests.proxy.scene import scene
from tests.proxy.serving import TWO_LANES, Serving, serving
from tests.wire import ScriptedBackend, eventually

ROOT = Path(__file__).resolve().parents[2]


def file(backend: ScriptedBackend) -> str:
    return (
        TWO_LANES
        + f'platforms: {{p: {{probe: none, backends: {{b: {{url: "{backend.url}", max_streams: 4}}}}}}}}\n'
        + "pools: {main: {primary: p}}\n"
    )


async def looked(proxy: Serving) -> Look:
    async with aiohttp.ClientSession() as session:
        return await take(session, proxy.admin_url)


def drawn(before: Look | None, after: Look, width: int = 120, lost: str = "") -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(picture(before, after, lost))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


async def command(*arguments: str) -> tuple[int, str, str]:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "proxy", "top", *arguments, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await asyncio.wait_for(child.communicate(), 30)
    return child.returncode or 0, out.decode(), err.decode()


async def test_json_has_the_state_and_the_rates_and_once_is_one_picture() -> None:
    async with ScriptedBackend() as backend, serving(file(backend)) as proxy:
        stop = asyncio.Event()

        async def callers() -> None:
            while not stop.is_set():
                await proxy.ask()

        calling = asyncio.create_task(callers())
        (code, out, err), (once_code, once, _) = await asyncio.gather(
            command("--url", proxy.admin_url, "--json"), command("--url", proxy.admin_url + "/", "--once", "--every", "200ms")
        )
        stop.set()
        await calling
        assert (code, err, once_code) == (0, "", 0)
        shown = json.loads(out)
        assert shown["pools"]["main"]["lanes"]["fast"]["answered_rps"] > 0
        assert shown["pools"]["main"]["lanes"]["slow"]["answered_rps"] == 0
        assert shown["backends"]["b"]["max_streams"] == 4
        assert "serving" in once and "main" in once and "of 4" in once and "\x1b" not in once


async def test_a_town_under_load_is_drawn_with_lanes_caps_levers_and_a_failover() -> None:
    async with scene() as town:
        before = await looked(town.proxy)
        town.call("big", "sk-A", 12)
        town.call("big", "sk-B", 14)
        await eventually(lambda: town.proxy.state.waiting >= 8)
        await town.proxy.admin("/-/cap/small-1/3", "POST")
        town.kill("gpu-a", "gpu-b")
        await eventually(lambda: town.proxy.state.pools["large"].in_service == ("rented",), 10)
        town.call("big", "sk-B", 40)  # more than the standby's streams and the places hold
        async with asyncio.timeout(10):
            while "queue full in large" not in (text := drawn(before, after := await looked(town.proxy))):
                await asyncio.sleep(0.05)
        assert "rented (standby)" in text
        assert "ejected: " in text and "by hand: cap small-1 3" in text and "POST /-/uncap/small-1" in text
        assert "failed over  large: own-large → rented" in text
        assert rates(before, after, "large", "fast").ttft_p95_s is not None
        narrow = drawn(before, after, width=60)
        assert max(map(len, narrow.splitlines())) <= 60 and "gpu-a" in narrow
        assert "No answer since 12:00:00" in drawn(before, after, lost="12:00:00")


async def test_after_a_restart_nothing_is_a_rate() -> None:
    async with ScriptedBackend() as backend:
        async with serving(file(backend)) as proxy:
            await proxy.ask()
            old = await looked(proxy)
        async with serving(file(backend)) as proxy:
            new = await looked(proxy)
            before, after = sorted((old, new), key=lambda look: -look.uptime_s)
            assert vars(rates(before, after, "main", "fast")) == {"answered_rps": None, "refused_rps": None, "ttft_p95_s": None}
            assert document(None, new)["pools"]["main"]["lanes"]["fast"]["answered_rps"] is None


async def test_where_nobody_answers_is_3_and_says_where_to_look() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    code, out, err = await command("--url", f"http://127.0.0.1:{port}")
    assert (code, out) == (3, "")
    assert "nobody answers" in err and "server.admin" in err


async def test_who_answers_but_is_no_fairlane_is_told_apart() -> None:
    async with ScriptedBackend() as backend, aiohttp.ClientSession() as session:
        with pytest.raises(Unreachable, match="no admin port"):
            await take(session, backend.url)


async def test_live_in_a_terminal_until_ctrl_c() -> None:
    async with ScriptedBackend() as backend, serving(file(backend)) as proxy:
        ours, theirs = pty.openpty()
        os.set_blocking(ours, False)
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "proxy", "top", "--url", proxy.admin_url, "--every", "200ms",
            cwd=ROOT, stdout=theirs, stdin=theirs, env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"},
        )  # fmt: skip
        os.close(theirs)
        seen = b""

        def shows(word: bytes) -> bool:
            nonlocal seen
            try:
                seen += os.read(ours, 65536)
            except OSError:
                pass
            return word in seen

        try:
            await eventually(lambda: shows(b"serving"), 20)
            await proxy.admin("/-/drain/b", "POST")
            await eventually(lambda: shows(b"by hand: drain b"), 20)
            child.send_signal(signal.SIGINT)
            assert await asyncio.wait_for(child.wait(), 20) == 130
        finally:
            os.close(ours)
            if child.returncode is None:
                child.kill()
                await child.wait()


def test_durations_are_short() -> None:
    assert [span(s) for s in (None, 0.0123, 1.25, 42.4, 600, 10_000)] == ["-", "12 ms", "1.2 s", "42 s", "10 min", "3 h"]
    assert top_run.RATE_LOOKS > 1
