"""What does one backend make of this request? The corridor: connect, send, and wait for the first token.

Until then nothing has reached the caller: the answer's head, role-only chunks and comments are held here, and any
failure can still be made good elsewhere. An answer that is not streamed is held until its head.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from policies.model import Ending, Outcome, Verdict
from proxy import clock
from proxy.http1.answer_head import AnswerHead
from proxy.http1.client import BackendConnection
from proxy.http1.faults import BackendFault, ConnectFailed
from proxy.sse import StreamWatcher

if TYPE_CHECKING:
    from proxy.edition import Backend

HELD_BYTES = 64 * 1024
_FAILED_STATUS = frozenset([500, 502, 503, 504])
_BUSY_STATUS = frozenset([429, 529])
_REFUSES_US = frozenset([401, 402, 403])
_QUEUE_FULL_WORDS = (b"queue full", b"queue is full", b"queue_full", b"overloaded", b"too many requests", b"capacity")

_FAULTS = {
    BackendFault.REFUSED: Ending(Verdict.FAILED, Outcome.UPSTREAM_CONNECT, maybe_starting=True, why="refused"),
    BackendFault.UNREACHABLE: Ending(Verdict.FAILED, Outcome.UPSTREAM_CONNECT, why="unreachable"),
    BackendFault.CONNECT_TIMEOUT: Ending(Verdict.FAILED, Outcome.UPSTREAM_CONNECT, why="connect timeout"),
    BackendFault.STALE: Ending(Verdict.FAILED, Outcome.UPSTREAM_RESET, why="reset"),
    BackendFault.RESET: Ending(Verdict.FAILED, Outcome.UPSTREAM_RESET, why="reset"),
    BackendFault.PROTOCOL: Ending(Verdict.FAILED, Outcome.UPSTREAM_PROTOCOL, why="protocol"),
}
_EMPTY = Ending(Verdict.FAILED, Outcome.UPSTREAM_PROTOCOL, why="empty answer")
_ERROR_EVENT = Ending(Verdict.FAILED, Outcome.UPSTREAM_PROTOCOL, why="error event")
_LATE_TOKEN = Ending(Verdict.FAILED, Outcome.FIRST_TOKEN_TIMEOUT, why="no first token")
_OUT_OF_TIME = Ending(Verdict.NEUTRAL, Outcome.TOTAL_TIMEOUT, why="total timeout")


class Attempt:
    """One try of a request at one backend. `first_token` is its story; afterwards `relay.Relay` takes the connection over."""

    __slots__ = (
        "_settled",
        "answer_head",
        "backend",
        "connect_s",
        "connection",
        "deadline_at",
        "ended",
        "fault",
        "held",
        "held_bytes",
        "length_bytes",
        "model",
        "model_is_ours",
        "sent_at",
        "status",
        "token_at",
        "total_at",
        "watcher",
        "watching",
    )

    def __init__(
        self,
        backend: Backend,
        watcher: StreamWatcher | None,
        *,
        first_token_at: float,
        total_at: float,
        model: str | None,
        model_is_ours: bool,
    ) -> None:
        self.backend = backend
        self.watcher = watcher  # of a generation that asked for a stream; None: held until the head only
        self.watching = False  # what comes is an event stream that can be read
        self.model = model  # the name it is asked under
        self.model_is_ours = model_is_ours  # the file, not the caller, chose the model's name
        self.connection: BackendConnection | None = None
        self.status = 0
        self.answer_head: AnswerHead | None = None
        self.length_bytes: int | None = None
        self.held: list[bytes] = []
        self.held_bytes = 0
        self.ended = False
        self.fault: BackendFault | None = None  # lost after it settled
        self.connect_s = 0.0
        self.sent_at = 0.0
        self.token_at = 0.0
        self.deadline_at = min(first_token_at, total_at)
        self.total_at = total_at
        self._settled: asyncio.Future[Ending | None] | None = None

    async def first_token(self, head: bytes, body: bytes, connect_timeout_s: float) -> Ending | None:
        """Send the request. None: there is something to relay; else how it failed. Cancelled: call `abandon`."""
        kept = self.backend.connections
        connection = kept.take()
        while True:
            if connection is None:
                began_at = clock.now()
                try:
                    connection = await kept.connect(min(connect_timeout_s, self.total_at - began_at))
                except ConnectFailed as failed:
                    return _FAULTS[failed.fault]
                self.connect_s = clock.now() - began_at
            self.connection = connection
            self._settled = self.backend.loop.create_future()
            self.token_at, self.fault = 0.0, None
            self.sent_at = clock.now()
            connection.send(self, head, body)
            ending = await self._settled
            if ending is not _FAULTS[BackendFault.STALE]:
                return ending
            connection = None  # a kept connection had closed meanwhile: a fresh one takes its place, and it is the same attempt

    async def wait_on(self, until_at: float) -> Ending | None:
        """After a first token that did not come in time: wait on for it, for the backend's sake. As `first_token`."""
        if self.watcher is not None and self.watcher.first_token:
            return None
        if self.connection is None:
            return _LATE_TOKEN
        self.token_at = 0.0
        self.total_at = clock.NEVER
        self.deadline_at = until_at
        self._settled = self.backend.loop.create_future()
        return await self._settled

    def abandon(self) -> None:
        """The answer is not wanted: the backend sees the connection close."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.abandon()

    # --- the answer, as it comes in -------------------------------------------------------------------------------

    def head(self, head: AnswerHead, length_bytes: int | None) -> None:
        self.answer_head = head
        self.status = head.status
        self.length_bytes = length_bytes
        if head.status >= 300:
            return
        if self.watcher is not None and head.streams:
            self.watching = not head.encoded
            return  # a stream whose encoding hides its tokens is released at its first byte
        self._settle(None)

    def whole(self, head: AnswerHead, body: bytes) -> None:
        if self.watcher is not None or head.status >= 300:
            self.head(head, len(body))
            if body:
                self.data(body)
            self.end()
            return
        self.answer_head = head
        self.status = head.status
        self.length_bytes = len(body)
        if body:
            self.held.append(body)
        self.ended = True
        self.connection = None
        self._settle(None)

    def chunk(self, chunk: bytes, start: int) -> None:
        self.data(chunk[start:-2])

    def data(self, piece: bytes) -> None:
        self.held.append(piece)
        self.held_bytes += len(piece)
        if self.token_at:  # the relay is about to take over
            if self.watching and self.watcher is not None:
                self.watcher.feed(piece)
        elif self.status >= 300:
            if self.held_bytes > HELD_BYTES:
                ending = self._judge_status()
                self._settle(None if ending.verdict is Verdict.NEUTRAL else ending)
        elif self.watching:
            watcher = self.watcher
            assert watcher is not None
            watcher.feed(piece)
            if watcher.first_token or self.held_bytes > HELD_BYTES:
                self._settle(None)
            elif watcher.error is not None:
                self._settle(_ERROR_EVENT)
        else:
            self._settle(None)

    def end(self) -> None:
        self.ended = True
        self.connection = None
        if self.token_at:
            return
        if self.status >= 300:
            self._settle(self._judge_status())
        elif (self.watching and self.watcher is not None and not self.watcher.whole) or (
            self.watcher is not None and not self.watching and not self.held
        ):
            self._settle(_EMPTY)
        else:
            self._settle(None)

    def lost(self, fault: BackendFault) -> None:
        self.fault = fault
        self.connection = None
        if not self.token_at:
            self._settle(_FAULTS[fault])

    def overdue(self, at: float) -> None:
        """Too late: the backend's fault, unless it is the whole request that has run out of time."""
        self.deadline_at = clock.NEVER
        self._settle(_OUT_OF_TIME if at >= self.total_at else _LATE_TOKEN)

    def _settle(self, ending: Ending | None) -> None:
        settled = self._settled
        if settled is None or settled.done():
            return
        self.token_at = clock.now()
        settled.set_result(ending)

    # --- what a status means --------------------------------------------------------------------------------------

    def _judge_status(self) -> Ending:
        status = self.status
        if status in _BUSY_STATUS:
            return Ending(Verdict.BUSY, Outcome.UPSTREAM_STATUS, self._retry_after_s(), why=f"status {status}")
        if status in _FAILED_STATUS:
            retry_after_s = self._retry_after_s() if status == 503 else None
            if status == 503 and (retry_after_s is not None or self._says_queue_full()):
                return Ending(Verdict.BUSY, Outcome.UPSTREAM_STATUS, retry_after_s, why="status 503")
            return Ending(Verdict.FAILED, Outcome.UPSTREAM_STATUS, maybe_starting=status == 503, why=f"status {status}")
        if status in _REFUSES_US and self.backend.has_own_credential:
            return Ending(Verdict.REFUSES_US, Outcome.UPSTREAM_AUTH, why=f"status {status}")
        if status == 404 and self.model_is_ours and b"model" in b"".join(self.held):
            return Ending(Verdict.REFUSES_US, Outcome.UPSTREAM_AUTH, why="status 404")
        if status < 400:  # redirects are not followed: the caller has no business there
            return Ending(Verdict.FAILED, Outcome.UPSTREAM_PROTOCOL, why=f"status {status}")
        return Ending(Verdict.NEUTRAL, Outcome.UPSTREAM_STATUS, why=f"status {status}")

    def _retry_after_s(self) -> float | None:
        for name, value in self.answer_head.fields if self.answer_head is not None else ():
            if name.lower() == b"retry-after":
                try:
                    return max(0.0, float(value))
                except ValueError:
                    return None  # a date: rest as one that says nothing
        return None

    def _says_queue_full(self) -> bool:
        text = b"".join(self.held).lower()
        return any(word in text for word in _QUEUE_FULL_WORDS)
