"""What happened lately? The last failovers, levers and reloads, and the last refusals, for the live page: bounded, whoever calls.

Refusals come in floods, so they are told in episodes: same pool, lane and outcome, with no pause of half a minute in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from policies.model import Outcome
from proxy.telemetry.record import Record

KEPT = 40
EPISODE_S = 30.0  # without another one, and the episode is over
TEXT_MAX = 300
NO_NEWS = frozenset({"resting", "levers_hold", "check"})  # events that come often, or are told elsewhere
NO_REFUSALS = frozenset({Outcome.OK, Outcome.CLIENT_GONE, Outcome.CANCELLED})

# How an event reads. Others are told by their fields.
_TEXTS = {
    "failed_over": "{pool}: {from} → {to} ({reason})",
    "ramping": "{pool}: {to} takes requests again, more and more of them",
    "failed_back": "{pool}: {to} serves again",
    "ejected": "{backend}: out ({why})",
    "recovered": "{backend}: healthy again",
    "platform_refuses": "{platform}: refuses our credential or model ({why})",
    "request_cancelled": "{id}: cancelled",
}


class Episode(msgspec.Struct, gc=False):
    """Requests that ended badly, one like the other."""

    pool: str
    lane: str
    outcome: str
    count: int
    first_unix: float
    last_unix: float
    last_id: str


class Recent:
    """The last of everything. `wall`: seconds since 1970."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._episodes: deque[Episode] = deque(maxlen=KEPT)
        self._latest: dict[tuple[str, str, Outcome], Episode] = {}
        self._events: deque[dict[str, Any]] = deque(maxlen=KEPT)

    def ended(self, record: Record) -> None:
        """A request did not get its answer."""
        if record.outcome in NO_REFUSALS:
            return
        key = (record.pool, record.lane, record.outcome)
        at = self._wall()
        episode = self._latest.get(key)
        if episode is None or at - episode.last_unix > EPISODE_S or (len(self._episodes) == KEPT and episode not in self._episodes):
            episode = self._latest[key] = Episode(record.pool, record.lane, record.outcome.value, 0, at, at, "")
            self._episodes.append(episode)
        episode.count += 1
        episode.last_unix = at
        episode.last_id = record.id[:64]

    def happened(self, level: str, event: str, fields: Mapping[str, Any]) -> None:
        """Something was said in the process log."""
        if event not in NO_NEWS:
            self._events.append({"time_unix": self._wall(), "level": level, "event": event, "text": _text(event, fields)[:TEXT_MAX]})

    def document(self) -> dict[str, Any]:
        """For the state: the newest first."""
        episodes = sorted(self._episodes, key=lambda episode: -episode.last_unix)
        return {"events": list(reversed(self._events)), "refusals": msgspec.to_builtins(episodes)}


def _text(event: str, fields: Mapping[str, Any]) -> str:
    template = _TEXTS.get(event)
    if template is not None:
        try:
            return template.format_map(fields)
        except (KeyError, ValueError):
            pass
    if event.startswith("lever_"):
        value = fields.get("platform", fields.get("max_streams", ""))
        return f"{fields.get('lever')} {fields.get('on')} {value}".rstrip()
    return ", ".join(f"{key} {_plain(value)}" for key, value in fields.items() if key != "traceback" and value not in ("", None, [], ()))


def _plain(value: Any) -> str:
    return "; ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
