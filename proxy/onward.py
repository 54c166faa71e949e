"""A stream broke: who says the rest, and how does its caller see one stream?

In a pool with `continue`, a stream of plain text is relayed by whole events: what the caller has is what is known to have been said. When
it breaks, its lease goes back with the failure, another backend is asked for the rest, and the rest follows in the same answer. What fails
on the way leaves the stream as it would have been: one error event, and a close.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from policies.continuation import CUTS
from policies.model import Ending, Lease, Outcome, Verdict
from proxy import clock
from proxy.continuation import Listener, Rewriter, before_error, rest_of, whole_events
from proxy.relay import Relay, before_done
from proxy.sse import EVENT_MAX_BYTES, Usage
from proxy.telemetry import labels

if TYPE_CHECKING:
    from proxy.attempt import Attempt
    from proxy.edition import Pool
    from proxy.story import Story


_NO_STREAM = Ending(Verdict.NEUTRAL, Outcome.UPSTREAM_PROTOCOL, why="no stream")


class _WholeEvents(Relay):
    """A relay that lets an event go when it is complete. One that is too large to be read goes as it comes, and all behind it."""

    __slots__ = ("_as_it_comes", "_error", "_tail")

    def _begin(self) -> bytes:
        """What is held already, as far as it may go."""
        self._as_it_comes = False
        self._tail = self._error = b""
        held, self._attempt.held = b"".join(self._attempt.held), []
        return self._passed(held)

    def _passed(self, piece: bytes) -> bytes:
        """What of the stream may go now, with this piece behind what was held back."""
        watcher = self._watcher
        assert watcher is not None
        whole, self._tail = whole_events(self._tail + piece)
        if watcher.error is not None:
            whole, self._error = before_error(whole)
            self._tail = b""
        elif len(self._tail) > EVENT_MAX_BYTES or watcher.gave_up:
            whole, self._tail = whole + self._tail, b""
            self._as_it_comes = True
        whole = self._told(whole)
        self.bytes_out += len(whole)
        return whole

    def _break_or_follow(self) -> None:
        """The stream broke with what was held, or goes on."""
        assert self._watcher is not None
        if self._watcher.error is not None:
            self._finish(Outcome.TRUNCATED)
        else:
            self._follow()

    def _told(self, events: bytes) -> bytes:
        """These events, as the caller gets them."""
        return events

    def data(self, piece: bytes, chunk: bytes | None = None) -> None:
        if self._as_it_comes:
            super().data(piece, chunk)
            return
        watcher = self._watcher
        assert watcher is not None
        if self.broken is not None or self.outcome is not None:
            return  # the story has yet to wake
        at = clock.now()
        self._itl(at - self.last_at)
        self.last_at = at
        watcher.feed(piece)
        whole = self._passed(piece)
        if whole:
            self._write(self.framed(whole))
        if watcher.error is not None:
            self._finish(Outcome.TRUNCATED)

    def chunk(self, chunk: bytes, start: int) -> None:
        if self._as_it_comes:
            super().chunk(chunk, start)
        else:
            self.data(chunk[start:-2])

    def _complete(self) -> None:
        if self._tail:  # a last line without its end is all right, behind a finish
            self.bytes_out += len(self._tail)
            self._write(self.framed(self._tail))
            self._tail = b""
        super()._complete()

    def _finish(self, outcome: Outcome) -> None:
        if self.outcome is None and self._error and outcome is Outcome.TRUNCATED:
            last = before_done(self._error)
            self.bytes_out += len(last)
            self.error_relayed = True
            self._write(self.framed(last))
        super()._finish(outcome)

    @property
    def closing(self) -> bytes:
        return super().closing if self._as_it_comes else b""  # no event was left open


class ContinuableRelay(_WholeEvents):
    """The first part of a stream. Where it breaks and could be continued, `broken` says how, and `outcome` is left to the story."""

    __slots__ = ()
    continuable = True

    def start(self, head: bytes) -> None:
        self.bytes_out = 0
        body = self._begin()
        self._exchange.valve = self
        self._exchange.start(b"%b\r\n%b" % (head, self.framed(body)))
        self._break_or_follow()

    def overdue(self, at: float) -> None:
        if self.broken is None:
            super().overdue(at)

    def _finish(self, outcome: Outcome) -> None:
        listener = self._watcher
        assert isinstance(listener, Listener)
        if self.broken is None and outcome in CUTS and not self._as_it_comes and listener.can_be_continued:
            self.broken = outcome
            self.deadline_at = clock.NEVER
            if self.done is not None and not self.done.done():
                self.done.set_result(None)
        else:
            super()._finish(outcome)

    def give_up(self) -> None:
        """Nobody says the rest."""
        assert self.broken is not None
        super()._finish(self.broken)

    @property
    def listener(self) -> Listener:
        """What it has said."""
        assert isinstance(self._watcher, Listener)
        return self._watcher


class RestRelay(_WholeEvents):
    """The rest of a stream, from another backend, into the same answer."""

    __slots__ = ("_first", "_rewriter")

    def __init__(self, first: ContinuableRelay, attempt: Attempt, story: Story, idle_s: float) -> None:
        itl = story.service.telemetry.itl(attempt.backend.name).observe
        super().__init__(story.exchange, attempt, idle_s=idle_s, total_at=attempt.total_at, itl=itl, usage=None)
        self.chunked = first.chunked
        self._first = first
        self._rewriter = Rewriter(first.listener)
        self.bytes_out = first.bytes_out

    def go_on(self) -> None:
        """What was held, and what comes. `outcome` is set if that was all."""
        watcher = self._watcher
        assert watcher is not None
        watcher.tokens += self._first.listener.tokens
        body = self._begin()
        self._exchange.valve = self
        if self._first._stopped:
            self.stop()
        if body:
            self._write(self.framed(body))
        self._break_or_follow()

    def _told(self, events: bytes) -> bytes:
        return self._rewriter.rewritten(events)

    @property
    def usage(self) -> Usage | None:
        usage = super().usage
        return None if usage is None else self._rewriter.summed(usage)


async def go_on(story: Story, pool: Pool, first: ContinuableRelay) -> None:
    """Another backend says the rest of this stream, or nobody does. Afterwards the story's relay has its outcome."""
    record = story.record
    result = labels.CONTINUATION_CANCELLED
    try:
        rest = await _begin_rest(story, pool, first)
        if rest is None:
            first.give_up()
            result = labels.CONTINUATION_FAILED if record.continued else labels.CONTINUATION_DENIED
            return
        story.relay = rest
        rest.go_on()
        if rest.outcome is None:
            rest.done = story.service.loop.create_future()
            story.service.deadlines.watch(rest)
            try:
                await rest.done
            finally:
                story.service.deadlines.forget(rest)
        result = labels.CONTINUATION_OK if rest.outcome is Outcome.OK else labels.CONTINUATION_FAILED
    finally:
        story.service.telemetry.continued(pool.name, result)


