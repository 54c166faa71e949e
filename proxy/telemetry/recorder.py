"""Who asked, when, for how much, and what became of it? `server.trace`: one JSON line per request, to be replayed by the lab.

Sizes and names, never text and never a key. Written like the access log: by a thread of its own, bounded, without the loop ever waiting.
Lines are in the order in which requests ended; `at` is when each had been received.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from policies.model import Outcome, Request
from proxy.telemetry.access_log import TEXT_MAX, encode
from proxy.telemetry.log_writer import LogWriter, Sink
from proxy.telemetry.record import Record


class TraceLine(msgspec.Struct, gc=False):
    """The fields of a line, in their order. Durations in seconds; null: not known or did not happen."""

    at: float  # seconds since 1970: fully received
    lane: str
    key: str  # its name
    pool: str
    traffic: str
    path: str
    model: str | None
    streamed: bool
    prompt_tokens: int  # as estimated when it arrived: what routes looked at
    max_tokens: int | None
    turns: int
    tools: bool
    json: bool
    images: bool
    task: str | None
    body_bytes: int
    outcome: Outcome
    status: int
    attempts: int
    backend: str
    input_tokens: int  # as counted in the end
    output_tokens: int
    queue_s: float
    ttft_s: float | None
    generation_s: float | None  # from dispatch to end; null: never dispatched


def trace_line(record: Record, request: Request) -> TraceLine:
    """The line of a request that has ended."""
    dispatched = record.attempts > 0
    return TraceLine(
        record.time_unix,
        record.lane,
        record.tenant,
        record.pool,
        request.traffic,
        request.path[:TEXT_MAX],
        None if request.model is None else request.model[:TEXT_MAX],
        record.streamed,
        request.prompt_tokens,
        request.max_tokens,
        request.turns,
        request.tools,
        request.json,
        request.images,
        request.task,
        record.bytes_in,
        record.outcome,
        record.status,
        record.attempts,
        record.backend,
        record.tokens_in,
        record.tokens_out,
        record.queue_s,
        record.ttft_s,
        max(0.0, record.ended_at - record.received_at - record.queue_s) if dispatched else None,
    )


class Recorder:
    """Where the lines go. Nothing is made of a request while nobody records."""

    def __init__(self, sink: Sink | None) -> None:
        self._writer: LogWriter[TraceLine] = LogWriter(sink, encode)
        self.on = self._writer.on  # does anybody record?
        self.start: Callable[[], None] = self._writer.start
        self.close = self._writer.close

    def switch(self, sink: Sink | None) -> None:
        """From here on lines go to `sink`."""
        self._writer.switch(sink)
        self.on = self._writer.on

    def put(self, record: Record, request: Request) -> None:
        """Hands the line of an ended request to the writer; never blocks."""
        if self.on:
            self._writer.put(trace_line(record, request))

    @property
    def dropped(self) -> int:
        """Lines given up since the start: the disk was too slow."""
        return self._writer.dropped
