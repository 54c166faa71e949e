"""How do a request's bytes leave, and when do its tokens come? One connection, asyncio's protocol on llhttp.

A token costs one callback: the parser cuts the chunk, the watcher compares it with the event it knows, the clock is read once per
read of the socket. Nothing here waits, so that thousands of streams can be held by one core.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import httptools

from lab.bench.call import OK, REFUSALS, Call
from proxy.sse import StreamWatcher, UnaryWatcher, Usage

DETAIL_BYTES = 300  # of a refusal's or a failure's body, for the report


class Exchange(asyncio.Protocol):
    """One connection to the target, one request at a time on it. `ended` resolves when the present call has its outcome."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.idle_since = 0.0
        self.reusable = False
        self.stale = False  # closed by the target before a byte of the answer, on a connection that had answered before
        self._call: Call | None = None
        self._ended: asyncio.Future[None] | None = None
        self._answered = 0
        self._now = 0.0

    def ask(self, call: Call, request: bytes) -> asyncio.Future[None]:
        """Sends; the future resolves when the call has ended in whatever way."""
        self._call = call
        self._ended = asyncio.get_running_loop().create_future()
        self._parser: Any = httptools.HttpResponseParser(self)
        self._watcher = StreamWatcher(call.form.api)
        self._unary = UnaryWatcher()
        self._body = b""
        self._events = 0
        self._status = 0
        self._streamed = False
        self._reason = ""
        self._untouched = True
        self.reusable = self.stale = False
        self.transport.write(request)
        call.sent_at = time.monotonic()
        return self._ended

    def give_up(self, outcome: str) -> None:
        """The client has waited long enough."""
        self._end(outcome)
        self.transport.abort()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._call is None:
            self.transport.abort()  # bytes nobody asked for
            return
        self._now = time.monotonic()
        self._untouched = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as problem:
            self._end("protocol", str(problem))
            self.transport.abort()

    def eof_received(self) -> None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.reusable = False
        if self._call is None:
            return
        self._now = time.monotonic()
        self.stale = self._untouched and self._answered > 0
        if self._streamed and self._watcher.whole and exc is None:
            self._finish()  # its end was told by closing
        else:
            self._end("truncated" if self._call.first_token_at is not None else "reset", str(exc or "closed by the target"))

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"content-type":
            self._streamed = value.lower().startswith(b"text/event-stream")
        elif name == b"x-fairlane-reason":
            self._reason = value.decode("latin-1")
        elif name == b"x-fairlane-queue-ms" and self._call is not None:
            try:
                self._call.queue_s = float(value) / 1000.0
            except ValueError:
                pass

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if not (self._streamed and self._status == 200):
            self._unary.feed(body)
            if len(self._body) < DETAIL_BYTES:
                self._body += body
            return
        watcher = self._watcher
        watcher.feed(body)
        if watcher.tokens != self._events:
            self._events = watcher.tokens
            call = self._call
            assert call is not None
            if call.last_token_at is None:
                call.first_token_at = self._now
            elif self._now - call.last_token_at > call.longest_gap_s:
                call.longest_gap_s = self._now - call.last_token_at
            call.last_token_at = self._now

    def on_message_complete(self) -> None:
        if self._status < 200:
            return  # 100 Continue and its like
        self._answered += 1
        self.reusable = self._parser.should_keep_alive()
        self._finish()

    # How it ended.

    def _finish(self) -> None:
        call = self._call
        if call is None:
            return
        detail = self._body[:DETAIL_BYTES].decode("utf-8", "replace")
        if self._status != 200:
            by_status = self._reason or ("rate_limited" if self._status == 429 else f"http_{self._status}")
            call.refused = by_status in REFUSALS
            self._end(by_status, detail)
            return
        usage = self._watcher.usage if self._streamed else self._unary.usage
        self._count(call, usage)
        if not self._streamed:
            self._end(OK if not call.stream else "not_streamed", "" if not call.stream else detail)
        elif self._watcher.error is not None:
            self._end("error_event", self._watcher.error[:DETAIL_BYTES].decode("utf-8", "replace"))
        elif not self._watcher.whole:
            self._end("truncated", "the stream ended without a finish reason and without [DONE]")
        elif call.first_token_at is None:
            self._end("empty", "the stream ended without a token")
        else:
            self._end(OK)

    def _count(self, call: Call, usage: Usage | None) -> None:
        call.counted_by_usage = usage is not None
        call.prompt_tokens, call.output_tokens = usage if usage is not None else (call.prompt_tokens_asked, self._events)

    def _end(self, outcome: str, detail: str = "") -> None:
        call, self._call = self._call, None
        if call is None:
            return
        if call.first_token_at is not None and call.output_tokens == 0:
            self._count(call, self._watcher.usage)  # a broken stream's tokens were paid for
        call.outcome, call.detail = outcome, detail
        call.ended_at = time.monotonic()
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)
