"""Does the engine run as a process of its own, on the event loop it is served with?"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.wire import JS, RawClient, post

PROGRAM = """
import sys
from lab.engine.engine import Engine
from lab.engine.serve import run
sys.exit(run(Engine(port=int(sys.argv[1]), slots=2, ttft_s=0.0, tpot_s=0.002)))
"""


@asynccontextmanager
async def process(port: int = 0) -> AsyncIterator[asyncio.subprocess.Process]:
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, str(port), stderr=asyncio.subprocess.PIPE)
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


async def port_of(child: asyncio.subprocess.Process) -> int:
    assert child.stderr is not None
    line = await asyncio.wait_for(child.stderr.readline(), 20)
    return int(line.rsplit(b":", 1)[1])


async def ask(port: int, fault: bytes) -> RawClient:
    async with await RawClient.connect(port) as client:
        assert (await client.ask(post(fault, path="/_fault"))).status == 200
    client = await RawClient.connect(port)
    await client.send(post(JS[:-1] + b',"max_tokens":6}'))
    return client


async def test_it_serves_and_fails_as_in_process() -> None:
    async with process() as child:
        port = await port_of(child)
        async with await ask(port, b'{"fault":"none"}') as client:
            response = await client.response()
            assert response.whole and response.body.endswith(b"data: [DONE]\n\n")
        async with await ask(port, b'{"fault":"cut","after":3}') as client:
            response = await client.response()
            assert not response.whole and client.ended == "reset" and response.body.count(b'"content":" ') == 3
        async with await ask(port, b'{"fault":"refuse","times":1}') as client:
            assert await client.until_closed() == "reset"
        async with await RawClient.connect(port) as client:
            await client.ask(post(b'{"fault":"refuse","seconds":60}', path="/_fault"))
            with pytest.raises(ConnectionRefusedError):
                await RawClient.connect(port)
            await client.ask(post(b'{"fault":"none"}', path="/_fault"))
            async with await RawClient.connect(port) as again:
                assert (await again.ask(post())).status == 200


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
async def test_it_ends_when_told(number: signal.Signals, code: int) -> None:
    async with process() as child:
        await port_of(child)
        child.send_signal(number)
        assert await asyncio.wait_for(child.wait(), 10) == code


async def test_a_port_that_is_taken_is_said() -> None:
    async with process() as first:
        port = await port_of(first)
        async with process(port) as second:
            _, said = await asyncio.wait_for(second.communicate(), 20)
            assert second.returncode == 1 and str(port).encode() in said and b"Traceback" not in said
