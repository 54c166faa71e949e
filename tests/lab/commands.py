"""How do tests of the lab run Fairlane as a user does? Commands as processes of their own; a server's address from what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-m", "proxy")
ADDRESS = re.compile(r'on (https?://[\d.:]+)|"listen":"([\d.:]+)"')


def fairlane(*arguments: str, timeout_s: float = 60.0, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """One command, to its end."""
    return subprocess.run([*COMMAND, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False, env=environ)


@contextmanager
def listening(*arguments: str) -> Iterator[str]:
    """`engine` or `serve`, until the end of the block; its URL."""
    child = subprocess.Popen([*COMMAND, *arguments], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert child.stderr is not None
    said = ""
    try:
        for line in child.stderr:
            said += line
            if (match := ADDRESS.search(line)) is not None:
                break
        else:
            raise AssertionError(said)
        rest = Thread(target=child.stderr.read)  # so that it never waits for a reader
        rest.start()
        yield match[1] or f"http://{match[2]}"
    finally:
        child.terminate()
        assert child.wait(30) == 0, said
        rest.join()
        child.stderr.close()
