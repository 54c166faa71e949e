"""How do we speak to a backend? Connections that are kept and reused, one request at a time on each.

A connection goes back only when its answer ended cleanly with no byte too many. An answer's head is checked as a
caller's is. Nothing is decompressed, followed or retried here; what went wrong is said as a `BackendFault`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from typing import Any, Protocol

import httptools

from proxy.http1.answer_head import AnswerHead
from proxy.http1.faults import BackendFault, ConnectFailed
from proxy.http1.known_head import KnownHead
from proxy.http1.outbox import Outbox
from proxy.http1.unacknowledged import unacknowledged_bytes

NEVER = float("inf")
KEEP_S = 4.0  # engines (uvicorn) close idle connections at 5 s
HEAD_BYTES = 64 * 1024
HEAD_FIELDS = 256
AT_ONCE_S = 0.2  # an end so soon after an answer was on its way before we could know of it
ENDS_AFTER_CHUNKS_S = 60.0  # so long a backend is believed to close after each stream
KNOWN_BYTES = 16 * 1024  # an answer's head is learnt from a first read of at most this
INFORMATIONAL = 16  # 1xx answers before the real one

_CRLF = b"\r\n"
_SIZES_MAX = 4096  # longer chunks are not the many small ones of a stream


def _size_of(chunk_bytes: int) -> tuple[bytes, int]:
    """With which line does a chunk begin that is so many bytes long, all told, and how long is that line?"""
    for digits in (1, 2, 3):
        size = b"%x" % max(0, chunk_bytes - digits - 4)
        if len(size) == digits and size != b"0":
            return size + _CRLF, digits + 2
    return b"none", 0  # no chunk is so long, or it has no data


_SIZES = [_size_of(chunk_bytes) for chunk_bytes in range(_SIZES_MAX)]


class Answer(Protocol):
    """Who takes in an answer. Called synchronously from the socket's callback."""

    def head(self, head: AnswerHead, length_bytes: int | None) -> None:
        """The head. `length_bytes`: of this body, None where its end is told otherwise. (A known head was read with another's.)"""

    def whole(self, head: AnswerHead, body: bytes) -> None:
        """All of an answer at once: as `head`, `data` if there is a body, and `end`."""

    def data(self, piece: bytes) -> None:
        """A piece of the body, as it came out of one read."""

    def chunk(self, chunk: bytes, start: int) -> None:
        """One read that is one whole chunk and no more, fit to go on as it came. The piece of the body in it: `chunk[start:-2]`."""

    def end(self) -> None:
        """The answer is complete; the connection is no longer ours."""

    def lost(self, fault: BackendFault) -> None:
        """The answer will never be complete; the connection is gone."""


