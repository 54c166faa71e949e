"""Who is behind the door? Takes each request from the front door through reception, starts its story, and ends it.

Reload, drain and the story meet here: a request keeps the edition of the file it came in under.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable

from msgspec.structs import replace

from policies.model import Ending, Lease, Outcome
from policies.tokens import TokenEstimate
from proxy import clock
from proxy.answers import refusal_fields
from proxy.dispatch import Lobby
from proxy.edition import Backend, Edition
from proxy.endpoints import Kind, api_of, model_answer, model_asked, models_answer
from proxy.errors import id_headers
from proxy.errors import response as failure_response
from proxy.http1 import heads
from proxy.http1.exchange import Exchange
from proxy.http1.faults import CallerFault
from proxy.intake import Admitted, Reading, Refused, new_request_id
from proxy.large_bodies import LARGE_BYTES, Job, LargeBodies
from proxy.late_probes import LateProbes
from proxy.story import Story
from proxy.telemetry.events import ProcessLog
from proxy.telemetry.record import Record
from proxy.telemetry.recorder import Recorder
from proxy.telemetry.telemetry import Telemetry
from proxy.telemetry.traces import Traces
from proxy.turned_away import turned_away

_HEALTH = b"/health"
_HEALTH_METHODS = ("GET", "HEAD")
_CATALOGUE = Kind.CATALOGUE  # looked up once: an enum's members are slow to reach
_FAULTS = {
    CallerFault.MALFORMED: Outcome.MALFORMED,
    CallerFault.TARGET_TOO_LONG: Outcome.TOO_LARGE,
    CallerFault.BODY_TOO_LARGE: Outcome.TOO_LARGE,
    CallerFault.HEAD_TOO_LARGE: Outcome.TOO_LARGE,
    CallerFault.SLOW: Outcome.CLIENT_TIMEOUT,
    CallerFault.EXPECTATION: Outcome.UNSUPPORTED,
    CallerFault.UPGRADE: Outcome.UNSUPPORTED,
}


class Service:
    """What `http1.server.Door` calls. One per process; the edition is replaced by a reload."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        deadlines: clock.Deadlines,
        lobby: Lobby,
        telemetry: Telemetry,
        tokens: TokenEstimate,
        log: ProcessLog,
        edition: Edition,
        ready: Callable[[], bool],
        recorder: Recorder,
    ) -> None:
        self.loop = loop
        self.deadlines = deadlines
        self.lobby = lobby
        self.telemetry = telemetry
        self.edition = edition
        self.traces: Traces | None = None
        self.stories: dict[Story, None] = {}  # a set in order of arrival
        self.late_probes = LateProbes(self)
        self._large = LargeBodies(loop, self._large_body_read)
        self._tokens = tokens
        self._log = log
        self._ready = ready
        self._recorder = recorder
        self._backends: dict[str, Backend] = dict(edition.backends)
        self.backend = self._backends.__getitem__  # of a lease, by name; one that has left the file may still be serving
        self._intake_overhead = telemetry.overhead("intake").observe
        self.dispatch_overhead = telemetry.overhead("dispatch").observe
        self.relay_overhead = telemetry.overhead("relay").observe
        self._at_rest: asyncio.Event | None = None  # None: nobody waits for it
        for backend in edition.backends.values():
            deadlines.watch(backend.connections)

    def adopt(self, edition: Edition) -> None:
        """From now on requests come in under this edition; those under way keep theirs."""
        kept = {backend.connections for backend in edition.backends.values()}
        for backend in self.edition.backends.values():
            if backend.connections not in kept:
                backend.connections.close()
                self.deadlines.forget(backend.connections)
        for connections in kept:
            self.deadlines.watch(connections)
        self.edition = edition
        self._backends.update(edition.backends)

    # --- 1 and 2: what the front door calls ------------------------------------------------------------------------

    def admit(self, exchange: Exchange) -> bool:
        """The head is complete: is the body wanted? False: it has been answered."""
        edition, head, known = self.edition, exchange.head, exchange.context
        if known is not None and known[0] is edition and (head.content_length or 0) <= edition.limits.body_bytes:
            return True  # the same head as before, under the same file
        if head.target.startswith(_HEALTH) and head.target.partition(b"?")[0] == _HEALTH and head.method in _HEALTH_METHODS:
            exchange.context = None
            return True
        admitted = edition.reception.admit(head)
        if isinstance(admitted, Refused):
            self._refuse(exchange, admitted, self._record(exchange))
            return False
        record = self._record(exchange)  # as far as the head fills it; copied for each request that comes with this head
        record.path, record.phase = admitted.endpoint.path, ""
        record.tenant, record.lane = admitted.identity.name, edition.plan.lanes[admitted.lane].name
        record.retry_count, record.trace_id = admitted.retry_count, admitted.trace_id
        exchange.context = (edition, admitted, record)
        return True

    def begin(self, exchange: Exchange, large: Job | None = None) -> None:
        """The request is complete: read it, and let its story be told. A `large` one comes again when it was read elsewhere."""
        if exchange.context is None:
            self._answer_health(exchange)
            return
        edition: Edition
        admitted: Admitted
        edition, admitted, record = exchange.context
        reading: Reading | Refused
        if large is not None:
            received_at, request_id, reading = large.received_at, large.request_id, large.reading
        else:
            received_at = clock.now()
            request_id = admitted.request_id or new_request_id()
            if admitted.endpoint.kind is _CATALOGUE:
                self._answer_catalogue(exchange, edition, admitted, request_id)
                return
            if len(exchange.body) > LARGE_BYTES:
                self._large.put(Job(exchange, received_at, request_id, edition, admitted))
                return
            reading = edition.reception.read(exchange.body, admitted, request_id)
        if isinstance(reading, Refused):
            record = self._record(exchange)
            record.id, record.tenant = request_id, admitted.identity.name
            self._refuse(exchange, reading, record)
            return
        exchange.body = b""  # from here on the reading holds it
        request = reading.request
        record = replace(
            record,
            received_at=received_at,
            time_unix=clock.wall(),
            id=request_id,
            model=request.model or "",
            streamed=request.streamed,
            bytes_in=request.body_bytes,
        )
        self._intake_overhead(clock.now() - received_at)
        story = Story(self, edition, exchange, admitted.identity, reading, record)
        if self.traces is not None:
            story.trace = self.traces.begin(record, exchange.head.headers)
        exchange.task = story
        self.stories[story] = None
        story.task = self.loop.create_task(story.tell())

    def _large_body_read(self, job: Job) -> None:
        if not job.left:
            self.begin(job.exchange, job)
        else:  # the request was complete, so that it counts
            record = self._record(job.exchange)
            record.received_at, record.id, record.tenant = job.received_at, job.request_id, job.admitted.identity.name
            record.outcome = Outcome.CLIENT_GONE
            self.telemetry.finish(record, clock.now())
        self._look_for_rest()

    def refuse(self, exchange: Exchange, fault: CallerFault) -> None:
        """The request was broken on the wire."""
        record = self._record(exchange)
        if exchange.context is not None:
            record.tenant = exchange.context[1].identity.name
        self._refuse(exchange, Refused(_FAULTS[fault], api_of(exchange.head.target), status=fault.status), record)

    # --- 8: the return desk -----------------------------------------------------------------------------------------

    def give_back(self, lease: Lease, ending: Ending) -> None:
        """The attempt is over: its slot is free, health and sizing learn, the next ones go."""
        self.telemetry.attempt(lease, ending.outcome, clock.now())
        self.lobby.give_back(lease, ending)

    def told(self, story: Story) -> None:
        """The request is over: its counts, its tokens, its line in the log."""
        record, relay, usage, request = story.record, story.relay, story.usage, story.reading.request
        if relay is not None:
            record.bytes_out = relay.bytes_out
            usage = relay.usage
            if relay.speaks_events:
                record.last_token_at = relay.last_at
                if usage is None:
                    record.tokens_in, record.tokens_out = request.prompt_tokens, relay.tokens
                    record.tokens_source = "estimated"
        if usage is not None:
            record.tokens_in, record.tokens_out = usage
            record.tokens_source = "usage"
            if not request.images:
                prompt = story.reading.prompt
                self._tokens.learn(request.model, prompt.ascii_bytes, prompt.other_chars, record.tokens_in)
        if not record.tokens_in:
            record.tokens_in = request.prompt_tokens
        at = clock.now()
        self.telemetry.finish(record, at)
        if story.trace is not None:
            story.trace.end(record, request, at)
        if self._recorder.on:
            self._recorder.put(record, request)
        del self.stories[story]
        story.exchange.task = story.task = None  # nobody ends it any more; and no circle is left for the collector to find
        if self._at_rest is not None:
            self._look_for_rest()

    def _look_for_rest(self) -> None:
        if self._at_rest is not None and not self.stories and not self._large.jobs:
            self._at_rest.set()
            self._at_rest = None

    def report(self, story: Story, error: Exception) -> None:
        """A fault of ours: to be seen by an operator, never by a caller."""
        self._log.error("story_failed", id=story.record.id, traceback="".join(traceback.format_exception(error)))

    async def all_told(self, within_s: float) -> bool:
        """Wait until no request is under way. False: some still are."""
        try:
            async with asyncio.timeout(within_s):
                while self.stories or self._large.jobs:
                    self._at_rest = self._at_rest or asyncio.Event()
                    await self._at_rest.wait()
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """End what outlasts its callers, and close the kept connections to backends."""
        self.late_probes.close()
        self._large.close()
        for backend in self._backends.values():
            backend.connections.close()

    def cut_all(self) -> None:
        """End every request under way, whatever it is doing."""
        for story in list(self.stories):
            story.cancel()

    def cancel(self, request_id: str) -> int:
        """End the requests of this id, waiting or in flight, whose answer is not whole yet. How many were there?"""
        found = [story for story in self.stories if story.record.id == request_id and story.may_be_cancelled]
        for story in found:
            story.cancelled = True
            story.cancel()
        return len(found)

    # --- answers of our own -------------------------------------------------------------------------------------------

    def refuse_story(self, story: Story, outcome: Outcome, retry_after_s: int | None = None) -> None:
        """Answer a request that goes no further; its record is closed at the return desk."""
        record, exchange = story.record, story.exchange
        record.outcome = outcome
        api = story.reading.endpoint.api
        status, fields, body = failure_response(outcome, api, retry_after_s, record.id)
        record.status = status
        if record.pool:
            fields += refusal_fields(record)
        exchange.respond(heads.response(status, fields, body, keep_alive=exchange.keep_alive))

    def _answer_health(self, exchange: Exchange) -> None:
        ready = self._ready()
        body = b"ready\n" if ready else b"not ready\n"
        to_head = exchange.head.method == "HEAD"
        fields = [(b"content-type", b"text/plain")]
        exchange.respond(heads.response(200 if ready else 503, fields, body, keep_alive=exchange.keep_alive, to_head=to_head))

    def _answer_catalogue(self, exchange: Exchange, edition: Edition, admitted: Admitted, request_id: str) -> None:
        record = self._record(exchange)
        record.id, record.tenant = request_id, admitted.identity.name
        usable = admitted.identity.usable(edition.models)
        asked = model_asked(exchange.head.target)
        body = models_answer(usable, admitted.api) if asked is None else model_answer(asked, usable, admitted.api)
        if body is None:
            self._refuse(
                exchange, Refused(Outcome.NOT_FOUND, admitted.api, record.id, detail="No such model, or not for this key."), record
            )
            return
        fields = [(b"content-type", b"application/json"), *id_headers(record.id, admitted.api)]
        exchange.respond(heads.response(200, fields, body, keep_alive=exchange.keep_alive))
        record.status, record.outcome = 200, Outcome.OK
        self.telemetry.finish(record, clock.now())

    def _refuse(self, exchange: Exchange, refused: Refused, record: Record) -> None:
        """Answer a request that never had a story."""
        record.id = refused.request_id or record.id or new_request_id()
        record.outcome = refused.outcome
        keep_alive = exchange.keep_alive and exchange.body_read
        record.status, answer = turned_away(refused, record.id, keep_alive=keep_alive, to_head=exchange.head.method == "HEAD")
        exchange.respond(answer)
        self.telemetry.finish(record, clock.now())

    def _record(self, exchange: Exchange) -> Record:
        head = exchange.head
        record = Record(received_at=clock.now(), time_unix=clock.wall())
        record.method = head.method
        record.path = head.target.partition(b"?")[0].decode("latin-1")
        record.peer = exchange.peer
        if self.edition.trusted_proxies:
            record.peer = self.edition.caller_address(exchange.peer, head.headers)
        record.phase = "intake"
        return record
