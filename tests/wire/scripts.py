"""How shall the backend behave? The steps of scripts: each is one thing done to one request, in the order written.

A script is a sequence of steps: `backend.script = [scripts.head(), scripts.event("a"), scripts.rst()]`. After its last step
the answer counts as finished, and the connection stays open unless a step ended it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from tests.wire.messages import HEAD, ev

if TYPE_CHECKING:
    from tests.wire.backend import Exchange, Step

GARBAGE = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 not HTTP at all\r\n\r\n"
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
DONE = b"data: [DONE]\n\n"


def _step(act: Callable[[Exchange], None]) -> Step:
    async def step(exchange: Exchange) -> None:
        act(exchange)

    return step


def chunk(data: bytes) -> bytes:
    """One chunk of chunked framing."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def finish(reason: str = "stop") -> bytes:
    """The chat event that carries a finish reason."""
    return b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"' + reason.encode() + b'"}]}\n\n'


def usage(prompt_tokens: int, completion_tokens: int) -> bytes:
    """The chat event that carries nothing but usage."""
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": prompt_tokens + completion_tokens}
    return b"data: " + json.dumps({"choices": [], "usage": counts}, separators=(",", ":")).encode() + b"\n\n"


def sse(events: Iterable[bytes]) -> bytes:
    """A whole chunked event stream, one chunk per event: what `raw`, `sliced`, `rst_at` and `fin_at` take."""
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(chunk(event) for event in events) + b"0\r\n\r\n"


def answer(body: bytes | str, status: int = 200, headers: Mapping[str, str] | None = None) -> bytes:
    """A whole response with Content-Length framing."""
    data = body.encode() if isinstance(body, str) else body
    named = {"Content-Type": "application/json", **(headers or {}), "Content-Length": str(len(data))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return f"HTTP/1.1 {status} Scripted\r\n{lines}\r\n".encode("latin-1") + data


def chat_events(tokens: int, prompt_tokens: int = 5) -> list[bytes]:
    """A whole chat stream: role, tokens `t0`, `t1`..., finish reason, usage, [DONE]."""
    return [ROLE, *(ev(f"t{n} ") for n in range(tokens)), finish(), usage(prompt_tokens, tokens), DONE]


def message_events(tokens: int, prompt_tokens: int = 5) -> list[bytes]:
    """A whole Anthropic stream, every event named."""
    message: dict[str, object] = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None, "stop_sequence": None,
        "usage": {"input_tokens": prompt_tokens, "output_tokens": 1},
    }  # fmt: skip
    events: list[dict[str, object]] = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": f"t{n} "}} for n in range(tokens)),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": {"output_tokens": tokens}},
        {"type": "message_stop"},
    ]
    return [f"event: {event['type']}\ndata: {json.dumps(event, separators=(',', ':'))}\n\n".encode() for event in events]


def chat_body(tokens: int, prompt_tokens: int = 5) -> str:
    """A whole chat answer that is not streamed."""
    return json.dumps(
        {
            "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "t " * tokens}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": tokens, "total_tokens": prompt_tokens + tokens},
        }
    )  # fmt: skip


def message_body(tokens: int, prompt_tokens: int = 5) -> str:
    """A whole Anthropic answer that is not streamed."""
    return json.dumps(
        {
            "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [{"type": "text", "text": "t " * tokens}],
            "stop_reason": "end_turn", "stop_sequence": None, "usage": {"input_tokens": prompt_tokens, "output_tokens": tokens},
        }
    )  # fmt: skip


def ok(tokens: int = 3, gap_s: float = 0.0) -> Step:
    """A good answer in the form asked for (chat or Anthropic, streamed or not), `gap_s` between events."""

    async def step(exchange: Exchange) -> None:
        request = exchange.request
        if request.method == "GET":  # a health probe, or the list of models
            exchange.write(answer('{"object":"list","data":[{"id":"m","object":"model","owned_by":"scripted"}]}'))
            return
        anthropic = request.target.startswith("/v1/messages")
        if not request.streamed:
            exchange.write(answer(message_body(tokens) if anthropic else chat_body(tokens)))
            return
        exchange.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for data in message_events(tokens) if anthropic else chat_events(tokens):
            exchange.write(chunk(data))
            await exchange.drained()
            if gap_s:
                await asyncio.sleep(gap_s)
        exchange.write(b"0\r\n\r\n")

    return step


