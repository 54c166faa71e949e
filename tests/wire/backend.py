"""What did the backend see, and what shall it answer? A raw asyncio server that follows scripts and keeps every byte.

No HTTP library: requests are cut out of the stream by the few lines below, and answers are whatever bytes a script says.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import cast

from tests.wire import scripts

Step = Callable[["Exchange"], Awaitable[None]]
Script = Sequence[Step]


class Seen:
    """One request as it arrived, with the instants (monotonic seconds) of its life; None: not reached."""

    def __init__(self, raw: bytes, head_end: int, body: bytes, connection: Connection) -> None:
        lines = raw[:head_end].split(b"\r\n")
        self.raw = raw
        self.body = body
        self.connection = connection
        self.method, _, rest = lines[0].decode("latin-1").partition(" ")
        self.target = rest.rpartition(" ")[0]
        self.headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines[1:] if line)]
        self.arrived_at = time.monotonic()
        self.first_byte_at: float | None = None
        self.last_byte_at: float | None = None
        self.close_seen_at: float | None = None
        self.finished_at: float | None = None  # the script came to its end, or was cancelled

    def header(self, name: str) -> str | None:
        """The first value of a header, or None."""
        wanted = name.lower().encode()
        return next((value.decode("latin-1") for key, value in self.headers if key == wanted), None)

    @property
    def streamed(self) -> bool:
        """Did the caller ask for a stream?"""
        return b'"stream":true' in self.body.replace(b" ", b"")


class Exchange:
    """One request being answered: what the steps of a script act on."""

    def __init__(self, request: Seen) -> None:
        self.request = request
        self.connection = request.connection
        self.ignores_close = False

    def write(self, data: bytes) -> None:
        """Hands bytes to the socket; nothing once the connection is gone."""
        if self.connection.transport.is_closing():
            return
        self.request.last_byte_at = time.monotonic()
        if self.request.first_byte_at is None:
            self.request.first_byte_at = self.request.last_byte_at
        self.connection.transport.write(data)

    async def drained(self) -> None:
        """Waits until the socket has room again: what a backend with a full socket buffer does."""
        await self.connection.writable.wait()

    def fin(self) -> None:
        """Ends the connection after what was written."""
        self.connection.transport.close()

    def rst(self) -> None:
        """Resets the connection."""
        reset(self.connection.transport)


class Connection(asyncio.Protocol):
    """One accepted connection: all its bytes, its requests, and when the other side left."""

    transport: asyncio.Transport

    def __init__(self, backend: ScriptedBackend) -> None:
        self.backend = backend
        self.received = bytearray()
        self.requests: list[Seen] = []
        self.opened_at = time.monotonic()
        self.closed_at: float | None = None
        self.closed = asyncio.Event()
        self.was_reset = False
        self.writable = asyncio.Event()
        self.writable.set()
        self._parsed = 0
        self._waiting: deque[Seen] = deque()
        self._exchange: Exchange | None = None
        self._task: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by class
        if self.backend.sndbuf_bytes is not None:
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.backend.sndbuf_bytes)
            self.transport.set_write_buffer_limits(0)
        self.backend.connections.append(self)
        if self.backend.reading_stopped:
            self.transport.pause_reading()
        self._rest()
        self.backend.changed()

    def data_received(self, data: bytes) -> None:
        self.received += data
        while (seen := self._cut()) is not None:
            self.requests.append(seen)
            self.backend.requests.append(seen)
            self._waiting.append(seen)
        self._next()
        self.backend.changed()

    def eof_received(self) -> bool:
        self._left()
        return self._exchange is not None and self._exchange.ignores_close

    def connection_lost(self, exc: Exception | None) -> None:
        self.was_reset = exc is not None
        self._left()
        self.writable.set()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    @property
    def active(self) -> bool:
        """Is a request being answered here, as far as this backend knows?"""
        return self._exchange is not None and self.closed_at is None

    async def finished(self) -> None:
        """Waits for the script that runs, cancelled or not."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def _left(self) -> None:
        if self.closed_at is not None:
            return
        self.closed_at = time.monotonic()
        self.closed.set()
        if self._idle is not None:
            self._idle.cancel()
        if self._exchange is not None:
            self._exchange.request.close_seen_at = self.closed_at
            if self._task is not None and not self._exchange.ignores_close:
                self._task.cancel()
        self.backend.changed()

    def _cut(self) -> Seen | None:
        """The next whole request in what came, if there is one."""
        data, start = self.received, self._parsed
        head_end = data.find(b"\r\n\r\n", start)
        if head_end < 0:
            return None
        head = bytes(data[start:head_end]).lower()
        at = head_end + 4
        body = b""
        if b"\r\ntransfer-encoding:" in head:
            while True:
                line_end = data.find(b"\r\n", at)
                if line_end < 0:
                    return None
                size = int(data[at:line_end].split(b";")[0], 16)
                if len(data) < line_end + 4 + size:
                    return None
                body += data[line_end + 2 : line_end + 2 + size]
                at = line_end + 4 + size
                if size == 0:
                    break
        elif b"\r\ncontent-length:" in head:
            length = int(head.split(b"\r\ncontent-length:", 1)[1].split(b"\r\n", 1)[0])
            if len(data) < at + length:
                return None
            body = bytes(data[at : at + length])
            at += length
        self._parsed = at
        return Seen(bytes(data[start:at]), head_end - start, body, self)

    def _next(self) -> None:
        if self._exchange is not None or not self._waiting or self.closed_at is not None:
            return
        if self._idle is not None:
            self._idle.cancel()
        self._exchange = Exchange(self._waiting.popleft())
        self.backend.count_active()
        self._task = asyncio.get_running_loop().create_task(self._answer(self._exchange))

    async def _answer(self, exchange: Exchange) -> None:
        try:
            for step in self.backend.script_for(exchange.request):
                await step(exchange)
        except Exception as problem:  # a mistake in a test's script must be seen by the test
            self.backend.problems.append(problem)
            exchange.rst()
        finally:
            exchange.request.finished_at = time.monotonic()
            self._exchange = None
            self._rest()
            self.backend.changed()
        self._next()

    def _rest(self) -> None:
        if self.backend.close_idle_s is not None and self.closed_at is None:
            self._idle = asyncio.get_running_loop().call_later(self.backend.close_idle_s, self.transport.close)


