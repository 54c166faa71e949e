"""Do the caller's bytes arrive as the backend sent them? The window: from the first token to the end of the answer.

From here on bytes go from socket to socket in the protocol's callback: per chunk a search in bytes and a write. A broken
answer never looks whole: it ends in one error event, or is cut.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from policies.model import Outcome
from proxy import clock
from proxy.event_shape import NOTHING_KNOWN, KnownEvent
from proxy.http1.answer_head import AnswerHead
from proxy.http1.exchange import Exchange, nowhere
from proxy.http1.faults import BackendFault
from proxy.sse import StreamWatcher, UnaryWatcher, Usage

if TYPE_CHECKING:
    from proxy.attempt import Attempt

_LAST_CHUNK = b"0\r\n\r\n"
_DONE = re.compile(rb"data: ?\[DONE\]")
_now = clock.now
_OK = Outcome.OK  # looked up once: an enum's members are slow to reach
PROGRESS_S = 300.0  # so long may nothing but comments come; looked at ten times in it, never per chunk


class Relay:
    """One answer on its way to its caller. `outcome` says how it ended; `done` wakes the story when it does later."""

    continuable = False  # another backend may say the rest, should it break

    __slots__ = (
        "_attempt",
        "_connection",
        "_exchange",
        "_flowed_at",
        "_idle_s",
        "_itl",
        "_known_before",
        "_known_before_bytes",
        "_known_matches",
        "_progress_by_at",
        "_repeated",
        "_said",
        "_stopped",
        "_total_at",
        "_usage",
        "_watcher",
        "_write",
        "broken",
        "bytes_out",
        "chunked",
        "deadline_at",
        "done",
        "error_relayed",
        "last_at",
        "length_bytes",
        "outcome",
        "why",
    )

    def __init__(
        self,
        exchange: Exchange,
        attempt: Attempt,
        *,
        idle_s: float,
        total_at: float,
        itl: Callable[[float], None],
        usage: UnaryWatcher | None,
    ) -> None:
        self._exchange = exchange
        self._attempt = attempt
        self._connection = attempt.connection
        self._watcher: StreamWatcher | None = attempt.watcher if attempt.watching else None
        # A stream may be cut, continued, or end in an event of ours: whatever length its backend promised is none for the caller.
        self.length_bytes = None if self._watcher is not None else attempt.length_bytes
        self.chunked = self.length_bytes is None and exchange.head.version == "1.1"
        self._write = exchange.write
        self._idle_s = idle_s if self._watcher is not None else clock.NEVER
        self._total_at = total_at
        self._itl = itl
        self._usage = usage  # watches an answer that is not streamed
        self._know(NOTHING_KNOWN)
        self._repeated = 0  # chunks that repeated the known event
        self._stopped = False
        self._flowed_at = 0.0
        self.bytes_out = 0
        self.error_relayed = False
        self.last_at = attempt.token_at
        self.outcome: Outcome | None = None
        self.broken: Outcome | None = None  # how it broke, where another backend may yet say the rest; `outcome` is then open
        self.why = ""  # more than the outcome says, for the log
        self._said = 0  # events with a meaning, when it was last looked
        self._progress_by_at = self.last_at + PROGRESS_S
        self.done: asyncio.Future[None] | None = None
        self.deadline_at = min(self.last_at + self._idle_s, total_at, self._look_at(self.last_at))

    def start(self, head: bytes) -> None:
        """Send the answer's head (without its blank line) and what was held. `outcome` is set if that was all."""
        attempt, exchange = self._attempt, self._exchange
        held = attempt.held
        body = held[0] if len(held) == 1 else b"".join(held)
        attempt.held = []
        self.bytes_out = len(body)
        exchange.valve = self  # before the first write: it may be more than the caller takes
        if self._usage is not None:
            self._usage.feed(body)
        broken = self._watcher is not None and self._watcher.error is not None
        if broken:
            body = before_done(body)
        exchange.start(b"%b\r\n%b" % (head, self.framed(body)))
        if broken:
            self.error_relayed = True
            self._finish(Outcome.TRUNCATED)
        else:
            self._follow()

    def _follow(self) -> None:
        """What comes behind what was held: perhaps it has come already."""
        attempt = self._attempt
        if attempt.ended:
            self.end()
        elif attempt.fault is not None:
            self.lost(attempt.fault)
        elif self._connection is not None:
            self._connection.hand_over(self)

    # --- what the stream said ------------------------------------------------------------------------------------

    @property
    def usage(self) -> Usage | None:
        """The tokens as the backend counted them, if it did."""
        if self._watcher is not None:
            return self._watcher.usage
        return self._usage.usage if self._usage is not None else None

    @property
    def tokens(self) -> int:
        """Events with content so far: an estimate of output tokens."""
        return self._watcher.tokens + self._repeated if self._watcher is not None else 0

    @property
    def speaks_events(self) -> bool:
        """Can the caller be told of a failure in the stream itself?"""
        return self._watcher is not None

    @property
    def closing(self) -> bytes:
        """What ends an event left open, so that one of ours can follow."""
        return self._watcher.closing if self._watcher is not None else b""

    @property
    def sequence(self) -> int:
        """The number that an event of ours would have."""
        return self._watcher.sequence if self._watcher is not None else 0

    # --- the answer, as it comes in -------------------------------------------------------------------------------

    def head(self, head: AnswerHead, length_bytes: int | None) -> None:
        raise AssertionError("the head comes before the first token")

    def whole(self, head: AnswerHead, body: bytes) -> None:
        raise AssertionError("the head comes before the first token")

    def data(self, piece: bytes, chunk: bytes | None = None) -> None:
        watcher = self._watcher
        if watcher is not None:
            at = clock.now()
            self._itl(at - self.last_at)
            self.last_at = at
            watcher.feed(piece)
            if watcher.error is not None:
                self._end_in_error(piece)
                return
            self._know(watcher.known)
        elif self._usage is not None:
            self._usage.feed(piece)
        self.bytes_out += len(piece)
        if not self.chunked:
            self._write(piece)
        elif chunk is not None:
            self._write(chunk)
        else:
            self._write(b"%x\r\n%b\r\n" % (len(piece), piece))

    def chunk(self, chunk: bytes, start: int) -> None:
        stop = len(chunk) - 2
        if chunk.startswith(self._known_before, start) and self._known_matches(chunk, start + self._known_before_bytes, stop):
            at = _now()
            self._itl(at - self.last_at)
            self.last_at = at
            self._repeated += 1
            self.bytes_out += stop - start
            self._write(chunk)
        else:
            self.data(chunk[start:stop], chunk)

    def _know(self, known: KnownEvent | None) -> None:
        """From now on a chunk that repeats this event goes on as it came, with no further look."""
        self._known_before, self._known_before_bytes, self._known_matches = known if known is not None and self.chunked else NOTHING_KNOWN

    def end(self) -> None:
        self._gone()
        if self.outcome is not None or self.broken is not None:
            return
        if self._watcher is not None and not self._watcher.whole:
            self._finish(Outcome.TRUNCATED)
        else:
            self._complete()

    def lost(self, fault: BackendFault) -> None:
        self._gone()
        if self.outcome is not None or self.broken is not None:
            return
        if self._watcher is not None and self._watcher.done:  # all was said: only the framing is missing
            self._complete()
        else:
            self._finish(Outcome.TRUNCATED)

    def overdue(self, at: float) -> None:
        """Silence, or the end of the request's time. While the caller does not read, the backend cannot be blamed."""
        if at >= self._total_at:
            self._finish(Outcome.TOTAL_TIMEOUT)
            return
        idle_at = (at if self._stopped else max(self.last_at, self._flowed_at)) + self._idle_s
        self.deadline_at = min(idle_at, self._total_at, self._look_at(at))
        if idle_at <= at:
            self._finish(Outcome.IDLE_TIMEOUT)
        elif self._makes_no_progress(at):
            self.why = "no progress"
            self._finish(Outcome.IDLE_TIMEOUT)

    def _look_at(self, at: float) -> float:
        return at + PROGRESS_S / 10 if self._watcher is not None else clock.NEVER

    def _makes_no_progress(self, at: float) -> bool:
        """Have only comments come for too long? They show that the backend lives, not that it answers."""
        watcher = self._watcher
        if watcher is None:
            return False
        said = self.tokens + watcher.events
        if said != self._said or self._stopped:
            self._said = said
            self._progress_by_at = at + PROGRESS_S
        return at >= self._progress_by_at

    # --- back-pressure --------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """The caller does not read: nor do we read the backend."""
        self._stopped = True
        if self._connection is not None:
            self._connection.pause()

    def flow(self) -> None:
        """The caller reads again."""
        self._stopped = False
        self._flowed_at = clock.now()
        if self._connection is not None:
            self._connection.resume()

    def shut(self) -> None:
        """The caller is gone, or nothing more may reach it."""
        self._write = nowhere

    # --- endings --------------------------------------------------------------------------------------------------

    def _end_in_error(self, piece: bytes) -> None:
        """The backend's own error event goes to the caller as it came, and is the last thing that does."""
        last = before_done(piece)
        self.bytes_out += len(last)
        self.error_relayed = True
        self._write(self.framed(last))
        self._finish(Outcome.TRUNCATED)

    def framed(self, piece: bytes) -> bytes:
        """`piece` as it stands on the wire; an empty one must not end the body."""
        return b"%x\r\n%b\r\n" % (len(piece), piece) if self.chunked and piece else piece

    def _gone(self) -> None:
        self._connection = self._attempt.connection = None

    def _complete(self) -> None:
        self._exchange.end(_LAST_CHUNK if self.chunked else b"")
        self._finish(_OK)

    def _finish(self, outcome: Outcome) -> None:
        if self.outcome is not None:
            return
        self.outcome = outcome
        self._know(None)
        self._write = nowhere  # what comes before the story wakes is too late
        self.deadline_at = clock.NEVER
        if self.done is not None and not self.done.done():
            self.done.set_result(None)


def before_done(piece: bytes) -> bytes:
    """No `[DONE]` follows an error: the SDKs would take the stream for whole."""
    done = _DONE.search(piece)
    return piece if done is None else piece[: done.start()]
