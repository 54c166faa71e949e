"""What does the person waiting see? One line on stderr that follows the step, or one line a step where stderr is no terminal."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from types import TracebackType
from typing import Any, TextIO

from lab.bench.drive import Step

REDRAW_EVERY_S = 0.25


class Progress:
    """Shows the step that runs. `begin` names it, `watch` is given its calls, `done` says what came of it."""

    def __init__(self, steps: int | None, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._steps = steps
        self._number = 0
        self._name = ""
        self._step: Step | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Progress:
        if self._live:
            self._task = asyncio.ensure_future(self._redraw())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        if self._task is not None:
            self._task.cancel()
            self._write("\r\x1b[K")

    def say(self, text: str) -> None:
        """A line that stays."""
        self._write(f"\r\x1b[K{text}\n" if self._live else f"{text}\n")

    def begin(self, name: str) -> None:
        """The next step."""
        self._number += 1
        self._name = f"[{self._number}{f'/{self._steps}' if self._steps else ''}] {name}"
        self._step = None

    def watch(self, step: Step) -> None:
        """Its calls, as they are made."""
        self._step = step

    def done(self, figures: dict[str, Any]) -> None:
        """What came of it, in one line."""
        requests = figures["requests"]
        parts = [f"{requests['answered']}/{requests['offered']} answered"]
        for name in ("ttft", "tpot"):
            if figures[f"{name}_s"]:
                parts.append(f"{name.upper()} p95 {figures[f'{name}_s']['p95'] * 1000:.0f} ms")
        parts.append(f"{figures['output_tokens_per_s']:.0f} tokens/s")
        if "slo_kept" in figures:
            parts.append("keeps the SLO" if figures["slo_kept"] else "misses the SLO")
        if figures["client"]["lagged"]:
            parts.append("THE CLIENT LAGGED")
        self._step = None
        self.say(f"{self._name}: {', '.join(parts)}")

    async def _redraw(self) -> None:
        while True:
            await asyncio.sleep(REDRAW_EVERY_S)
            if self._step is not None:
                self._write("\r\x1b[K" + self._line(self._step)[:150])

    def _line(self, step: Step) -> str:
        left_s = step.until_at - time.monotonic()
        when = f"{left_s:.0f} s left" if left_s > 0 else "waiting for the last answers"
        recent = [call.ttft_s for call in step.recent if call.ttft_s is not None]
        ttft = f", TTFT p50 {statistics.median(recent) * 1000:.0f} ms" if recent else ""
        counts = f"{len(step.calls)} sent, {step.answered} answered, {step.unanswered} not, {step.in_flight} in flight"
        return f"{self._name}: {when}, {counts}{ttft}"

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
