"""What stands at the head of an answer to a caller? The backend's fields, and ours beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proxy.endpoints import Api
from proxy.http1.exchange import Exchange
from proxy.telemetry.record import Record

if TYPE_CHECKING:
    from proxy.attempt import Attempt
    from proxy.edition import Edition
    from proxy.intake import Reading

_ANTHROPIC = Api.ANTHROPIC


def answer_head(edition: Edition, record: Record, attempt: Attempt, reading: Reading) -> bytes:
    """The head of a backend's answer, without its framing and the blank line."""
    head = attempt.answer_head
    assert head is not None
    parts = [head.lines]
    if attempt.watching:
        parts.append(head.stream_lines)  # nginx before us would buffer otherwise
    connect_ms = (record.connect_s or 0.0) * 1000
    parts.append(
        b"x-request-id: %b\r\n%bx-fairlane-queue-ms: %d\r\nx-fairlane-attempts: %d\r\n"
        b"server-timing: queue;dur=%.1f, connect;dur=%.1f, backend;dur=%.1f\r\n"
        % (
            record.id.encode(),
            edition.pools[record.pool].fields[reading.request.lane],
            record.queue_s * 1000,
            record.attempts,
            record.queue_s * 1000,
            connect_ms,
            (attempt.token_at - attempt.sent_at) * 1000,
        )
    )
    if reading.endpoint.api is _ANTHROPIC:
        parts.append(b"request-id: %b\r\n" % record.id.encode())
    if edition.expose:
        sent = attempt.model or ""
        parts.append(b"x-fairlane-backend: %b\r\nx-fairlane-model: %b\r\n" % (record.backend.encode(), sent.encode("ascii", "replace")))
    return b"".join(parts)


def framing(exchange: Exchange, length_bytes: int | None, *, chunked: bool) -> bytes:
    """The fields that tell the caller where the answer ends. One of no known length to HTTP/1.0 ends with its connection."""
    if chunked:
        lines = b"transfer-encoding: chunked\r\n"
    elif length_bytes is not None:
        lines = b"content-length: %d\r\n" % length_bytes
    else:
        lines = b""
        exchange.keep_alive = False
    if not exchange.keep_alive:
        lines += b"connection: close\r\n"
    elif exchange.head.version == "1.0":
        lines += b"connection: keep-alive\r\n"
    return lines


def refusal_fields(record: Record) -> list[tuple[bytes, bytes]]:
    """Our own fields on an answer of ours to a request that reached a pool."""
    queue_ms = record.queue_s * 1000
    return [
        (b"x-fairlane-lane", record.lane.encode()),
        (b"x-fairlane-pool", record.pool.encode()),
        (b"x-fairlane-queue-ms", b"%d" % queue_ms),
        (b"x-fairlane-attempts", b"%d" % record.attempts),
        (b"server-timing", b"queue;dur=%.1f" % queue_ms),
    ]
