"""Who posts large bodies beside the streams of others? Callers, and the backend that takes them, in a process of their own.

`python -m tests.reliability.heavy CALLERS MIB`: says its backend's port; each line on stdin, `PORT json` or `PORT form`, sets what is
posted from then on; at the end of stdin it says how many of each were answered. JSON bodies are prompts in several languages, as a caller
with a whole book would send; forms of the same size are not read, but for one field.
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


def form(mib: float) -> bytes:
    """An upload of that size, for the same model."""
    part = b'--b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
    whole = part % (b"model", b"heavy") + part % (b"file", b"x" * int(mib * 2**20)) + b"--b--\r\n"
    head = b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer sk-A\r\n"
    return head + b"Content-Type: multipart/form-data; boundary=b\r\nContent-Length: %d\r\n\r\n" % len(whole) + whole


async def main(callers: int, mib: float) -> None:
    """The whole of it."""
    requests = {"json": post(body(mib)), "form": form(mib)}
    answered, problems = dict.fromkeys(requests, 0), []
    calling: list[asyncio.Task[None]] = []
    async with ScriptedBackend(scripts.ok()) as backend:
        print(backend.port, flush=True)

        async def caller(port: int, kind: str) -> None:
            async with await RawClient.connect(port, timeout_s=60.0) as client:
                while True:
                    answer = await client.ask(requests[kind])
                    assert answer.status == 200, answer
                    answered[kind] += 1
                    backend.requests.clear()
                    for connection in backend.connections:
                        connection.requests.clear()
                        del connection.received[: connection._parsed]
                        connection._parsed = 0

        while True:
            line = await asyncio.to_thread(sys.stdin.readline)
            problems += [repr(each.exception()) for each in calling if each.done()]
            for each in calling:
                each.cancel()
            await asyncio.gather(*calling, return_exceptions=True)
            if not line:
                break
            port, kind = line.split()
            calling = [asyncio.ensure_future(caller(int(port), kind)) for _ in range(callers)]
    print(json.dumps({"answered": answered, "problems": problems}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2])))
