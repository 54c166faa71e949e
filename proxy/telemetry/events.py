"""What happened to Fairlane itself? The process log: one JSON line on stderr per failover, ejection, reload, start and stop."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec

from proxy import clock
from proxy.telemetry.access_log import encode
from proxy.telemetry.log_writer import LogWriter
from proxy.telemetry.recent import Recent
from proxy.telemetry.record import Record

GOOD_OR_USUAL = frozenset({"recovered", "failed_back", "ramping", "proving", "resting"})
_WORD_BEGINS = re.compile(r"(?<=[a-z])(?=[A-Z])")


class ProcessLog:
    """The operator's log. Values must never be secrets; every line has time, level and event."""

    def __init__(
        self,
        writer: LogWriter[Record],
        wall: Callable[[], float] = clock.wall,
        now: Callable[[], float] = clock.now,
        recent: Recent | None = None,
    ) -> None:
        self._writer = writer
        self._wall = wall
        self._now = now
        self._recent = recent

    def info(self, event: str, **fields: Any) -> None:
        """Something went as intended."""
        self._say("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Something needs a look, and the service goes on."""
        self._say("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Something failed."""
        self._say("error", event, fields)

    def events(self, events: Iterable[Any]) -> None:
        """What the dispatcher says has changed, as frozen dataclasses: `Ejected(until_at=...)` is logged as `ejected`, `until` a date."""
        for event in events:
            name = _WORD_BEGINS.sub("_", type(event).__name__).lower()
            fields = dict(self._dated(key, value) for key, value in dataclasses.asdict(event).items())
            self._say("info" if name in GOOD_OR_USUAL else "warning", name, fields)

    def _dated(self, key: str, value: Any) -> tuple[str, Any]:
        """Instants of the monotonic clock mean nothing to a reader."""
        if not key.endswith("_at"):
            return key, value
        return key.removesuffix("_at"), None if value is None else _date(self._wall() + value - self._now())

    def _say(self, level: str, event: str, fields: dict[str, Any]) -> None:
        said = {key.rstrip("_"): value for key, value in fields.items()}
        if self._recent is not None:
            self._recent.happened(level, event, said)
        self._writer.say(encode(msgspec.to_builtins({"time": _date(self._wall()), "level": level, "event": event, **said}, enc_hook=str)))


def _date(wall: float) -> datetime:
    return datetime.fromtimestamp(wall, UTC)
