"""What happened to Fairlane itself? The process log: one JSON line on stderr per failover, ejection, reload, start and stop."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec

from proxy.telemetry.access_log import encode
from proxy.telemetry.log_writer import LogWriter

_WORD_BEGINS = re.compile(r"(?<=[a-z])(?=[A-Z])")


class ProcessLog:
    """The operator's log. Values must never be secrets; every line has time, level and event."""

    def __init__(self, writer: LogWriter, wall: Callable[[], float]) -> None:
        self._writer = writer
        self._wall = wall

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
        """What the dispatcher says has changed, frozen dataclasses or named tuples: `FailedOver(pool=...)` is logged as `failed_over`."""
        for event in events:
            name = _WORD_BEGINS.sub("_", type(event).__name__).lower()
            fields = dataclasses.asdict(event) if dataclasses.is_dataclass(event) and not isinstance(event, type) else event._asdict()
            self._say("info" if name in ("recovered", "failed_back", "ramping", "resting") else "warning", name, fields)

    def _say(self, level: str, event: str, fields: dict[str, Any]) -> None:
        said = {key.rstrip("_"): value for key, value in fields.items()}
        time = datetime.fromtimestamp(self._wall(), UTC)
        self._writer.say(encode(msgspec.to_builtins({"time": time, "level": level, "event": event, **said}, enc_hook=str)))
