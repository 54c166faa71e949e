"""What happens to a request, from its last byte in to its last byte out? One coroutine per request tells it, top to bottom.

The rooms are numbered as in the walk: 3 map room, 4 waiting room, 5 key cabinet, 6 corridor, 7 window, 8 return desk. The
front door (1) is `http1.server`, reception (2) is `intake`; both are called from `Service`, in `service.py`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from policies.model import Ending, Lease, Outcome, Refusal, Ticket, Verdict
from proxy import clock
from proxy.answers import answer_head, framing
from proxy.attempt import Attempt
from proxy.continuation import Listener, forbids
from proxy.edition import Backend, Edition, Pool
from proxy.endpoints import Api, Kind
from proxy.errors import stream_error
from proxy.hedge import first_of_two
from proxy.http1.exchange import Exchange
from proxy.identity import Identity
from proxy.intake import Reading
from proxy.onward import ContinuableRelay, go_on
from proxy.relay import Relay
from proxy.sse import StreamWatcher, UnaryWatcher, Usage, usage_in
from proxy.telemetry.record import Record

if TYPE_CHECKING:
    from proxy.service import Service
    from proxy.telemetry.traces import Trace

_NEW, _BEGUN, _LEFT_EARLY = "new", "begun", "left early"
_LEFT = Ending(Verdict.NEUTRAL, Outcome.CLIENT_GONE, why="caller left")
_CANCELLED = Ending(Verdict.NEUTRAL, Outcome.CANCELLED, why="cancelled")
_BROKEN = Ending(Verdict.NEUTRAL, Outcome.INTERNAL, why="internal")
_AFTER_TOKEN = {  # what an answer that broke after its first token says about its backend
    Outcome.OK: Verdict.OK,
    Outcome.TRUNCATED: Verdict.FAILED,
    Outcome.IDLE_TIMEOUT: Verdict.FAILED,
    Outcome.TOTAL_TIMEOUT: Verdict.NEUTRAL,
}
_OK = Outcome.OK  # looked up once, as what follows: an enum's members are slow to reach
_GENERATION, _ANTHROPIC = Kind.GENERATION, Api.ANTHROPIC
_WELL = Ending(Verdict.OK, _OK, why="ok")


class Story:
    """One request. `tell` is the whole of it; what it learns is in `record`."""

    __slots__ = (
        "attempt",
        "cancelled",
        "edition",
        "exchange",
        "identity",
        "lease",
        "reading",
        "record",
        "relay",
        "service",
        "state",
        "task",
        "ticket",
        "trace",
        "usage",
    )

    def __init__(
        self, service: Service, edition: Edition, exchange: Exchange, identity: Identity, reading: Reading, record: Record
    ) -> None:
        self.service = service
        self.edition = edition
        self.exchange = exchange
        self.identity = identity
        self.reading = reading
        self.record = record
        self.ticket: Ticket | None = None
        self.lease: Lease | None = None
        self.attempt: Attempt | None = None
        self.relay: Relay | None = None
        self.task: asyncio.Task[None] | None = None
        self.state = _NEW
        self.cancelled = False  # by an operator
        self.usage: Usage | None = None  # of an answer handed over whole
        self.trace: Trace | None = None  # None: tracing is off, or not for this one

    def cancel(self) -> None:
        """The caller has left, or an operator ends it.

        A task cancelled before its first step would never reach its `finally`: that one waits for the step.
        """
        if self.state is _BEGUN and self.task is not None:
            self.task.cancel()
        else:
            self.state = _LEFT_EARLY

    async def tell(self) -> None:
        """From the map room to the return desk. Cancelled when the caller leaves; every ending comes by `finally`."""
        record = self.record
        ending = _BROKEN
        try:
            if self.state is _LEFT_EARLY:
                raise asyncio.CancelledError
            self.state = _BEGUN
            pool = self._choose_pool()  # 3
            if pool is None:
                return
            ending = await self._find_answer(pool)  # 4, 5, 6
            if self.lease is not None:
                ending = await self._hand_over(pool)  # 7
        except asyncio.CancelledError:
            ending = self._cut_short()
        except Exception as error:
            record.outcome = Outcome.INTERNAL
            self.service.report(self, error)
            self._end_badly(Outcome.INTERNAL)
        finally:  # 8
            if self.attempt is not None:
                self.attempt.abandon()
            if self.lease is not None:
                self.service.give_back(self.lease, ending)
            self.service.told(self)

    def _cut_short(self) -> Ending:
        """Who ended it before its time: an operator, a caller who stopped reading, the server at the end of its drain, or the caller?"""
        record, exchange = self.record, self.exchange
        ending = self.left_as
        if ending is _CANCELLED:
            record.outcome = Outcome.CANCELLED
        elif exchange.stalled:
            record.outcome = Outcome.WRITE_TIMEOUT
        elif exchange.caller_present:
            record.outcome = Outcome.DRAINING
        else:
            record.outcome = Outcome.CLIENT_GONE
        self._note_end_of_wait(record.outcome.value)
        record.status = record.status if exchange.started else 0
        if record.outcome is Outcome.CANCELLED or record.outcome is Outcome.DRAINING:
            self._end_badly(record.outcome)
        return ending

    @property
    def left_as(self) -> Ending:
        """What an attempt that is cut short says of its backend."""
        return _CANCELLED if self.cancelled and self.exchange.caller_present else _LEFT

    @property
    def may_be_cancelled(self) -> bool:
        """Is it under way, and its answer not yet whole or broken?"""
        if self.cancelled:
            return False
        return self.relay.outcome is None if self.relay is not None else not self.exchange.started

    # --- 3: which pool? -------------------------------------------------------------------------------------------

    def _choose_pool(self) -> Pool | None:
        choice = self.edition.router.choose(self.reading.request)
        if choice is None:
            self.service.refuse_story(self, Outcome.NOT_FOUND)
            return None
        if not self.identity.may_use_pool(choice.pool):
            self.service.refuse_story(self, Outcome.FORBIDDEN)
            return None
        record = self.record
        record.pool = choice.pool
        record.rule = choice.why
        return self.edition.pools[choice.pool]

    # --- 4, 5, 6: who answers it? ---------------------------------------------------------------------------------

    async def _find_answer(self, pool: Pool) -> Ending:
        """Wait for a slot and try, until a backend has an answer (`self.lease` is then held) or nothing is left to try."""
        service, record, reading = self.service, self.record, self.reading
        lobby = service.lobby
        ticket = self.ticket = Ticket(reading.request, pool.name, record.received_at, slotless=reading.endpoint.slotless)
        record.phase = "queued"
        ending = _BROKEN
        total_at = clock.NEVER
        answer = lobby.enter(ticket) or await lobby.wait(ticket)
        while isinstance(answer, Lease):
            lease = self.lease = answer
            self._note_dispatch(ticket, lease)
            backend = service.backend(lease.backend)
            at = clock.now()
            if total_at == clock.NEVER:
                total_at = at + pool.total_s  # waiting has its own limit; this one is for being served
            attempt = self.attempt = self.attempt_at(pool, backend, at, total_at)
            service.deadlines.watch(attempt)
            try:
                if pool.hedges and service.lobby.dispatcher.hedge_at(ticket, at) is not None:
                    failed = await first_of_two(self, pool, ticket)
                    lease, attempt = self.lease, self.attempt
                    assert lease is not None and attempt is not None
                    at = lease.granted_at
                else:
                    failed = await attempt.first_token(*self.request_for(attempt), pool.connect_s)
            finally:
                service.deadlines.forget(attempt)
            service.dispatch_overhead(attempt.sent_at - at - attempt.connect_s)
            if attempt.connect_s:
                record.connect_s = attempt.connect_s
                service.telemetry.connected(lease.backend, attempt.connect_s)
            if failed is None:
                return ending
            ending = failed
            self.lease = None
            if service.late_probes.take(lease, attempt, ending):
                self.attempt = None
            else:
                attempt.abandon()
                service.give_back(lease, ending)
            record.why = ending.why
            if self.trace is not None:
                self.trace.failed(ending.why, clock.now())
            record.phase = "queued"
            answer = lobby.again(ticket, ending, sent=attempt.sent_at > 0.0) or await lobby.wait(ticket)
        self._give_up(answer, ending)
        return ending

    def _note_dispatch(self, ticket: Ticket, lease: Lease) -> None:
        record = self.record
        record.attempts = ticket.attempts
        record.backend = lease.backend
        record.platform = lease.platform
        self._note_end_of_wait("dispatched")
        if self.trace is not None:
            self.trace.dispatched(lease, clock.now())
        record.phase = "first_token" if self.reading.request.streamed else "unary"

    def sent_beside(self, ticket: Ticket, lease: Lease) -> None:
        """A second attempt runs beside the first."""
        self.record.attempts = ticket.attempts
        self.record.hedges += 1
        if self.trace is not None:
            self.trace.beside(lease, clock.now())

    def continued_by(self, ticket: Ticket, lease: Lease) -> None:
        """Another backend says the rest."""
        self._note_dispatch(ticket, lease)
        self.record.phase = "streaming"
        self.record.continued += 1

    def _note_end_of_wait(self, how: str) -> None:
        record, ticket = self.record, self.ticket
        if ticket is not None and (record.phase == "queued" or how == "dispatched"):
            self.service.telemetry.waited(record.pool, record.lane, how, ticket.waited_s - record.queue_s)
            record.queue_s = ticket.waited_s

    def attempt_at(self, pool: Pool, backend: Backend, at: float, total_at: float) -> Attempt:
        reading = self.reading
        model = self._model_for(backend, pool)
        watched = reading.request.streamed and reading.endpoint.kind is _GENERATION
        watcher = StreamWatcher(reading.endpoint.api) if watched else None
        if pool.continues and watched and self.ticket is not None and self.ticket.last_ending is None and not forbids(reading):
            watcher = Listener()
        return Attempt(
            backend,
            watcher,
            first_token_at=at + pool.first_token_s if watched else clock.NEVER,
            total_at=total_at,
            model=model,
            model_is_ours=model != reading.request.model,
        )

    def _model_for(self, backend: Backend, pool: Pool) -> str | None:
        name = pool.model or self.reading.request.model
        return name if backend.names is None or name is None else backend.names.get(name, name)

    def request_for(self, attempt: Attempt) -> tuple[bytes, bytes]:
        """The head and body that this backend gets: the caller's own bytes, save what the file changes."""
        reading, head, backend = self.reading, self.exchange.head, attempt.backend
        body = reading.body
        if reading.gives_priority or backend.takes_priority:
            reading = reading.prioritised(reading.request.lane if backend.takes_priority else None)
            body = reading.body
        if attempt.model is not None and attempt.model_is_ours:
            body = reading.renamed(attempt.model)
        heads = backend.messages_heads if reading.endpoint.api is _ANTHROPIC else backend.heads
        trusted = bool(self.edition.trusted_proxies) and self.edition.trusts(self.exchange.peer)
        request_id = self.record.id.encode()
        if self.trace is None:
            built = heads.build_for(head, len(body), request_id, trusted=trusted)
        else:
            fields = self.trace.fields(head.headers)
            built = heads.build(head.method.encode(), head.target, fields, len(body), request_id, trusted=trusted)
        if self.record.attempts > 1:  # who bills or dedupes by request id can tell them apart
            built = b"%bx-fairlane-attempt: %d\r\n\r\n" % (built[:-2], self.record.attempts)
        return built, body

    def _give_up(self, refusal: Refusal, ending: Ending) -> None:
        """Nothing is left to try: the backend's own answer if it has one worth relaying, else ours."""
        record, attempt = self.record, self.attempt
        self._note_end_of_wait(refusal.outcome.value)
        record.outcome = refusal.outcome
        if attempt is not None and ending.verdict is not Verdict.NEUTRAL:
            self.service.telemetry.retry_denied(record.pool)
        if attempt is not None and refusal.outcome is Outcome.UPSTREAM_STATUS and attempt.ended:
            self._relay(attempt, clock.NEVER, clock.NEVER)
            record.outcome = Outcome.UPSTREAM_STATUS
        else:
            self.service.refuse_story(self, refusal.outcome, refusal.retry_after_s)

    # --- 7: the answer on its way ---------------------------------------------------------------------------------

    async def _hand_over(self, pool: Pool) -> Ending:
        """Relay the answer to its end. From here on nothing is tried again."""
        service, record, attempt, lease = self.service, self.record, self.attempt, self.lease
        assert attempt is not None and lease is not None
        if attempt.ended and not attempt.watching and attempt.length_bytes is not None:
            return self._hand_over_whole(attempt, attempt.length_bytes)
        relay = self._relay(attempt, pool.idle_s, attempt.total_at)
        if attempt.watching:
            record.first_token_at = clock.now()
            record.phase = "streaming"
            if not relay.continuable:
                self.reading = self.reading.spent()
            service.lobby.first_token(lease)
            service.telemetry.first_token(record, attempt.token_at - attempt.sent_at)
        if relay.outcome is None and relay.broken is None:
            relay.done = service.loop.create_future()
            service.deadlines.watch(relay)
            try:
                await relay.done
            finally:
                service.deadlines.forget(relay)
        if relay.outcome is None:
            assert isinstance(relay, ContinuableRelay)
            await go_on(self, pool, relay)
            relay = self.relay or relay
        outcome = relay.outcome
        assert outcome is not None
        record.outcome = outcome
        if outcome is _OK:
            return self._well_ended(attempt)
        if relay.error_relayed:
            self.exchange.cut()
        else:
            self._end_badly(outcome)
        record.why = relay.why or record.why
        return Ending(_AFTER_TOKEN[outcome], outcome, why=relay.why or outcome.value)

    def _hand_over_whole(self, attempt: Attempt, length_bytes: int) -> Ending:
        """The answer has come to its end already: one write, and nothing to follow."""
        record, exchange = self.record, self.exchange
        body = attempt.held[0] if len(attempt.held) == 1 else b"".join(attempt.held)
        record.status = attempt.status
        record.bytes_out = len(body)
        record.outcome = _OK
        if attempt.status == 200 and self.reading.members is not None:
            self.usage = usage_in(body)
        head = answer_head(self.edition, record, attempt, self.reading)
        exchange.respond(b"%b%b\r\n%b" % (head, framing(exchange, length_bytes, chunked=False), body))
        self.service.relay_overhead(clock.now() - attempt.token_at)
        return self._well_ended(attempt)

    def _well_ended(self, attempt: Attempt) -> Ending:
        """A whole answer: what does it say of its backend?"""
        if attempt.status < 400:
            return _WELL
        self.record.outcome = Outcome.UPSTREAM_STATUS
        return Ending(Verdict.NEUTRAL, Outcome.UPSTREAM_STATUS, why=f"status {attempt.status}")

    def _relay(self, attempt: Attempt, idle_s: float, total_at: float) -> Relay:
        record = self.record
        usage = UnaryWatcher() if attempt.status == 200 and not attempt.watching and self.reading.members is not None else None
        itl = self.service.telemetry.itl(attempt.backend.name).observe
        kind = ContinuableRelay if attempt.watching and attempt.watcher is not None and attempt.watcher.keeps_text else Relay
        relay = self.relay = kind(self.exchange, attempt, idle_s=idle_s, total_at=total_at, itl=itl, usage=usage)
        record.status = attempt.status
        head = answer_head(self.edition, record, attempt, self.reading)
        relay.start(head + framing(self.exchange, relay.length_bytes, chunked=relay.chunked))
        self.service.relay_overhead(clock.now() - attempt.token_at)
        return relay

    def _end_badly(self, outcome: Outcome) -> None:
        """Before the answer began, an answer of ours; after it, an event that says so where that is possible, and never a clean end."""
        exchange, relay = self.exchange, self.relay
        if not exchange.caller_present:
            return
        if not exchange.started:
            self.service.refuse_story(self, outcome)
        elif relay is not None and relay.speaks_events:
            exchange.cut(relay.framed(relay.closing + stream_error(outcome, self.reading.endpoint.api, relay.sequence)))
        else:
            exchange.abort()
