"""Who posts large bodies beside the streams of others? Callers, and the backend that takes them, in a process of their own.

`python -m tests.reliability.heavy CALLERS MIB`: says its backend's port, is told Fairlane's on stdin, and posts until stdin ends; then says
how many were answered. Bodies are prompts in several languages, as a caller with a whole book would send.
"""

from __future__ import annotations

import asyncio
import json
import sys

from tests.wire import RawClient, ScriptedBackend, post, scripts

_TEXT = "The quick brown fox jumps over the lazy dog; 敏捷的棕色狐狸跳过懒狗。 Быстрая лиса. \\n"


def body(mib: float) -> bytes:
    """A request of that size, for the model `heavy`."""
    text = json.dumps(_TEXT * int(mib * 2**20 / len(_TEXT.encode())), ensure_ascii=False)
    return f'{{"model":"heavy","messages":[{{"role":"user","content":{text}}}]}}'.encode()


async def main(callers: int, mib: float) -> None:
    """The whole of it."""
    request = post(body(mib))
    answered = 0
    async with ScriptedBackend(scripts.ok()) as backend:
        print(backend.port, flush=True)
        port = int(await asyncio.to_thread(sys.stdin.readline))

        async def caller() -> None:
            nonlocal answered
            async with await RawClient.connect(port, timeout_s=60.0) as client:
                while True:
                    assert (await client.ask(request)).status == 200
                    answered += 1
                    backend.requests.clear()
                    for connection in backend.connections:
                        connection.requests.clear()
                        del connection.received[: connection._parsed]
                        connection._parsed = 0

        calling = [asyncio.ensure_future(caller()) for _ in range(callers)]
        await asyncio.to_thread(sys.stdin.readline)
        problems = [each.exception() for each in calling if each.done()]
        for each in calling:
            each.cancel()
        await asyncio.gather(*calling, return_exceptions=True)
    print(json.dumps({"answered": answered, "problems": list(map(repr, problems))}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2])))
