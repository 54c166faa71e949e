"""What drives the contestants, and what answers behind them? Two small C programs, built for each run, and wrk."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.compare.processes import require_free

HERE = Path(__file__).resolve().parent
PROGRAMS = ("engine", "streams")


class NotInstalled(Exception):
    """A tool is missing; the text says how to get it."""


def build(folder: Path) -> None:
    """Compile the engine and the streaming client into `folder`. Raises NotInstalled."""
    if shutil.which("cc") is None:
        raise NotInstalled("no C compiler: the engine and the client cannot be built (apt-get install gcc)")
    for name in PROGRAMS:
        subprocess.run(["cc", "-O2", "-o", str(folder / name), str(HERE / f"{name}.c")], check=True)


@contextmanager
def engine(folder: Path, port: int, gap_us: int, ttft_us: int) -> Iterator[None]:
    """The fake engine runs until the block ends: a token every `gap_us`, the first after `ttft_us`. OSError: the port is in use."""
    require_free(port, "the engine")
    process = subprocess.Popen([str(folder / "engine"), str(port), str(gap_us), str(ttft_us)])
    try:
        yield
    finally:
        process.kill()
        process.wait()