class ScriptedBackend:
    """A backend on 127.0.0.1 that follows `script`, except for the requests `then` gave scripts of their own.

    A request with header `x-script: NAME` follows `named[NAME]`. While in use (`async with`) everything it saw can be read
    and waited for; when it ends, a script that raised makes the test fail.
    """

    def __init__(
        self,
        *script: Step,
        named: dict[str, Script] | None = None,
        sndbuf_bytes: int | None = None,
        close_idle_s: float | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self.script: Script = script or (scripts.ok(),)
        self.named: dict[str, Script] = named or {}
        self.sndbuf_bytes = sndbuf_bytes
        self.close_idle_s = close_idle_s
        self.reading_stopped = False
        self.host = host
        self.port = 0
        self.connections: list[Connection] = []
        self.requests: list[Seen] = []  # whole ones, in order of arrival
        self.max_active = 0  # most requests in progress at one time
        self.problems: list[Exception] = []
        self._next_scripts: deque[Script] = deque()
        self._server: asyncio.Server | None = None
        self._change = asyncio.Event()

    async def __aenter__(self) -> ScriptedBackend:
        await self.accept()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        await self.refuse()
        for connection in self.connections:
            connection.transport.abort()
        for connection in self.connections:
            connection._left()
            if connection._task is not None:
                connection._task.cancel()
            await connection.finished()
        if problem is None and self.problems:
            raise self.problems[0]

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def active(self) -> int:
        """Requests in progress: from their last byte to the end of the answer, or to the close seen."""
        return sum(connection.active for connection in self.connections)

    @property
    def open(self) -> int:
        """Connections whose other side has not left."""
        return sum(connection.closed_at is None for connection in self.connections)

    def then(self, *steps: Step, times: int = 1) -> None:
        """The next `times` requests without a script of their own follow these steps; repeated calls queue up."""
        self._next_scripts.extend([steps] * times)

    async def refuse(self) -> None:
        """Closes the listening socket: new connections are refused. Connections that are open stay."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def accept(self) -> None:
        """Listens, on the same port as before if it ever did."""
        if self._server is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(lambda: Connection(self), self.host, self.port, backlog=4096)
            self.port = self._server.sockets[0].getsockname()[1]

    def stop_reading(self) -> None:
        """Reads nothing more, on connections that are open and on new ones."""
        self.reading_stopped = True
        for connection in self.connections:
            if connection.closed_at is None:
                connection.transport.pause_reading()

    async def until(self, condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
        """Waits for the condition, looking whenever something happens here. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                await self._change.wait()

    async def seen(self, count: int, timeout_s: float = 5.0) -> Seen:
        """Waits until `count` whole requests have come in all; the last of them."""
        await self.until(lambda: len(self.requests) >= count, timeout_s)
        return self.requests[count - 1]

    async def at_rest(self, timeout_s: float = 5.0) -> None:
        """Waits until no request is in progress."""
        await self.until(lambda: self.active == 0, timeout_s)

    async def all_closed(self, timeout_s: float = 5.0) -> None:
        """Waits until the other side has left every connection."""
        await self.until(lambda: self.open == 0, timeout_s)

    def script_for(self, request: Seen) -> Script:
        """Which steps answer this request? Consumes those of `then`. Raises KeyError for an unknown name."""
        name = request.header("x-script")
        if name is not None:
            return self.named[name]
        return self._next_scripts.popleft() if self._next_scripts else self.script

    def changed(self) -> None:
        """Something happened: everybody waiting in `until` looks again."""
        self._change.set()
        self._change = asyncio.Event()

    def count_active(self) -> None:
        """A request begins to be answered."""
        self.max_active = max(self.max_active, self.active)


class Blackhole:
    """A port where connecting hangs: its accept queue is full and nobody accepts. Use as a context."""

    def __init__(self) -> None:
        self._held: list[socket.socket] = []
        self.port = 0

    def __enter__(self) -> Blackhole:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        self.port = listener.getsockname()[1]
        self._held.append(listener)
        # Linux accepts backlog + 1 connections into the queue; the rest of these stay in SYN_SENT and keep it full.
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", self.port))
            self._held.append(filler)
        return self

    def __exit__(self, *_: object) -> None:
        for held in self._held:
            held.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def reset(transport: asyncio.Transport) -> None:
    """Ends a connection with RST instead of FIN."""
    sock = transport.get_extra_info("socket")
    if sock is not None and not transport.is_closing():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