def head(headers: bytes = b"Transfer-Encoding: chunked\r\n") -> Step:
    """The head of an event stream; events follow by `event` or `chunked`."""
    return _step(lambda exchange: exchange.write(HEAD + headers + b"\r\n"))


def event(text: str) -> Step:
    """One chat token, in one chunk."""
    return _step(lambda exchange: exchange.write(chunk(ev(text))))


def chunked(data: bytes) -> Step:
    """These bytes as one chunk."""
    return _step(lambda exchange: exchange.write(chunk(data)))


def end() -> Step:
    """The last chunk."""
    return _step(lambda exchange: exchange.write(b"0\r\n\r\n"))


def raw(data: bytes) -> Step:
    """Exactly these bytes, in one write."""

    async def step(exchange: Exchange) -> None:
        exchange.write(data)
        await exchange.drained()

    return step


def status(code: int, headers: Mapping[str, str] | None = None, body: bytes | str = '{"error":{"message":"scripted"}}') -> Step:
    """A whole answer with this status."""
    return _step(lambda exchange: exchange.write(answer(body, code, headers)))


def sliced(data: bytes, size: int, gap_s: float = 0.0) -> Step:
    """These bytes, `size` per write, each write reaching the other side on its own as far as the kernel allows."""

    async def step(exchange: Exchange) -> None:
        for at in range(0, len(data), size):
            exchange.write(data[at : at + size])
            await exchange.drained()
            await asyncio.sleep(gap_s)

    return step


def rate(data: bytes, bytes_per_s: float) -> Step:
    """These bytes at this speed, fifty writes a second."""
    size = max(1, int(bytes_per_s / 50))
    return sliced(data, size, size / bytes_per_s)


def delay(seconds: float) -> Step:
    """Nothing, for this long."""

    async def step(_: Exchange) -> None:
        await asyncio.sleep(seconds)

    return step


def wait(gate: asyncio.Event) -> Step:
    """Nothing, until the test opens the gate."""

    async def step(_: Exchange) -> None:
        await gate.wait()

    return step


def hang() -> Step:
    """Never answers; ends when the other side leaves."""

    async def step(_: Exchange) -> None:
        await asyncio.Event().wait()

    return step


def fin() -> Step:
    """Ends the connection with FIN."""
    return _step(lambda exchange: exchange.fin())


def rst() -> Step:
    """Resets the connection. What was written before may be lost with it: see `rst_at`."""
    return _step(lambda exchange: exchange.rst())


def fin_at(size: int, data: bytes) -> Step:
    """The first `size` of these bytes, then FIN."""

    async def step(exchange: Exchange) -> None:
        exchange.write(data[:size])
        exchange.fin()

    return step


def rst_at(size: int, data: bytes, grace_s: float = 0.05) -> Step:
    """The first `size` of these bytes, then, once they had time to be read, a reset."""

    async def step(exchange: Exchange) -> None:
        exchange.write(data[:size])
        await exchange.drained()
        await asyncio.sleep(grace_s)
        exchange.rst()

    return step


def garbage() -> Step:
    """Bytes that are not HTTP, then FIN."""
    return fin_at(len(GARBAGE), GARBAGE)


def ignore_close() -> Step:
    """The steps that follow go on even if the other side leaves."""

    def act(exchange: Exchange) -> None:
        exchange.ignores_close = True

    return _step(act)


def call(act: Callable[[Exchange], Awaitable[None] | None]) -> Step:
    """Whatever the test wants done at this point."""

    async def step(exchange: Exchange) -> None:
        result = act(exchange)
        if result is not None:
            await result

    return step
