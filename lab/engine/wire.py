"""What was asked on this connection, and how do the bytes of an answer leave? The engine's HTTP/1.1, on llhttp.

Only what an engine needs: keep-alive, pipelined requests one after another, both framings. Faults need what HTTP libraries
hide: `reset`, `end` in mid-body, and raw `write`.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple, cast

import httptools

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"


class Asked(NamedTuple):
    """One whole request. `path` without its query."""

    method: str
    path: str
    body: bytes
    keep_alive: bool


def chunk(data: bytes) -> bytes:
    """One chunk of chunked framing."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def whole(status: int, body: bytes, headers: Mapping[str, str] | None = None, content_type: str = "application/json") -> bytes:
    """A response with Content-Length framing."""
    try:
        reason = HTTPStatus(status).phrase
    except ValueError:
        reason = "Unknown"
    lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    head = f"HTTP/1.1 {status} {reason}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n{lines}\r\n"
    return head.encode("latin-1") + body


class Connection(asyncio.Protocol):
    """One client. `handle` is called with one request at a time and must end it by `done`, `end` or `reset`;
    `gone` is called once, at once, when the client leaves while its request is being answered."""

    transport: asyncio.Transport

    def __init__(
        self, handle: Callable[[Connection, Asked], None], gone: Callable[[Connection], None], connections: set[Connection]
    ) -> None:
        self._handle = handle
        self._gone = gone
        self._connections = connections
        self._asked: deque[Asked] = deque()
        self._parser = httptools.HttpRequestParser(self)
        self._path = b""
        self._body: list[bytes] = []
        self._keep_alive = True
        self._in_turn = False
        self.busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by class
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._left()

    def eof_received(self) -> None:
        self._left()  # a client that closes its side has left; returning nothing closes ours

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.write(whole(400, b'{"error":{"message":"malformed request"}}', {"Connection": "close"}))
            self.transport.close()
            return
        self._next()

    # What the parser calls.

    def on_message_begin(self) -> None:
        self._path = b""
        self._body = []

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"expect" and value.lower() == b"100-continue":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        path = self._path.partition(b"?")[0].decode("latin-1")
        method = self._parser.get_method().decode("latin-1")
        self._asked.append(Asked(method, path, b"".join(self._body), self._parser.should_keep_alive()))

    # What the engine calls.

    def write(self, data: bytes) -> None:
        """Sends bytes as they are."""
        self.transport.write(data)

    def done(self, data: bytes = b"") -> None:
        """Sends the rest of the answer; the connection is free for its next request."""
        if data:
            self.transport.write(data)
        self.busy = False
        if not self._keep_alive:
            self.transport.close()
        elif self._asked and not self._in_turn:
            # Not at once: who calls this has not yet put away the answer that ends.
            asyncio.get_running_loop().call_soon(self._next)

    def end(self, data: bytes = b"") -> None:
        """Sends this, then ends the connection, whatever was promised."""
        self.busy = False
        self.transport.write(data)
        self.transport.close()

    def reset(self) -> None:
        """Ends the connection with RST."""
        self.busy = False
        sock = self.transport.get_extra_info("socket")
        if sock is not None and not self.transport.is_closing():
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _left(self) -> None:
        self._asked.clear()
        if self.busy:
            self.busy = False
            self._gone(self)

    def _next(self) -> None:
        self._in_turn = True
        while self._asked and not self.busy and not self.transport.is_closing():
            asked = self._asked.popleft()
            self.busy = True
            self._keep_alive = asked.keep_alive
            self._handle(self, asked)
        self._in_turn = False
