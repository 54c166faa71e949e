"""Does the process start, reload and end as an operator expects? A real one, driven by signals."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.wire import JS, RawClient, ScriptedBackend, post, scripts


class Process:
    """A `fairlane serve` of its own, and what it said on stderr."""

    def __init__(self, process: asyncio.subprocess.Process, file: Path) -> None:
        self.process, self.file = process, file
        self.said: list[str] = []
        self.port = self.admin = 0

    async def line(self, pattern: str) -> re.Match[str]:
        """The next line on stderr that matches."""
        assert self.process.stderr is not None
        async with asyncio.timeout(20):
            while text := (await self.process.stderr.readline()).decode():
                self.said.append(text)
                if match := re.search(pattern, text):
                    return match
        raise AssertionError(f"ended without saying {pattern!r}: {self.said}")

    async def get(self, path: str, method: str = "GET") -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.request(method, f"http://127.0.0.1:{self.admin}{path}") as answer:
            return answer.status, await answer.text()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)


@asynccontextmanager
async def process(file: Path, text: str) -> AsyncIterator[Process]:
    file.write_text(text)
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-X", "dev", "-W", "error", "-m", "proxy", "serve", str(file), stderr=asyncio.subprocess.PIPE
    )
    running = Process(child, file)
    try:
        ports = await running.line(r'"listen":"127.0.0.1:(\d+)","admin":"127.0.0.1:(\d+)"')
        running.port, running.admin = int(ports[1]), int(ports[2])
        yield running
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


def text(url: str, cap: int = 30, grace: str = "0s", timeout: str = "20s") -> str:
    return f"""
server: {{listen: "127.0.0.1:0", admin: "127.0.0.1:0", drain: {{grace: {grace}, timeout: {timeout}}}}}
anonymous: {{lane: fast}}
platforms:
  p: {{probe: none, backends: {{b: {{url: "{url}", max_streams: {cap}}}}}}}
pools:
  main: {{primary: p}}