async def _begin_rest(story: Story, pool: Pool, first: ContinuableRelay) -> RestRelay | None:
    """The rest, with its first token there. None: there is no rest to ask for, nobody to ask, or the one asked failed too."""
    service, record, broken_attempt, broken_lease, ticket = story.service, story.record, story.attempt, story.lease, story.ticket
    assert first.broken is not None and broken_attempt is not None and broken_lease is not None and ticket is not None
    asked = rest_of(story.reading, first.listener, flags=False)
    if asked is None:
        return None
    ending = Ending(Verdict.FAILED, first.broken, why=first.why or first.broken.value)
    record.why = ending.why
    story.lease = None
    broken_attempt.abandon()
    service.give_back(broken_lease, ending)
    if story.trace is not None:
        story.trace.failed(ending.why, clock.now())
    lobby = service.lobby
    answer = lobby.resume(ticket, broken_lease, ending) or await lobby.wait(ticket)
    if not isinstance(answer, Lease):
        return None
    story.lease = answer
    story.continued_by(ticket, answer)
    backend = service.backend(answer.backend)
    story.reading = rest_of(story.reading, first.listener, flags=True) or asked if backend.takes_flags else asked
    attempt = story.attempt = story.attempt_at(pool, backend, clock.now(), broken_attempt.total_at)
    service.deadlines.watch(attempt)
    try:
        failed = await attempt.first_token(*story.request_for(attempt), pool.connect_s)
    finally:
        service.deadlines.forget(attempt)
    if failed is None and attempt.watching:
        story.reading = story.reading.spent()
        lobby.first_token(answer)
        return RestRelay(first, attempt, story, pool.idle_s)
    story.lease, story.attempt = None, broken_attempt
    attempt.abandon()
    failed = failed or _NO_STREAM
    record.why = failed.why
    service.give_back(answer, failed)
    return None
