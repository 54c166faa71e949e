"""What does the log say about one request? One JSON line, safe to print, without prompt or key."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import msgspec

from policies.model import Outcome
from proxy.telemetry.log_writer import LogWriter
from proxy.telemetry.record import Record

TEXT_MAX = 200  # characters of any value that a caller chose

# Lines of callers who were turned away before anyone knew who they are: that many at once, then so many per second; the metrics count all.
STRANGERS_BURST = 5_000
STRANGERS_PER_S = 100.0


class Line(msgspec.Struct):
    """The fields of a line, in their order. Durations in milliseconds; null: not known or did not happen."""

    time: datetime
    id: str
    tenant: str
    lane: str
    pool: str
    rule: str
    model: str
    platform: str
    backend: str
    attempts: int
    hedges: int
    continued: int
    outcome: str
    why: str
    status: int
    method: str
    path: str
    streamed: bool
    queue_ms: float
    connect_ms: float | None
    first_token_ms: float | None
    total_ms: float
    tokens_in: int
    tokens_out: int
    tokens_source: str
    bytes_in: int
    bytes_out: int
    retry_count: int
    trace_id: str
    peer: str


_OUTCOMES = {outcome: outcome.value for outcome in Outcome}  # an enum's value is slow to reach


def encode(value: object) -> bytes:
    """One line of JSON. Control characters, and all but ASCII, are escaped: a log is read in terminals."""
    try:
        line = msgspec.json.encode(value)
    except UnicodeEncodeError:  # half of a surrogate pair
        line = b"\xff"
    if not line.isascii() or b"\x7f" in line:
        line = json.dumps(msgspec.to_builtins(value), separators=(",", ":")).encode().replace(b"\x7f", b"\\u007f")
    return line + b"\n"


def line(record: Record) -> bytes:
    """The access log's line for a request that has ended."""
    received_at, first_token_at, connect_s = record.received_at, record.first_token_at, record.connect_s
    return encode(
        Line(  # by position, and milliseconds without a call: a third cheaper, and each request pays it
            datetime.fromtimestamp(record.time_unix, UTC),
            record.id[:TEXT_MAX],
            record.tenant[:TEXT_MAX],
            record.lane,
            record.pool,
            record.rule,
            record.model[:TEXT_MAX],
            record.platform,
            record.backend,
            record.attempts,
            record.hedges,
            record.continued,
            _OUTCOMES[record.outcome],
            record.why[:TEXT_MAX],
            record.status,
            record.method[:TEXT_MAX],
            record.path[:TEXT_MAX],
            record.streamed,
            int(record.queue_s * 1e6) / 1e3,
            None if connect_s is None else int(connect_s * 1e6) / 1e3,
            None if first_token_at is None else int((first_token_at - received_at) * 1e6) / 1e3,
            int((record.ended_at - received_at) * 1e6) / 1e3,
            record.tokens_in,
            record.tokens_out,
            record.tokens_source,
            record.bytes_in,
            record.bytes_out,
            record.retry_count,
            record.trace_id[:TEXT_MAX],
            record.peer[:TEXT_MAX],
        )
    )


class AccessLog:
    """Which requests get a line? All, save a flood of strangers: they may not fill the disk."""

    def __init__(self, writer: LogWriter[Record]) -> None:
        self._writer = writer
        self._allowance: float = STRANGERS_BURST
        self._counted_at = 0.0

    def put(self, *records: Record) -> None:
        """Hands the lines of requests that have ended to the writer, in their order; never blocks."""
        wanted = [record for record in records if record.tenant or record.pool or self._may_log_stranger(record.ended_at)]
        self._writer.give_up(len(records) - len(wanted))
        self._writer.put(*wanted)

    def _may_log_stranger(self, now: float) -> bool:
        self._allowance = min(STRANGERS_BURST, self._allowance + (now - self._counted_at) * STRANGERS_PER_S)
        self._counted_at = now
        if self._allowance < 1.0:
            return False
        self._allowance -= 1.0
        return True
