"""Who is waiting, and who is being served, since when? The document of /debug/requests: no prompt, no key, no secret."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from proxy.story import Story
from proxy.telemetry.view import instant

SHOWN_MAX = 1000  # the oldest ones
TEXT_MAX = 200  # characters of any value that a caller chose


def document(stories: Iterable[Story], now: float, wall: float) -> dict[str, Any]:
    """The requests under way, the oldest first."""
    found = sorted(stories, key=lambda story: story.record.received_at)
    waiting = sum(story.record.phase == "queued" for story in found)
    return {
        "time": instant(wall),
        "waiting": waiting,
        "in_flight": len(found) - waiting,
        "requests": [_shown(story, now) for story in found[:SHOWN_MAX]],
    }


def _shown(story: Story, now: float) -> dict[str, Any]:
    """`phase`: queued, first_token (sent, no token yet), streaming, unary. `tokens`: streamed so far, as counted on the way."""
    record, relay, attempt = story.record, story.relay, story.attempt
    waits = record.phase == "queued"
    since_at = (
        story.ticket.seat.since_at if waits and story.ticket is not None and story.ticket.answer is None and story.ticket.seat else None
    )
    waited_s = record.queue_s + (now - since_at if since_at is not None else 0.0)
    return {
        "id": record.id,
        "key": record.tenant,
        "lane": record.lane,
        "pool": record.pool,
        "platform": None if waits else record.platform or None,
        "backend": None if waits else record.backend or None,
        "phase": record.phase,
        "age_s": round(now - record.received_at, 3),
        "waited_s": round(waited_s, 3),
        "attempts": record.attempts,
        "model": record.model[:TEXT_MAX],
        "streamed": record.streamed,
        "prompt_tokens": story.reading.request.prompt_tokens,
        "max_tokens": story.reading.request.max_tokens,
        "tokens": attempt.watcher.tokens if attempt is not None and attempt.watcher is not None and not waits else None,
        "bytes_out": relay.bytes_out if relay is not None else 0,
        "why": record.why[:TEXT_MAX],
    }
