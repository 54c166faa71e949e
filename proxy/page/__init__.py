"""What does the live page look like? One self-contained file, `live.html`, that reads /debug/state and /metrics of its own port."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def html() -> bytes:
    """The page as it is sent."""
    return files(__name__).joinpath("live.html").read_bytes()
