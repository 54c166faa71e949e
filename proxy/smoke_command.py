"""Does every backend of a file generate? `fairlane smoke FILE [PLATFORM]` asks each, with the file's own keys and model names."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from proxy import wiring
from proxy.http1.outbox import Outbox
from proxy.settings.loader import load
from proxy.settings.problems import SettingsError, did_you_mean
from proxy.settings.root import Settings
from proxy.smoke import Result, test


@dataclass(frozen=True, slots=True)
class Row:
    """One backend asked for one model."""

    platform: str
    backend: str
    result: Result

    def document(self) -> dict[str, object]:
        """What is printed as JSON; null: not known."""
        result = self.result
        ttft_ms = None if result.ttft_s is None else round(result.ttft_s * 1000, 3)
        names = {"platform": self.platform, "backend": self.backend, "model": result.model}
        return {**names, "ok": result.ok, "why": result.why, "outcome": result.ending.outcome, "ttft_ms": ttft_ms, "tokens": result.tokens}

    def __str__(self) -> str:
        result = self.result
        named = f"{self.platform} {self.backend} {result.model or '(no model)'}"
        if not result.ok:
            return f"FAILED  {named}: {result.why}"
        return f"ok      {named}: first token after {(result.ttft_s or 0.0) * 1000:.0f} ms, {result.tokens} tokens"


def run(path: str, platform: str | None, as_json: bool = False) -> int:
    """0: all answered; 1: one did not, or the file is invalid; 2: no such platform. Results on stdout, what is wrong on stderr."""
    try:
        settings = load(path, os.environ).settings
    except SettingsError as error:
        for problem in error.problems:
            print(problem, file=sys.stderr)
        return 1
    if platform is not None and platform not in settings.platforms:
        print(f"{path}: names no platform {platform}{did_you_mean(platform, settings.platforms)}", file=sys.stderr)
        return 2
    rows = asyncio.run(_ask_all(settings, platform, quiet=as_json))
    if as_json:
        print(json.dumps({"ok": all(row.result.ok for row in rows), "backends": [row.document() for row in rows]}))
    return 0 if all(row.result.ok for row in rows) else 1


async def _ask_all(settings: Settings, platform: str | None, *, quiet: bool) -> Sequence[Row]:
    """One backend after another, all models of one at a time; a line each as soon as it is known."""
    tests = [asks for asks in wiring.smoke_tests(settings).values() if platform in (None, asks.platform)]
    loop = asyncio.get_running_loop()
    backends = wiring.backends(settings, loop, Outbox(loop))
    rows: list[Row] = []
    try:
        for asks in tests:
            for name in asks.backends:
                for model in asks.models or (None,):
                    row = Row(asks.platform, name, await test(backends[name], asks, model))
                    rows.append(row)
                    if not quiet:
                        print(row, flush=True)
    finally:
        for backend in backends.values():
            backend.connections.close()
    await asyncio.sleep(0)  # the loop says goodbye to each transport in its next round
    return rows