class BackendConnection(asyncio.Protocol):
    """One connection to a backend."""

    __slots__ = (
        "_after_chunks",
        "_answer",
        "_between",
        "_ended",
        "_fields",
        "_first",
        "_head",
        "_head_bytes",
        "_informational",
        "_old",
        "_parser",
        "_paused",
        "_pieces",
        "_to_close",
        "_unread",
        "_untouched",
        "idle_until",
        "kept",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(self, kept: KeptConnections) -> None:
        self.kept = kept
        self.idle_until = 0.0
        self._parser: Any = httptools.HttpResponseParser(self)
        self._answer: Answer | None = None
        self._old = False  # has answered before
        self._untouched = True  # no byte of the present answer has come
        self._unread = False  # the backend closed before it can have read the request
        self._fields: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0  # fed while the head is not complete
        self._head: AnswerHead | None = None  # once it is complete
        self._first = b""  # the first read of the present answer, from which its head may be learnt
        self._between = False  # the parser stands between two chunks, and nothing of the next has come
        self._after_chunks = False  # its latest answer came in chunks
        self._informational = 0
        self._pieces: list[bytes] = []
        self._ended = False
        self._to_close = False  # this answer is the connection's last
        self._paused = False

    def send(self, answer: Answer, head: bytes, body: bytes) -> None:
        """Send a request; what comes of it goes to `answer`."""
        self._answer = answer
        self._untouched = True
        self._between = False
        self.kept.outbox.send(self, head, body)

    def transmit(self, head: bytes, body: bytes) -> None:
        """Write the request, at its turn in the outbox."""
        if self.transport.is_closing():
            self._unread = True  # nothing of it was sent
        elif len(body) < 16384:
            self.transport.write(head + body)
        else:
            self.transport.writelines((head, body))

    def hand_over(self, answer: Answer) -> None:
        """From now on what comes goes to `answer`."""
        self._answer = answer

    def abandon(self) -> None:
        """The answer is no longer wanted: close at once, so that the backend stops."""
        self._answer = None
        self.transport.abort()

    def pause(self) -> None:
        """The caller does not read: nor do we."""
        if not self._paused and not self.transport.is_closing():
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """The caller reads again."""
        if self._paused and not self.transport.is_closing():
            self._paused = False
            self.transport.resume_reading()

    # --- asyncio's side -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None:  # bytes that nobody asked for
            self.transport.abort()
            return
        if self._between and (read_bytes := len(data)) < _SIZES_MAX:
            size, start = _SIZES[read_bytes]
            if data.startswith(size) and data.endswith(_CRLF):
                answer.chunk(data, start)  # the parser need not see it
                return
        if self._untouched:
            self._untouched = False
            known = self.kept.known
            if known is not None and (body := known.whole(data)) is not None:  # whose head came before: it is taken as read
                self._answer = None
                self._old = True
                self._after_chunks = self._to_close = False
                self.kept.put(self)
                answer.whole(known.head, body)
                return
            self._first = data if len(data) <= KNOWN_BYTES else b""
        broken = False
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            broken = True
        self._between = self._between and data.endswith(_CRLF)  # else the next chunk's size has begun
        pieces = self._pieces
        if pieces:  # what came before the break is good
            piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            answer.data(piece)
        if self._ended:
            self._to_close = self._to_close or broken  # whole, with something behind it
            self._finish(answer)
        elif self._head is None:
            self._head_bytes += len(data)
            broken = broken or self._head_bytes > HEAD_BYTES
        if broken and self._answer is not None:
            self._fail(BackendFault.PROTOCOL)

    def eof_received(self) -> bool:
        # An end acknowledges what came before it. So if something is still unacknowledged then, the request was not complete when the
        # backend closed, and nobody can have acted on it. A reset proves nothing: acknowledgements are delayed, and it may overtake one.
        # What is still in the outbox then is not sent any more, which `transmit` notes.
        self._unread = self._answer is not None and self._untouched and unacknowledged_bytes(self.transport) > 0
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.kept.forget(self)
        answer, self._answer = self._answer, None
        unread = self._unread or isinstance(exc, BrokenPipeError)  # it had closed, and what we still wrote found nobody
        self._parser = None
        if self._after_chunks and (answer is None or self._untouched) and self.kept.since(self) < AT_ONCE_S:
            self.kept.note_end_after_chunks()
            unread = True
        if answer is None:
            return
        head = self._head
        if head is not None and head.content_length is None and not head.chunked and exc is None:
            answer.end()  # its end is told by closing
        else:
            answer.lost(BackendFault.STALE if self._old and self._untouched and unread else BackendFault.RESET)

    # --- parsing --------------------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head is not None:
            if self._ended:
                raise _Excess
            return  # a trailer: dropped
        self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        if self._ended:
            raise _Excess
        status = self._parser.get_status_code()
        fields, self._fields = self._fields, []
        if status < 200:
            self._informational += 1
            if status == 101 or self._informational > INFORMATIONAL:
                raise _Excess
            return
        head = AnswerHead.read(status, fields)
        if head is None or status > 599 or len(fields) > HEAD_FIELDS or self._parser.should_upgrade():
            raise _Excess
        self._head = head
        if head.content_length is None:
            self._first = b""
        if self._answer is not None:
            self._answer.head(head, head.content_length)

    def on_body(self, piece: bytes) -> None:
        self._pieces.append(piece)

    def on_chunk_header(self) -> None:
        self._between = False

    def on_chunk_complete(self) -> None:
        self._between = True

    def on_message_complete(self) -> None:
        if self._head is not None:  # else it was a 1xx
            self._ended = True
            self._to_close = not self._parser.should_keep_alive()

    def on_message_begin(self) -> None:
        if self._ended:
            self._to_close = True  # excess bytes behind the answer: never to be taken for the next one

    def _finish(self, answer: Answer) -> None:
        self._answer = None
        self._old = True
        head = self._head
        self._after_chunks = head is not None and head.chunked
        if head is not None:
            if not self._to_close and head.status == 200 and head.content_length is not None:
                self.kept.known = KnownHead.learn(self._first, head) or self.kept.known
            self._head, self._first = None, b""
            self._to_close = self._to_close or (head.chunked and self.kept.ends_after_chunks)
        self._ended = self._between = False
        self._informational = self._head_bytes = 0
        self.resume()
        if self._to_close:
            self.transport.close()
        else:
            self.kept.put(self)
        answer.end()

    def _fail(self, fault: BackendFault) -> None:
        answer, self._answer = self._answer, None
        self.transport.abort()
        if answer is not None:
            answer.lost(fault)


class KeptConnections:
    """The connections to one backend: the one used last is taken first."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None, loop: asyncio.AbstractEventLoop, outbox: Outbox) -> None:
        self.outbox = outbox
        self._host = host
        self._port = port
        self._tls = tls
        self._loop = loop
        self._idle: deque[BackendConnection] = deque()  # the oldest first
        self._closed = False
        self.known: KnownHead[AnswerHead] | None = None  # how its latest answer began
        self.ends_after_chunks_until = 0.0
        self.deadline_at = NEVER  # of the oldest idle one

    def take(self) -> BackendConnection | None:
        """An idle connection that should still be open, or None."""
        idle = self._idle
        at = self._loop.time()
        while idle:
            connection = idle.pop()
            if connection.idle_until > at and not connection.transport.is_closing():
                return connection
            connection.transport.close()
        return None

    async def connect(self, within_s: float) -> BackendConnection:
        """A new connection, TLS included. Raises ConnectFailed."""
        name = self._host if self._tls else None
        try:
            async with asyncio.timeout(within_s):
                _, connection = await self._loop.create_connection(self._new, self._host, self._port, ssl=self._tls, server_hostname=name)
        except ConnectionRefusedError as error:
            raise ConnectFailed(BackendFault.REFUSED) from error
        except TimeoutError as error:
            raise ConnectFailed(BackendFault.CONNECT_TIMEOUT) from error
        except (OSError, ssl.SSLError) as error:
            raise ConnectFailed(BackendFault.UNREACHABLE, str(error)) from error
        return connection

    def _new(self) -> BackendConnection:
        return BackendConnection(self)

    def put(self, connection: BackendConnection) -> None:
        """It is free again."""
        if self._closed or connection.transport.is_closing():
            connection.transport.close()
            return
        connection.idle_until = self._loop.time() + KEEP_S
        self._idle.append(connection)
        if self.deadline_at == NEVER:
            self.deadline_at = connection.idle_until

    def since(self, connection: BackendConnection) -> float:
        """Seconds since its latest answer ended."""
        return self._loop.time() - (connection.idle_until - KEEP_S)

    @property
    def ends_after_chunks(self) -> bool:
        """Does it close after each stream and not say so (llama.cpp)? Then no connection is used again after one."""
        return self._loop.time() < self.ends_after_chunks_until

    def note_end_after_chunks(self) -> None:
        """It did. Not for good: it may have been a backend that died at that moment."""
        self.ends_after_chunks_until = self._loop.time() + ENDS_AFTER_CHUNKS_S

    def forget(self, connection: BackendConnection) -> None:
        """It has closed."""
        if connection.idle_until:
            try:
                self._idle.remove(connection)
            except ValueError:
                pass

    def overdue(self, at: float) -> None:
        """Close what has been idle for too long."""
        idle = self._idle
        while idle and idle[0].idle_until <= at:
            idle.popleft().transport.close()
        self.deadline_at = idle[0].idle_until if idle else NEVER

    def close(self) -> None:
        """Close the idle ones; those at work close when their answer ends."""
        self._closed = True
        for connection in self._idle:
            connection.transport.close()
        self._idle.clear()


class _Excess(Exception):
    """Not the bytes of an answer."""
