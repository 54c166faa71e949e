"""How does a caller speak to us? One connection: heads and bodies in, bounded and on time; answers out.

llhttp parses in strict mode; `framing` checks again what smuggling lives on. One request is in progress at a time; what
a caller pipelines behind it waits unparsed, and reading stops beyond `Limits.read_ahead_bytes`. Closing, even only for
sending, is leaving: a caller that half-closes cannot be told from one that has gone.
"""

from __future__ import annotations

import asyncio
import enum
from collections import Counter
from collections.abc import Callable
from typing import Any, NoReturn

import httptools

from proxy.http1.exchange import Exchange, Limits, Service
from proxy.http1.faults import CallerFault
from proxy.http1.framing import Head, MalformedHead, head_of
from proxy.http1.known_head import KnownHead
from proxy.http1.outbox import Outbox
from proxy.http1.unacknowledged import unacknowledged_bytes

NEVER = float("inf")
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_SLICE_BYTES = 64 * 1024


class Phase(enum.Enum):
    """Where a connection stands."""

    IDLE = "idle"  # between requests
    HEAD = "head"
    BODY = "body"
    BUSY = "busy"  # a request is being answered
    LINGER = "linger"  # answered and shut for writing; reading off what the caller still sends
    CLOSED = "closed"


IDLE, HEAD, BODY, BUSY, LINGER, CLOSED = Phase  # looked up once: an enum's members are slow to reach


class Door:
    """What all connections of a listener share."""

    def __init__(self, service: Service, limits: Limits, loop: asyncio.AbstractEventLoop, deadlines: Any, outbox: Outbox) -> None:
        self.service = service
        self.limits = limits
        self.loop = loop
        self.deadlines = deadlines
        self.outbox = outbox
        self.connections: set[Connection] = set()
        self.addresses: Counter[str] = Counter()  # connections by the caller's address
        self.draining = False

    def connection(self) -> Connection:
        """A protocol for a caller who has just connected."""
        return Connection(self)

    def has_room(self, address: str) -> bool:
        """May one more connection from there come in? So that callers who only hold connections cannot use up the descriptors."""
        most = self.limits.connections_per_address
        return len(self.connections) < self.limits.connections and (most is None or self.addresses[address] < most)

    def drain(self) -> None:
        """From now on each answer closes its connection; idle ones close at once."""
        self.draining = True
        for connection in list(self.connections):
            connection.drain()

    def abort(self) -> None:
        """Close everything, whatever is going on."""
        for connection in list(self.connections):
            if connection.current is not None:
                connection.current.leave()
            connection.abort()


