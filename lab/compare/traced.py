"""How many bytes has the proxy allocated, by Python's own account? `python -m lab.compare.traced FILE`: serve that tells on SIGUSR1."""

from __future__ import annotations

import gc
import signal
import sys
import tracemalloc
from types import FrameType

from proxy.app import run


def _tell(number: int, frame: FrameType | None) -> None:
    gc.collect()
    print(f"traced {tracemalloc.get_traced_memory()[0]}", file=sys.stderr, flush=True)


def main() -> int:
    """The exit code of serve."""
    tracemalloc.start()
    signal.signal(signal.SIGUSR1, _tell)
    return run(sys.argv[1])


if __name__ == "__main__":
    sys.exit(main())
