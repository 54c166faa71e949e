"""What passes between the front door and what stands behind it? One request, the way back to its caller, and who is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from proxy.http1.faults import CallerFault
from proxy.http1.framing import Head


@dataclass(frozen=True, slots=True)
class Limits:
    """What a caller may send, and how slowly. Defaults: docs/behaviour.md."""

    target_bytes: int = 8 * 1024
    field_bytes: int = 8 * 1024
    fields: int = 100
    head_bytes: int = 32 * 1024
    body_bytes: int = 64 * 1024 * 1024
    read_ahead_bytes: int = 64 * 1024
    write_buffer_bytes: int = 64 * 1024
    head_s: float = 10.0  # first byte to end of head; never reset
    body_idle_s: float = 10.0
    body_s: float = 120.0
    keep_alive_s: float = 75.0
    write_stall_s: float = 30.0  # nothing read of what we hold for it
    write_slow_bps: int = 64  # less than this many bytes a second ...
    write_slow_s: float = 60.0  # ... for this long
    linger_s: float = 1.0
    connections: int = 1_000_000  # of all callers
    connections_per_address: int | None = None


class Service(Protocol):
    """What stands behind the door. Called synchronously, in this order, for each request."""

    def admit(self, exchange: Exchange) -> bool:
        """The head is complete. False: it has been answered, and the body is not wanted."""

    def begin(self, exchange: Exchange) -> None:
        """The request is complete."""

    def refuse(self, exchange: Exchange, fault: CallerFault) -> None:
        """The request was broken on the wire: answer it. The connection closes afterwards."""


class Valve(Protocol):
    """What feeds an exchange: stopped while the caller does not read, shut when it is gone."""

    def stop(self) -> None: ...
    def flow(self) -> None: ...
    def shut(self) -> None: ...


class Cancellable(Protocol):
    """What is being done for an exchange."""

    def cancel(self) -> object: ...


class Line(Protocol):
    """The connection of an exchange."""

    transport: asyncio.Transport
    write: Callable[[bytes], None]
    current: Exchange | None
    peer: str

    @property
    def reading(self) -> Exchange | None: ...
    def ended(self, exchange: Exchange) -> None: ...
    def abort(self) -> None: ...


class Exchange:
    """One request of a caller, and the way back to it. It ends with `respond` or `end`, or the caller leaves."""

    __slots__ = ("body", "connection", "context", "head", "keep_alive", "stalled", "started", "task", "valve", "write")

    def __init__(self, connection: Line, head: Head, body: bytes = b"") -> None:
        self.connection = connection
        self.head = head
        self.body = body  # once it is complete
        self.keep_alive = head.keep_alive
        self.context: Any = None  # what the service hangs on it
        self.task: Cancellable | None = None  # cancelled when the caller leaves
        self.valve: Valve | None = None
        self.started = False  # bytes of an answer have gone out
        self.stalled = False  # the caller stopped reading, and was given up
        self.write: Callable[[bytes], None] = connection.write

    @property
    def peer(self) -> str:
        """The caller's address, as the socket has it."""
        return self.connection.peer

    @property
    def body_read(self) -> bool:
        """Has the request come to its end? Else what follows it on the connection is not the next one."""
        return self.connection.reading is not self

    @property
    def caller_present(self) -> bool:
        """Is somebody still there to answer?"""
        return self.connection.current is self and not self.connection.transport.is_closing()

    def respond(self, answer: bytes) -> None:
        """Send a whole answer, and be done."""
        self.started = True
        self.write(answer)
        self.connection.ended(self)

    def start(self, head_and_first: bytes) -> None:
        """Send the head of an answer, with what there is of its body."""
        self.started = True
        self.write(head_and_first)

    def end(self, last: bytes = b"") -> None:
        """The answer is complete."""
        if last:
            self.write(last)
        self.connection.ended(self)

    def cut(self, last: bytes = b"") -> None:
        """The answer is broken: send `last` and close, so that no one takes it for whole."""
        self.keep_alive = False
        if last:
            self.write(last)
        self.connection.ended(self)

    def abort(self) -> None:
        """Close now; what the caller has not taken is lost."""
        self.leave()
        self.connection.abort()

    def leave(self) -> None:
        """Nobody is there any more: what is still written goes nowhere. (uvloop's transports raise once they are closed.)"""
        self.write = nowhere
        if self.valve is not None:
            self.valve.shut()


def nowhere(_: bytes) -> None:
    """What is written here is not wanted any more."""
