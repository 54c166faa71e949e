"""Does the demo count what callers get, and leave nothing behind? Its parts, without the model."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from lab.demo.caller import Call, Got, ask, question
from lab.demo.children import Children, DemoProblem, ready, require_free
from lab.demo.metrics import parse
from lab.demo.score import Score, quantile

SLEEPER = ["-c", "import time; time.sleep(600)"]
STREAM = b'data: {"choices":[{"delta":{"role":"assistant"}}]}\n\ndata: {"choices":[{"delta":{"content":"Hi"}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}\n\n'
ANSWERS: dict[str, tuple[int, dict[str, str], bytes]] = {
    "whole": (200, {}, STREAM + USAGE + b"data: [DONE]\n\n"),
    "cut": (200, {}, STREAM),
    "error": (200, {}, STREAM + b'data: {"error":{"message":"broken"}}\n\n'),
    "full": (429, {"retry-after": "3", "x-fairlane-reason": "queue_full"}, b"{}"),
    "broken": (500, {}, b"no"),
}


async def answer(request: web.Request) -> web.Response:
    status, headers, body = ANSWERS[request.match_info["kind"]]
    return web.Response(status=status, headers=headers, body=body)


@pytest.fixture
async def backend() -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/{kind}/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.mark.parametrize(
    ("kind", "got", "why"),
    [
        ("whole", Got.ANSWER, ""),
        ("cut", Got.FAILURE, "without [DONE]"),
        ("error", Got.FAILURE, "broken"),
        ("full", Got.REFUSAL, "queue_full"),
        ("broken", Got.FAILURE, "500"),
    ],
)
async def test_a_caller_knows_what_it_got(backend: str, kind: str, got: Got, why: str) -> None:
    call = Call("fast", time.monotonic())
    async with aiohttp.ClientSession() as session:
        await ask(session, f"{backend}/{kind}", "sk", call, question(1, streamed=True))
    assert call.got is got
    assert why in call.why
    assert call.ended_at is not None
    assert (call.ttft_s is not None) == (kind in ("whole", "cut", "error"))
    assert (call.tokens_in, call.tokens_out) == ((7, 3) if kind == "whole" else (0, 0))


async def test_nobody_there_is_a_failure() -> None:
    call = Call("fast", time.monotonic())
    async with aiohttp.ClientSession() as session:
        await ask(session, f"http://127.0.0.1:{free_port()}", "sk", call, question(1, streamed=True))
    assert call.got is Got.FAILURE


def test_the_score_is_what_callers_got() -> None:
    score = Score()
    score.calls = [
        Call("fast", 1.0, Got.ANSWER, "", 1.5, 2.0),
        Call("fast", 1.0, Got.ANSWER, "", 2.5, 4.0),
        Call("slow", 1.0, Got.REFUSAL, "queue_full"),
    ]
    lanes = score.report(["fast", "slow"])
    assert lanes["fast"] == {"sent": 2, "answered": 2, "refused": {}, "failed": 0, "ttft_p50_s": 1.0, "ttft_p95_s": 1.45, "tokens_out": 0}
    assert lanes["slow"]["refused"] == {"queue_full": 1}
    assert [call.lane for call in score.unserved()] == ["slow"]
    assert score.failed() == []
    assert score.span_s() == 3.0
    assert quantile([], 50) is None


def test_metrics_are_asked_by_label() -> None:
    metrics = parse('# TYPE a gauge\na{lane="fast",pool="x"} 2\na{lane="fast",pool="y"} 3\na{lane="slow",pool="x"} 4\nllamacpp:b 1\n')
    assert metrics.sum("a", lane="fast") == 5
    assert metrics.sum("a") == 9
    assert metrics.sum("llamacpp:b") == 1
    assert metrics.sum("nothing") == 0


async def test_children_end_with_the_block_whatever_ends_it(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        async with Children(tmp_path) as children:
            started = [await children.start(name, SLEEPER) for name in ("one", "two")]
            raise KeyError
    assert [child.process.returncode for child in started] == [-signal.SIGTERM, -signal.SIGTERM]


async def test_children_end_when_the_demo_is_cancelled(tmp_path: Path) -> None:
    up: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def demo() -> None:
        async with Children(tmp_path) as children:
            up.set_result((await children.start("one", SLEEPER)).pid)
            await asyncio.Event().wait()

    task = asyncio.ensure_future(demo())
    pid = await up
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal at a parent's death is Linux's")
async def test_children_end_when_the_demo_is_killed(tmp_path: Path) -> None:
    source = f"""
import asyncio, pathlib
from lab.demo.children import Children
async def demo():
    async with Children(pathlib.Path({str(tmp_path)!r})) as children:
        print((await children.start("one", {SLEEPER!r})).pid, flush=True)
        await asyncio.Event().wait()
asyncio.run(demo())
"""
    demo = await asyncio.create_subprocess_exec(sys.executable, "-c", source, stdout=asyncio.subprocess.PIPE)
    assert demo.stdout is not None
    handle = os.pidfd_open(int(await demo.stdout.readline()))
    try:
        demo.kill()
        await demo.wait()
        assert await asyncio.to_thread(select.select, [handle], [], [], 10.0) == ([handle], [], [])
    finally:
        os.close(handle)


async def test_a_child_that_ends_early_is_quoted(tmp_path: Path) -> None:
    async with Children(tmp_path) as children:
        child = await children.start("engine", ["-c", "raise SystemExit('no such model')"])
        with pytest.raises(DemoProblem, match=r"engine ended with 1 .*\nno such model"):
            await ready(child, f"http://127.0.0.1:{free_port()}/health", 20.0)


async def test_a_child_that_never_gets_ready_is_an_error(tmp_path: Path) -> None:
    async with Children(tmp_path) as children:
        child = await children.start("engine", SLEEPER)
        with pytest.raises(DemoProblem, match="engine was not ready within"):
            await ready(child, f"http://127.0.0.1:{free_port()}/health", 0.3)


def test_a_port_in_use_is_named_with_its_remedy() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(DemoProblem, match=r"port \d+, for callers: .* choose another: PORT=1 make run"):
            require_free(taken.getsockname()[1], "callers", "PORT=1 make run")
    require_free(free_port(), "callers", "")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