"""


async def test_sigterm_with_twenty_streams_lets_all_finish_and_exits_0(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with ScriptedBackend(
        scripts.head(), scripts.event("a"), scripts.wait(gate), scripts.chunked(scripts.finish() + scripts.DONE), scripts.end()
    ) as backend:
        async with process(tmp_path / "f.yaml", text(backend.url)) as running:
            callers = [await RawClient.connect(running.port) for _ in range(20)]
            for caller in callers:
                await caller.send(post(JS, key=None))
                assert (await caller.head()).status == 200
            running.signal(signal.SIGTERM)
            await running.line('"event":"draining"')
            assert (await running.get("/readyz"))[0] == 503
            gate.set()
            for caller in callers:
                body, whole = await caller.body()
                assert whole and body.endswith(scripts.DONE)
                caller.close()
            assert await running.process.wait() == 0


async def test_within_the_grace_it_still_accepts_and_then_no_more(tmp_path: Path) -> None:
    async with ScriptedBackend() as backend, process(tmp_path / "f.yaml", text(backend.url, grace="2s")) as running:
        running.signal(signal.SIGTERM)
        await running.line('"event":"draining"')
        async with await RawClient.connect(running.port) as caller:
            assert (await caller.ask(post(key=None))).status == 200
            assert (await caller.ask(b"GET /health HTTP/1.1\r\nHost: t\r\n\r\n")).status == 503
        assert await running.process.wait() == 0
        with pytest.raises(OSError):
            await RawClient.connect(running.port)


async def test_what_is_not_over_at_the_timeout_is_cut_and_never_looks_whole(tmp_path: Path) -> None:
    async with ScriptedBackend(scripts.head(), scripts.event("a"), scripts.hang()) as backend:
        async with (
            process(tmp_path / "f.yaml", text(backend.url, timeout="500ms")) as running,
            await RawClient.connect(running.port) as caller,
        ):
            await caller.send(post(JS, key=None))
            await caller.head()
            running.signal(signal.SIGTERM)
            body, whole = await caller.body()
            assert not whole and b"[DONE]" not in body
            assert await running.process.wait() == 0


async def test_sighup_with_a_broken_file_changes_nothing_and_names_the_place(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with ScriptedBackend(scripts.wait(gate), scripts.ok()) as backend:
        good = text(backend.url, cap=1)
        async with (
            process(tmp_path / "f.yaml", good) as running,
            await RawClient.connect(running.port) as caller,
            await RawClient.connect(running.port) as second,
        ):
            await caller.send(post(JS, key=None))
            await backend.until(lambda: backend.active == 1)
            await second.send(post(JS, key=None))
            running.file.write_text(good.replace("max_streams", "max_streems"))
            running.signal(signal.SIGHUP)
            refused = await running.line('"event":"reload_refused"')
            assert re.search(r"f\.yaml:5:\d+: platforms\.p\.backends\.b\.max_streems: .*max_streams", refused.string)
            assert "fairlane_config_last_reload_successful 0" in (await running.get("/metrics"))[1]
            running.file.write_text(good.replace("max_streams: 1}", "max_streams: 2}"))
            running.signal(signal.SIGHUP)
            await running.line('"event":"reloaded"')
            await backend.until(lambda: backend.active == 2)  # the waiter goes at once
            metrics = (await running.get("/metrics"))[1]
            assert "fairlane_config_last_reload_successful 1" in metrics
            assert 'fairlane_backend_max_streams{backend="b",platform="p"} 2' in metrics
            gate.set()
            for each in (caller, second):
                assert (await each.response()).body.endswith(scripts.DONE)


async def test_a_file_that_is_wrong_or_a_port_that_is_taken_ends_in_1_with_the_reason(tmp_path: Path) -> None:
    async with ScriptedBackend() as backend:
        for broken, said in (
            (text(backend.url).replace("primary: p", "primary: q"), "f.yaml:7:"),
            (text(backend.url).replace("127.0.0.1:0", f"127.0.0.1:{backend.port}", 1), "cannot listen"),
        ):
            file = tmp_path / "f.yaml"
            file.write_text(broken)
            child = await asyncio.create_subprocess_exec(sys.executable, "-m", "proxy", "serve", str(file), stderr=asyncio.subprocess.PIPE)
            _, stderr = await child.communicate()
            assert child.returncode == 1
            assert said in stderr.decode()


async def test_the_log_says_everything_about_a_request_but_its_prompt_and_key(tmp_path: Path) -> None:
    async with ScriptedBackend() as backend:
        secrets = text(backend.url).replace("anonymous: {lane: fast}", "keys: [{name: acme, secret: sk-CANARY-7f3a, lane: fast}]")
        secrets = secrets.replace("probe: none,", "probe: none, api_key: sk-BACKEND-7f3a,")
        async with process(tmp_path / "f.yaml", secrets) as running, await RawClient.connect(running.port) as caller:
            body = JS.replace(b'"hi"', b'"PROMPT-CANARY-7f3a"')
            assert (await caller.ask(post(body, key="sk-CANARY-7f3a"))).status == 200
            assert (await caller.ask(post(body, key="sk-CANARY-7f3b"))).status == 401
            line = await running.line('"outcome":"unauthenticated"')
            seen = "".join(running.said) + line.string + (await running.get("/metrics"))[1] + (await running.get("/debug/state"))[1]
            assert '"tenant":"acme"' in seen and '"outcome":"ok"' in seen
            assert "CANARY" not in seen and "sk-BACKEND" not in seen


async def test_levers_of_the_admin_port_drain_and_reload(tmp_path: Path) -> None:
    async with ScriptedBackend() as backend, process(tmp_path / "f.yaml", text(backend.url)) as running:
        async with await RawClient.connect(running.port) as caller:
            assert (await running.get("/-/drain/b", "POST"))[0] == 200
            answer = await caller.ask(post(key=None))
            assert (answer.status, answer.header("x-fairlane-reason")) == (503, "no_backend")
            assert 'state": "drained"' in (await running.get("/debug/state"))[1]
            assert (await running.get("/readyz"))[0] == 503
            assert (await running.get("/-/undrain/b", "POST"))[0] == 200
            assert (await caller.ask(post(key=None))).status == 200
        assert (await running.get("/-/drain/nobody", "POST"))[0] == 404
        assert (await running.get("/-/reload", "POST"))[0] == 200
        running.file.write_text("nonsense: true")
        status, problems = await running.get("/-/reload", "POST")
        assert status == 422 and "f.yaml:1:1: nonsense" in problems


def test_the_descriptor_limit_is_raised_to_the_hard_one(tmp_path: Path) -> None:
    import resource
    import subprocess

    program = "import resource, proxy.app as a; a._raise_descriptor_limit(); print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    limit = f"ulimit -S -n 256; exec {sys.executable} -c '{program}'"
    soft, hard = subprocess.run(["bash", "-c", limit], capture_output=True, text=True, check=True, env=os.environ).stdout.split()
    assert soft == hard == str(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