class Connection(asyncio.Protocol):
    """One caller's connection."""

    __slots__ = (
        "_advancing",
        "_alone",
        "_body_by_at",
        "_body_bytes",
        "_broken",
        "_complete",
        "_fault",
        "_fields",
        "_first",
        "_held",
        "_held_bytes",
        "_in_head",
        "_incoming",
        "_known",
        "_own_body_left",
        "_parser",
        "_pieces",
        "_reading_paused",
        "_stalls",
        "_target",
        "_unparsed_head_bytes",
        "_unsent_bytes",
        "_upgrade",
        "_waiting",
        "_writing_paused",
        "current",
        "deadline_at",
        "door",
        "limits",
        "peer",
        "phase",
        "transport",
        "write",
    )

    transport: asyncio.Transport
    write: Callable[[bytes], None]  # at the end of the turn, with what else leaves then

    def __init__(self, door: Door) -> None:
        self.door = door
        self.limits = door.limits
        self.phase = IDLE
        self.deadline_at = NEVER
        self.current: Exchange | None = None  # admitted: its body is arriving, or it is being answered
        self.peer = ""
        self._parser: Any = None  # while there is something to parse
        self._incoming: Exchange | None = None  # head parsed, body not complete; `current`, or behind it
        self._waiting: list[Exchange] = []  # complete, out of the same read as `current`, behind it
        self._broken: CallerFault | None = None  # what comes behind `current` is no request
        self._held: list[bytes] = []  # read ahead, unparsed
        self._held_bytes = 0
        self._reading_paused = False
        self._complete = False  # the body of `current` has just come to its end
        self._advancing = False
        self._alone = False  # certainly nothing stands behind `current`, and its caller reads
        self._fault: CallerFault | None = None  # why a callback left the parser
        self._in_head = False
        self._known: KnownHead[Head] | None = None  # the head of the request before
        self._first = b""  # the read in which the present request began, while its head may be learnt from it
        self._target = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._unparsed_head_bytes = 0
        self._pieces: list[bytes] = []
        self._body_bytes = 0
        self._body_by_at = NEVER
        self._upgrade = False
        self._own_body_left = 0  # behind an ignored upgrade llhttp reads no body: we do
        self._writing_paused = False  # the caller does not read: nothing more is answered until it does
        self._unsent_bytes = 0
        self._stalls = 0  # how often in a row it has read next to nothing between two looks

    # --- asyncio's side -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.write = self.door.outbox.writer(self.transport)
        self.transport.set_write_buffer_limits(high=self.limits.write_buffer_bytes)
        peer = transport.get_extra_info("peername")
        self.peer = peer[0] if isinstance(peer, tuple) else ""
        if not self.door.has_room(self.peer):
            self.phase = CLOSED
            self.transport.abort()
            return
        self.door.connections.add(self)
        self.door.addresses[self.peer] += 1
        self.door.deadlines.watch(self)
        self.deadline_at = self.door.loop.time() + self.limits.head_s

    def data_received(self, data: bytes) -> None:
        phase = self.phase
        if phase is BUSY:
            self._hold(data)
        elif phase is IDLE and self._known is not None and self._take_known(self._known, data):
            return
        elif phase is not LINGER and phase is not CLOSED:
            self._feed(data)

    def eof_received(self) -> bool:
        self._left()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.phase = CLOSED
        if self in self.door.connections:
            self.door.connections.discard(self)
            self.door.addresses[self.peer] -= 1
            if not self.door.addresses[self.peer]:
                del self.door.addresses[self.peer]
        self.door.deadlines.forget(self)
        self._parser = None
        self._held.clear()
        self._left()

    def pause_writing(self) -> None:
        self._writing_paused = True
        self._alone = False
        self._await_reader()
        if self.current is not None and self.current.valve is not None:
            self.current.valve.stop()

    def resume_writing(self) -> None:
        self._writing_paused = False
        if self.phase is not BUSY:
            return
        self.deadline_at = NEVER
        if self.current is None:  # what stands behind was not taken up while nobody read
            self._advance()
        elif self.current.valve is not None:
            self.current.valve.flow()

    def overdue(self, at: float) -> None:
        """The deadline of this phase has passed."""
        if self.phase is HEAD or self.phase is BODY:
            self._refuse(CallerFault.SLOW)
            return
        if self.phase is IDLE or self.phase is LINGER:
            self._close()
            return
        limits, unsent_bytes = self.limits, self._untaken_bytes()
        read_bytes = self._unsent_bytes - unsent_bytes
        self._stalls = self._stalls + 1 if read_bytes < limits.write_slow_bps * limits.write_stall_s else 0
        if read_bytes > 0 and self._stalls * limits.write_stall_s < limits.write_slow_s:  # it reads, slowly
            self._unsent_bytes = unsent_bytes
            self.deadline_at = at + limits.write_stall_s
            return
        if self.current is not None:
            self.current.stalled = True
            self.current.leave()
        self.transport.abort()

    def _await_reader(self) -> None:
        """Bytes of ours wait for the caller to read: from now on it is looked at how fast it does."""
        self._unsent_bytes = self._untaken_bytes()
        self._stalls = 0
        self.deadline_at = self.door.loop.time() + self.limits.write_stall_s

    def _untaken_bytes(self) -> int:
        """What the caller has not taken yet: ours, and what the kernel holds. Its megabytes would hide for minutes who reads slowly."""
        return self.transport.get_write_buffer_size() + unacknowledged_bytes(self.transport)

    @property
    def reading(self) -> Exchange | None:
        """The request whose body is still arriving."""
        return self._incoming

    # --- parsing --------------------------------------------------------------------------------------------------

    def _feed(self, data: bytes) -> None:
        """Parse, a slice at a time, until a request is in progress; hold what is behind it."""
        if len(data) <= _SLICE_BYTES:
            self._feed_slice(data)
            return
        view = memoryview(data)
        for start in range(0, len(data), _SLICE_BYTES):
            if self.phase is BUSY:
                self._hold(bytes(view[start:]))
                return
            if self.phase is LINGER or self.phase is CLOSED:
                return
            self._feed_slice(view[start : start + _SLICE_BYTES])

    def _take_known(self, known: KnownHead[Head], data: bytes) -> bool:
        """Is this the head that came before, with a body of some length? Then it is taken as read. False: it must be read."""
        body = known.whole(data)
        if body is None:
            return self._take_begun(known, data)
        if len(body) > self.limits.body_bytes:
            return False
        known.head.content_length = len(body)
        self.current = exchange = Exchange(self, known.head, body)
        exchange.context = known.context
        if self.door.draining:
            exchange.keep_alive = False
        self._alone = not self._writing_paused
        if self.door.service.admit(exchange):
            self._begin(exchange)
        return True

    def _take_begun(self, known: KnownHead[Head], data: bytes) -> bool:
        """The same for a body of which more is to come."""
        begun = known.begun(data)
        if begun is None:
            return False
        length, body = begun
        if len(body) > length or length > self.limits.body_bytes:
            return False
        known.head.content_length = length
        self._incoming = exchange = Exchange(self, known.head)
        exchange.context = known.context
        if self.door.draining:
            exchange.keep_alive = False
        if self._await_body(exchange):
            self._own_body_left = length
            self._read_own_body(body)
        return True

    def _learn(self, first: bytes, exchange: Exchange) -> None:
        head = exchange.head
        if not head.expects_continue and b"upgrade" not in head.named:
            self._known = KnownHead.learn(first, head, exchange.context) or self._known
        self._first = b""

    def _feed_slice(self, data: bytes | memoryview) -> None:
        if self.phase is IDLE:
            self.phase = HEAD
            self.deadline_at = self.door.loop.time() + self.limits.head_s
            self._in_head = True
            self._first = bytes(data)
        elif self.phase is BODY:
            self.deadline_at = min(self.door.loop.time() + self.limits.body_idle_s, self._body_by_at)
        rest: bytes = b""
        try:
            if self._own_body_left:
                rest = self._read_own_body(data)
            else:
                if self._in_head:
                    self._unparsed_head_bytes += len(data)
                if self._parser is None:
                    self._parser = httptools.HttpRequestParser(self)
                self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = self._ignore_upgrade(bytes(data[upgrade.args[0] :]))
        except (httptools.HttpParserError, _Stopped):
            self._refuse(self._fault or CallerFault.MALFORMED)
        if self._complete:
            self._complete = False
            assert self.current is not None
            if not self._in_head and self._incoming is None:
                self._parser = None  # nothing stands behind: a stream need not hold it, nor the circle of its callbacks
            if self._first:
                self._learn(self._first, self.current)
            self._begin(self.current)
        elif self._in_head and self._unparsed_head_bytes > self.limits.head_bytes:
            self._refuse(CallerFault.HEAD_TOO_LARGE)  # counted as it arrives: nothing can make us keep more
        if rest:
            self.data_received(rest)

    def _ignore_upgrade(self, rest: bytes) -> bytes:
        """Upgrades are not done (RFC 9110 7.8 lets a server ignore them): the connection goes on as HTTP/1.1."""
        self._parser = httptools.HttpRequestParser(self)
        self._own_body_left = (self._incoming.head.content_length or 0) if self._incoming is not None else 0
        if self._own_body_left:
            return self._read_own_body(rest)
        self._end_of_body()
        return rest

    def _read_own_body(self, data: bytes | memoryview) -> bytes:
        piece = bytes(data[: self._own_body_left])
        self._own_body_left -= len(piece)
        if piece:
            self.on_body(piece)
        if not self._own_body_left:
            self._end_of_body()
        return bytes(data[len(piece) :])

    def on_message_begin(self) -> None:
        self._target = b""
        self._fields = []
        self._in_head = True

    def on_url(self, piece: bytes) -> None:
        self._target += piece
        if len(self._target) > self.limits.target_bytes:
            self._stop(CallerFault.TARGET_TOO_LONG)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # a trailer: dropped
        self._fields.append((name.lower(), value))  # bounded by the slice they come in, and counted when the head is complete

    def on_headers_complete(self) -> None:
        self._in_head = False
        fed_bytes, self._unparsed_head_bytes = self._unparsed_head_bytes or _SLICE_BYTES, 0  # 0: it came behind another
        parser = self._parser
        try:
            head = head_of(parser.get_method(), self._target, parser.get_http_version(), self._fields, self.limits, fed_bytes)
        except MalformedHead as malformed:
            self._stop(malformed.fault)
        self._upgrade = parser.should_upgrade()
        if self._upgrade and head.chunked:
            self._stop(CallerFault.UPGRADE)
        exchange = self._incoming = Exchange(self, head)
        if self.door.draining:
            exchange.keep_alive = False
        if head.content_length is not None and head.content_length > self.limits.body_bytes:
            self._stop(CallerFault.BODY_TOO_LARGE)
        if self.current is None and not self._await_body(exchange):
            self._stop(None)

    def on_body(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._body_bytes += len(piece)
        if self._body_bytes > self.limits.body_bytes:
            self._stop(CallerFault.BODY_TOO_LARGE)

    def on_message_complete(self) -> None:
        if not self._upgrade:
            self._end_of_body()

    def _end_of_body(self) -> None:
        exchange, self._incoming = self._incoming, None
        self._upgrade = False
        if exchange is None:
            return
        pieces = self._pieces
        if pieces:
            exchange.body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            self._pieces = []
            self._body_bytes = 0
        if exchange is self.current:
            self._complete = True  # taken up when the parser has returned: it must not be entered twice
        else:
            self._waiting.append(exchange)

    def _stop(self, fault: CallerFault | None) -> NoReturn:
        """Leave the parser, out of one of its callbacks."""
        self._fault = fault
        raise _Stopped

    # --- the turn of one request ----------------------------------------------------------------------------------

    def _await_body(self, exchange: Exchange) -> bool:
        """Its turn: ask whether it is wanted, and let its body come. False: it has been answered."""
        self.current = exchange
        self.phase = BODY
        at = self.door.loop.time()
        self._body_by_at = at + self.limits.body_s
        self.deadline_at = at + self.limits.body_idle_s
        if not self.door.service.admit(exchange):
            return False
        if exchange.head.expects_continue and not self._pieces:
            self.write(_CONTINUE)
        return True

    def _begin(self, exchange: Exchange) -> None:
        self.phase = BUSY
        self.deadline_at = NEVER
        self.door.service.begin(exchange)

    def _refuse(self, fault: CallerFault) -> None:
        """Tell the caller what was wrong with its bytes, and close. What has been answered already only closes."""
        if self.phase is LINGER or self.phase is CLOSED:
            return
        exchange = self._incoming
        if self.current is not None and self.current is not exchange:
            self._broken = fault  # behind another, which is answered first
            return
        if exchange is None:
            exchange = Exchange(self, Head.unknown(self._target))
        self.current = self._incoming = exchange
        exchange.keep_alive = False
        self.door.service.refuse(exchange, fault)

    def ended(self, exchange: Exchange) -> None:
        """The answer of `exchange` is written: the next request's turn, or the end of the connection."""
        if self.current is not exchange:
            return
        self.current = None
        exchange.valve = None
        if not exchange.keep_alive or self._incoming is exchange:  # or its body is unread: what follows is not a request
            self._linger()
        elif self._alone:
            self._rest()
        elif self._advancing:
            return
        elif self._held or self._waiting or self._in_head or self._broken or self._incoming or self._writing_paused or self.door.draining:
            self._advance()
        else:
            self._rest()

    def _rest(self) -> None:
        """Nothing stands behind: what `_advance` would come to."""
        self._alone = False  # until the next one is known to be
        self.phase = IDLE
        self.deadline_at = self.door.loop.time() + self.limits.keep_alive_s

    def _advance(self) -> None:
        """Take up what stands behind, in order. A loop, not a recursion: a thousand may be answered at once."""
        self._advancing = True
        while self.current is None and self.phase is not LINGER and self.phase is not CLOSED:
            self.door.outbox.flush()  # only what is written can show that the caller does not read
            if self._writing_paused:  # answers may not pile up: the phase stays as it is, and what comes is held
                break
            if self._waiting:
                self.current = exchange = self._waiting.pop(0)
                if self.door.service.admit(exchange):
                    self._begin(exchange)
                continue
            if self._broken is not None:
                self._refuse(self._broken)
                break
            if self._incoming is not None:
                if not self._await_body(self._incoming):
                    break
            else:
                self.phase = HEAD if self._in_head else IDLE
                self.deadline_at = self.door.loop.time() + (self.limits.head_s if self._in_head else self.limits.keep_alive_s)
                if self.door.draining and not self._in_head and not self._held:
                    self._close()
            held, self._held, self._held_bytes = self._held, [], 0
            if not held:
                break
            self._feed(b"".join(held))
        self._advancing = False
        if self._reading_paused and not self._writing_paused and self._held_bytes <= self.limits.read_ahead_bytes:
            self._reading_paused = False
            self.transport.resume_reading()

    def _hold(self, data: bytes) -> None:
        self._alone = False
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > self.limits.read_ahead_bytes and not self._reading_paused:
            self._reading_paused = True
            self.transport.pause_reading()

    # --- endings --------------------------------------------------------------------------------------------------

    def _left(self) -> None:
        exchange, self.current = self.current, None
        self._incoming = None
        self._waiting.clear()
        if exchange is not None:
            exchange.leave()
            if exchange.task is not None:
                exchange.task.cancel()

    def _linger(self) -> None:
        """Shut for writing and read off the rest, so that the answer is not lost to a reset; then close."""
        self._incoming = None
        self._waiting.clear()
        self._held.clear()
        self.phase = LINGER
        self.deadline_at = self.door.loop.time() + self.limits.linger_s
        if self.transport.is_closing():
            return
        self.door.outbox.flush()
        if self._reading_paused:
            self._reading_paused = False
            self.transport.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self._close()

    def drain(self) -> None:
        """Close when the present answer is written. Between requests there is nothing to lose: then at once."""
        self._alone = False
        if self.phase is IDLE:
            self._close()

    def abort(self) -> None:
        """Close at once; what has been written leaves before."""
        self.door.outbox.flush()
        self.transport.abort()

    def _close(self) -> None:
        self.phase = CLOSED
        self.door.outbox.flush()
        self._await_reader()  # what is still to be sent goes out first
        self.transport.close()


class _Stopped(Exception):
    """Parsing ends here: the connection has made up its mind."""
