"""How does the fake engine run from the command line? On a port, until it is told to end."""

from __future__ import annotations

import asyncio
import signal
import sys

import uvloop

from lab.engine.engine import Engine


def run(engine: Engine) -> int:
    """Serves until SIGTERM (exit code 0) or SIGINT (130); 1 if the port is taken."""
    return uvloop.run(_serve(engine))


async def _serve(engine: Engine) -> int:
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def end(code: int) -> None:
        if not ended.done():
            ended.set_result(code)

    for number, code in ((signal.SIGTERM, 0), (signal.SIGINT, 130)):
        asyncio.get_running_loop().add_signal_handler(number, end, code)
    try:
        await engine.start()
    except OSError as problem:
        print(f"engine: cannot listen on {engine.host}:{engine.port}: {problem.strerror}", file=sys.stderr)
        return 1
    print(f"engine: {engine.model} with {engine.slots} slots on {engine.url}", file=sys.stderr, flush=True)
    try:
        return await ended
    finally:
        await engine.stop()
