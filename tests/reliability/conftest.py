"""On which loop do the cases run? On uvloop, as the server does: its transports are stricter than asyncio's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import uvloop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """For pytest-asyncio."""
    return {"uvloop": uvloop.new_event_loop}
