"""Where did a request spend its time, as tracing systems show it? Spans of sampled requests, sent to a collector by OTLP over HTTP.

    SERVER   chat qwen-l       received to ended, with GenAI attributes and Fairlane's own
      |-- INTERNAL queue       each wait
      `-- CLIENT   attempt     each try at a backend, lease to lease
            `-- INTERNAL stream    first token to last

`traceparent` of the caller is kept: its trace goes on through us. Where there is none a trace is begun, sampled or not, so that the
backend's spans and our log share its id. Whether a request is sampled hangs on its trace id alone (as OpenTelemetry's
TraceIdRatioBased has it), so that services with the same share keep the same traces; a caller who says "not sampled" is heard, one
who says "sampled" does not override the file. While the request runs only instants are noted; spans are made when it has ended, and
sent by a thread of the SDK. Nothing here runs while `server.traces` is not set, and nothing imports OpenTelemetry before.
"""

from __future__ import annotations

import logging
import random
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

from policies.model import Lease, Outcome, Request
from proxy.telemetry.record import Record

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

Fields = list[tuple[bytes, bytes]]

_PARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-((?!0{32})[0-9a-f]{32})-((?!0{16})[0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_SAMPLED = 1
_NAMES = frozenset({b"traceparent", b"tracestate"})
_OPERATIONS = {"completions": "text_completion", "embeddings": "embeddings", "responses": "chat", "messages": "chat"}
_NO_FAULT = frozenset({Outcome.OK, Outcome.CLIENT_GONE, Outcome.CANCELLED, Outcome.WRITE_TIMEOUT})
TEXT_MAX = 128  # characters of any value that a caller chose
CLOSE_MS = 2000
EXPORT_WITHIN_S = 5


class _Try:
    """One attempt: where, from when to when, and why it failed."""

    __slots__ = ("backend", "began_at", "ended_at", "number", "platform", "span_id", "why")

    def __init__(self, lease: Lease, began_at: float, span_id: int, number: int) -> None:
        self.number = number
        self.platform = lease.platform
        self.backend = lease.backend
        self.began_at = began_at
        self.span_id = span_id
        self.ended_at: float | None = None
        self.why = ""


class Parent(NamedTuple):
    """What the caller's `traceparent` says."""

    trace_id: int
    span_id: int
    sampled: bool


class Trace:
    """One request's notes. Not sampled: it only has a `traceparent` for the backend."""

    __slots__ = ("_bits", "_traces", "_tries", "_waits", "_waits_since", "parent", "sampled", "span_id", "trace_id")

    def __init__(self, traces: Traces, parent: Parent | None, trace_id: int, sampled: bool, bits: random.Random, now: float) -> None:
        self._traces = traces
        self._bits = bits
        self._waits_since: float | None = now
        self._waits: list[tuple[float, float]] = []
        self._tries: list[_Try] = []
        self.parent = parent
        self.trace_id = trace_id
        self.span_id = _some(bits, 64)
        self.sampled = sampled

    def dispatched(self, lease: Lease, now: float) -> None:
        """A wait is over, an attempt begins."""
        if self.sampled and self._waits_since is not None:
            self._waits.append((self._waits_since, now))
            self._waits_since = None
            self.beside(lease, now)

    def beside(self, lease: Lease, now: float) -> None:
        """An attempt begins, whatever else runs."""
        if self.sampled:
            self._tries.append(_Try(lease, now, _some(self._bits, 64), len(self._tries) + 1))

    def over(self, backend: str, why: str, now: float) -> None:
        """The attempt at this backend is over, and the one beside it goes on: that is the latest from now on."""
        for each in self._tries:
            if each.ended_at is None and each.backend == backend:
                each.ended_at, each.why = now, why
        self._tries.sort(key=lambda each: each.ended_at is None)

    def failed(self, why: str, now: float) -> None:
        """The attempt is over, and the request waits again."""
        if self._tries:
            self._tries[-1].ended_at = now
            self._tries[-1].why = why
            self._waits_since = now

    def fields(self, headers: Sequence[tuple[bytes, bytes]]) -> Fields:
        """The caller's header fields as the backend gets them: our span is the parent of its own."""
        dropped = _NAMES if self.parent is None else {b"traceparent"}
        span_id = self._tries[-1].span_id if self._tries else self.span_id
        ours = b"00-%032x-%016x-%02x" % (self.trace_id, span_id, _SAMPLED if self.sampled else 0)
        return [*((name, value) for name, value in headers if name not in dropped), (b"traceparent", ours)]

    def end(self, record: Record, request: Request, now: float) -> None:
        """The request has ended: its spans go out."""
        if self.sampled:
            if self._waits_since is not None and record.phase == "queued":
                self._waits.append((self._waits_since, now))
            if self._tries and self._tries[-1].ended_at is None:
                self._tries[-1].ended_at = now
                self._tries[-1].why = "" if record.outcome is Outcome.OK else record.why or record.outcome.value
            self._traces.send(self, record, request, self._waits, self._tries, now)


class Traces:
    """The way to the collector. `complain` hears of what cannot be sent; it is called from another thread."""

    def __init__(self, endpoint: str, sample: Fraction, version: str, complain: Callable[[str], None]) -> None:
        """ImportError: the extra `traces` is not installed."""
        from opentelemetry import trace as api
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.id_generator import IdGenerator
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON

        class Ids(IdGenerator):
            """The identities that were given to the backends already."""

            trace_id = span_id = 0

            def generate_trace_id(self) -> int:
                return self.trace_id

            def generate_span_id(self) -> int:
                return self.span_id

        self._api = api
        self._ids = Ids()
        self._random = random.Random()
        self._bound = round(sample * 2**64)
        self._listener = _Listener(complain)
        logging.getLogger("opentelemetry").addHandler(self._listener)
        logging.getLogger("opentelemetry").propagate = False  # it would write on stderr between the lines of our log
        resource = Resource.create({"service.name": "fairlane", "service.version": version})
        self._processor = BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_WITHIN_S))
        provider = TracerProvider(ALWAYS_ON, resource, shutdown_on_exit=False, id_generator=self._ids)
        provider.add_span_processor(self._processor)
        self._tracer = provider.get_tracer("fairlane", version)

    def begin(self, record: Record, headers: Sequence[tuple[bytes, bytes]]) -> Trace | None:
        """The notes for a request that has come. None: the caller's own `traceparent` passes as it came, and nothing is noted."""
        parent = _parent(headers)
        trace_id = _some(self._random, 128) if parent is None else parent.trace_id
        sampled = trace_id & (2**64 - 1) < self._bound and (parent is None or parent.sampled)
        record.trace_id = f"{trace_id:032x}"
        if parent is not None and not sampled:
            return None
        return Trace(self, parent, trace_id, sampled, self._random, record.received_at)

    def send(
        self, trace: Trace, record: Record, request: Request, waits: Sequence[tuple[float, float]], tries: Sequence[_Try], now: float
    ) -> None:
        """Makes the spans, and hands them to the thread that sends them; those that find its queue full are dropped."""
        kind, began_at, trace_id = self._api.SpanKind, record.received_at, trace.trace_id
        offset_s = record.time_unix - began_at
        gen_ai = _gen_ai(record, request)
        name = f"{gen_ai['gen_ai.operation.name']} {record.model[:TEXT_MAX]}".rstrip()
        parent = None if trace.parent is None else self._context(trace_id, trace.parent.span_id, remote=True)
        here = self._context(trace_id, trace.span_id)

        def span(
            name: str, kind: Any, above: SpanContext | None, span_id: int, times: tuple[float, float], more: Mapping[str, Any], error: str
        ) -> None:
            self._ids.trace_id, self._ids.span_id = trace_id, span_id
            context = self._api.set_span_in_context(self._api.NonRecordingSpan(above or self._api.INVALID_SPAN_CONTEXT))
            starts, ends = (int((at + offset_s) * 1e9) for at in times)
            made = self._tracer.start_span(name, context, kind, {**more, **({"error.type": error} if error else {})}, start_time=starts)
            if error:
                made.set_status(self._api.Status(self._api.StatusCode.ERROR, error))
            made.end(ends)

        for times in waits:
            span(
                "queue",
                kind.INTERNAL,
                here,
                _some(self._random, 64),
                times,
                {"fairlane.pool": record.pool, "fairlane.lane": record.lane},
                "",
            )
        for each in tries:
            ended_at = now if each.ended_at is None else each.ended_at
            where = {"fairlane.platform": each.platform, "fairlane.backend": each.backend, "fairlane.attempt": each.number}
            error = "" if record.outcome in _NO_FAULT and each is tries[-1] else each.why
            span("attempt", kind.CLIENT, here, each.span_id, (each.began_at, ended_at), {**gen_ai, **where}, error)
        if record.first_token_at is not None and tries:
            ended_at = now if record.last_token_at is None else max(record.last_token_at, record.first_token_at)
            inside = self._context(trace_id, tries[-1].span_id)
            streamed = {"gen_ai.usage.output_tokens": record.tokens_out, "fairlane.bytes_out": record.bytes_out}
            span("stream", kind.INTERNAL, inside, _some(self._random, 64), (record.first_token_at, ended_at), streamed, "")
        error = "" if record.outcome in _NO_FAULT or 400 <= record.status < 500 else record.outcome.value
        span(name, kind.SERVER, parent, trace.span_id, (began_at, now), {**gen_ai, **_own(record)}, error)

    def close(self) -> None:
        """Sends what is waiting, for two seconds at most. Blocks: for a thread."""
        closing = threading.Thread(target=self._processor.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(CLOSE_MS / 1000)
        logging.getLogger("opentelemetry").removeHandler(self._listener)

    def _context(self, trace_id: int, span_id: int, *, remote: bool = False) -> SpanContext:
        return self._api.SpanContext(trace_id, span_id, remote, self._api.TraceFlags(_SAMPLED))


class _Listener(logging.Handler):
    """What the SDK has to say, for our own log."""

    def __init__(self, complain: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._complain = complain

    def emit(self, record: logging.LogRecord) -> None:
        self._complain(record.getMessage())


def _some(bits: random.Random, number: int) -> int:
    """A random identity; never 0, which would be none."""
    return bits.getrandbits(number) or 1


def _parent(headers: Sequence[tuple[bytes, bytes]]) -> Parent | None:
    found = [value for name, value in headers if name == b"traceparent"]
    match = _PARENT.fullmatch(found[0].strip()) if len(found) == 1 else None
    return None if match is None else Parent(int(match[1], 16), int(match[2], 16), bool(int(match[3], 16) & _SAMPLED))


def _gen_ai(record: Record, request: Request) -> dict[str, Any]:
    """OpenTelemetry's attributes for generative AI, and vLLM's for latency. No prompt, no answer."""
    last = record.path.rpartition("/")[2]
    operation = "chat" if record.path.endswith("chat/completions") else _OPERATIONS.get(last, last)[:TEXT_MAX]
    said: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "anthropic" if "/messages" in record.path else "openai",
        "gen_ai.request.model": record.model[:TEXT_MAX] or None,
        "gen_ai.request.max_tokens": request.max_tokens,
        "gen_ai.usage.input_tokens": record.tokens_in if record.tokens_source else None,
        "gen_ai.usage.output_tokens": record.tokens_out if record.tokens_source else None,
        "gen_ai.latency.time_in_queue": record.queue_s,
        "gen_ai.latency.time_to_first_token": record.ttft_s,
    }
    return {key: value for key, value in said.items() if value is not None}


def _own(record: Record) -> dict[str, Any]:
    return {
        "http.request.method": record.method[:TEXT_MAX],
        "url.path": record.path[:TEXT_MAX],
        "http.response.status_code": record.status,
        "fairlane.request_id": record.id[:TEXT_MAX],
        "fairlane.tenant": record.tenant[:TEXT_MAX],
        "fairlane.lane": record.lane,
        "fairlane.pool": record.pool,
        "fairlane.platform": record.platform,
        "fairlane.backend": record.backend,
        "fairlane.attempts": record.attempts,
        "fairlane.outcome": record.outcome.value,
        "fairlane.streamed": record.streamed,
        "fairlane.tokens_source": record.tokens_source,
    }
