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


def _ms(seconds: float) -> float:
    return int(seconds * 1e6) / 1e3


def _ms_if_known(seconds: float | None) -> float | None:
    return None if seconds is None else int(seconds * 1e6) / 1e3


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
    return encode(
        Line(
            time=datetime.fromtimestamp(record.time_unix, UTC),
            id=record.id[:TEXT_MAX],
            tenant=record.tenant[:TEXT_MAX],
            lane=record.lane,
            pool=record.pool,
            rule=record.rule,
            model=record.model[:TEXT_MAX],
            platform=record.platform,
            backend=record.backend,
            attempts=record.attempts,
            hedges=record.hedges,
            continued=record.continued,
            outcome=_OUTCOMES[record.outcome],
            why=record.why[:TEXT_MAX],
            status=record.status,
            method=record.method[:TEXT_MAX],
            path=record.path[:TEXT_MAX],
            streamed=record.streamed,
            queue_ms=_ms(record.queue_s),
            connect_ms=_ms_if_known(record.connect_s),
            first_token_ms=_ms_if_known(record.ttft_s),
            total_ms=_ms(record.ended_at - record.received_at),
            tokens_in=record.tokens_in,
            tokens_out=record.tokens_out,
            tokens_source=record.tokens_source,
            bytes_in=record.bytes_in,
            bytes_out=record.bytes_out,
            retry_count=record.retry_count,
            trace_id=record.trace_id[:TEXT_MAX],
            peer=record.peer[:TEXT_MAX],
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
