"""What does the front door make of these bytes, cut like this? The real connection on a transport that is only memory.

Thousands of cuts a second: sockets would allow a few hundred. What the same bytes do on real sockets is `test_requests`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from proxy.clock import Deadlines
from proxy.http1.answer_head import AnswerHead
from proxy.http1.client import BackendConnection, KeptConnections
from proxy.http1.exchange import Exchange, Limits
from proxy.http1.faults import BackendFault, CallerFault
from proxy.http1.heads import response
from proxy.http1.outbox import Outbox
from proxy.http1.server import Door

_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


class Memory(asyncio.Transport):
    """A transport without a socket."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.over = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("192.0.2.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.written += data

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        for data in list_of_data:
            self.write(data)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.over = True

    def close(self) -> None:
        self.over = True

    def abort(self) -> None:
        self.over = True

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Verdict(NamedTuple):
    """What was let in, what was answered, and whether the connection is over."""

    begun: tuple[tuple[str, bytes, bytes], ...]  # method, target, body
    statuses: tuple[bytes, ...]
    over: bool


class _Everyone:
    """A service that lets everybody in and answers at once."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, bytes, bytes]] = []

    def admit(self, exchange: Exchange) -> bool:
        return True

    def begin(self, exchange: Exchange) -> None:
        self.begun.append((exchange.head.method, exchange.head.target, exchange.body))
        exchange.respond(response(200, [], b"", keep_alive=exchange.keep_alive))

    def refuse(self, exchange: Exchange, fault: CallerFault) -> None:
        exchange.respond(response(fault.status, [], b"", keep_alive=False))


class DoorInMemory:
    """A front door that takes bytes from the hand."""

    def __init__(self, limits: Limits | None = None) -> None:
        loop = asyncio.get_event_loop()
        self._everyone = _Everyone()
        self._door = Door(self._everyone, limits or Limits(), loop, Deadlines(loop), Outbox(loop))

    def verdict(self, pieces: Iterable[bytes]) -> Verdict:
        """One connection to which these pieces come, one read each."""
        self._everyone.begun = []
        transport = Memory()
        connection = self._door.connection()
        connection.connection_made(transport)
        for piece in pieces:
            if transport.over:
                break
            connection.data_received(piece)
            self._door.outbox.flush()  # each read a turn of its own
        connection.connection_lost(None)
        return Verdict(tuple(self._everyone.begun), tuple(_STATUS.findall(transport.written)), transport.over)


class Taken(NamedTuple):
    """What a backend's bytes were taken for."""

    status: int  # 0: no head came
    body: bytes
    end: str  # "whole", a fault, or "open"
    kept: bool  # the connection is fit for another request


class _Collector:
    def __init__(self) -> None:
        self.status, self.pieces, self.ended = 0, [b""], "open"

    def head(self, head: AnswerHead, length_bytes: int | None) -> None:
        self.status = head.status

    def whole(self, head: AnswerHead, body: bytes) -> None:
        self.head(head, len(body))
        if body:
            self.data(body)
        self.end()

    def chunk(self, chunk: bytes, start: int) -> None:
        self.data(chunk[start:-2])

    def data(self, piece: bytes) -> None:
        self.pieces.append(piece)

    def end(self) -> None:
        self.ended = "whole"

    def lost(self, fault: BackendFault) -> None:
        self.ended = fault.value


def taken(pieces: Iterable[bytes], *, fin: bool) -> Taken:
    """One connection to a backend, a request sent on it, and these pieces in answer; then its end, if it ends."""
    loop = asyncio.get_event_loop()
    kept = KeptConnections("192.0.2.1", 1, None, loop, Outbox(loop))
    connection, transport, answer = BackendConnection(kept), Memory(), _Collector()
    connection.connection_made(transport)
    connection.send(answer, b"GET / HTTP/1.1\r\n\r\n", b"")
    for piece in pieces:
        if transport.over:
            break
        connection.data_received(piece)
    over = transport.over
    if fin or over:
        connection.connection_lost(None)
    return Taken(answer.status, b"".join(answer.pieces), answer.ended, answer.ended == "whole" and not over and not fin)
