"""How do lines reach a file or a pipe without the event loop ever waiting for it?

The loop appends to a bounded queue; one thread formats and writes. When the reader of our log is slow, or the disk is full, lines are
given up and counted, and requests are served as ever.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable
from itertools import groupby
from typing import Generic, NamedTuple, TypeVar

LINES_MAX = 10_000  # access log lines held at once: a second of a busy server, some 5 MB
NOTICES_MAX = 1_000  # process log lines held beyond those: a flood of requests must not push out the reason for it
BATCH_LINES = 128  # formatted at a stretch, then written: the thread holds the interpreter for about half a millisecond
GATHER_S = 0.05  # how long lines gather: the loop wakes the thread at most twenty times a second

STDOUT = 1
STDERR = 2


class Sink(NamedTuple):
    """Where lines go. `owned`: opened by us, to be closed by us."""

    descriptor: int
    owned: bool = False


def open_sink(destination: str) -> Sink | None:
    """Opens `stderr`, `stdout`, `off` (None) or a file, to be appended to. Raises OSError if the file cannot be opened."""
    if destination == "off":
        return None
    if destination in ("stderr", "stdout"):
        return Sink(STDERR if destination == "stderr" else STDOUT)
    return Sink(os.open(destination, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640), owned=True)


class _Switch(NamedTuple):
    sink: Sink | None


R = TypeVar("R")


class LogWriter(Generic[R]):
    """One queue and one thread for both logs, so that lines never cut into one another. `line` makes a line of what is put."""

    def __init__(self, sink: Sink | None, line: Callable[[R], bytes], *, lines_max: int = LINES_MAX, notices: Sink | None = None) -> None:
        self._sink = sink
        self.on = sink is not None  # does anybody want lines?
        self._line = line
        self._lines_max = lines_max
        self._notices = notices or Sink(STDERR)
        self._items: deque[R | bytes | _Switch] = deque()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._given_up = 0  # by the loop's thread
        self._lost = 0  # by the writing thread
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)

    def start(self) -> None:
        """Begins to write. Lines put before are kept."""
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Lines that were given up, since the start."""
        return self._given_up + self._lost

    def give_up(self, lines: int) -> None:
        """Counts lines that the caller decided not to put."""
        self._given_up += lines

    def put(self, *records: R) -> None:
        """A line of the access log for each. Never blocks; counts those as dropped for which too many are waiting."""
        if not self.on:
            return
        kept = records[: max(0, self._lines_max - len(self._items))]
        self._given_up += len(records) - len(kept)
        if kept:
            self._items.extend(kept)
            if not self._wake.is_set():
                self._wake.set()

    def say(self, line: bytes) -> None:
        """One line of the process log, to stderr whatever the access log's destination. Never blocks."""
        if len(self._items) >= self._lines_max + NOTICES_MAX:
            self._given_up += 1
            return
        self._items.append(line)
        self._wake.set()

    def switch(self, sink: Sink | None) -> None:
        """From here on lines go to `sink`, also if it is the same file under its name again (log rotation)."""
        self.on = sink is not None
        self._items.append(_Switch(sink))
        self._wake.set()

    def close(self, timeout_s: float = 2.0) -> None:
        """Writes what is waiting and ends; gives up after `timeout_s` if nobody reads."""
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            self._wake.wait()
            closing = self._closing.wait(GATHER_S)
            self._wake.clear()  # before looking: what is appended from here on wakes us again
            while self._items:
                self._write(self._batch())
            if closing:
                self._turn_to(None)
                return

    def _batch(self) -> list[R | bytes | _Switch]:
        return [self._items.popleft() for _ in range(min(BATCH_LINES, len(self._items)))]

    def _write(self, items: list[R | bytes | _Switch]) -> None:
        for kind, group in groupby(items, type):
            if kind is _Switch:
                for item in group:
                    self._turn_to(item.sink if isinstance(item, _Switch) else None)
            elif kind is bytes:
                self._write_all(self._notices, [item for item in group if isinstance(item, bytes)])
            elif self._sink is not None:
                self._write_all(self._sink, [self._line(item) for item in group if not isinstance(item, bytes | _Switch)])

    def _turn_to(self, sink: Sink | None) -> None:
        if self._sink is not None and self._sink.owned:
            os.close(self._sink.descriptor)
        self._sink = sink

    def _write_all(self, sink: Sink, lines: list[bytes]) -> None:
        rest = memoryview(b"".join(lines))
        try:
            while rest:
                try:
                    rest = rest[os.write(sink.descriptor, rest) :]
                except BlockingIOError:  # a terminal or pipe that someone made non-blocking
                    select.select((), (sink.descriptor,), (), 1.0)
        except OSError:  # disk full, reader gone: the proxy goes on without its log
            self._lost += bytes(rest).count(b"\n")
