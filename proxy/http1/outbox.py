"""When do bytes leave? Together, once per turn of the loop: what is for backends first, then what is for callers.

A write to a peer that sleeps has to wake it, and on an idle core that costs more than the write itself. Written one by one, between
other work of ours, every piece finds its reader asleep again; written in a row, the first one wakes it and the rest finds it at work.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

AT_ONCE_BYTES = 16 * 1024  # a larger piece goes to its caller at once: a turn that reads from a thousand backends piles up no megabytes


class Sender(Protocol):
    """Who has a request for a backend."""

    def transmit(self, head: bytes, body: bytes) -> None:
        """Its turn to write."""


class Outbox:
    """What the present turn of the loop has to send."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._call_soon = loop.call_soon
        self._backends: deque[tuple[Sender, bytes, bytes]] = deque()
        self._callers: deque[tuple[Callable[[bytes], None], bytes]] = deque()
        self._awaited = False  # a flush is on its way

    def send(self, sender: Sender, head: bytes, body: bytes) -> None:
        """A request for a backend."""
        self._backends.append((sender, head, body))
        if not self._awaited:
            self._awaited = True
            self._call_soon(self.flush)

    def writer(self, transport: asyncio.Transport) -> Callable[[bytes], None]:
        """What writes to this caller from now on, in order. Whoever closes the transport asks for a `flush` before."""
        callers, write = self._callers, transport.write

        def put(data: bytes) -> None:
            callers.append((write, data))
            if len(data) > AT_ONCE_BYTES:
                self.flush()
            elif not self._awaited:
                self._awaited = True
                self._call_soon(self.flush)

        return put

    def flush(self) -> None:
        """Write all of it now. A write may call back, and that may ask for a flush: it goes on where this one stands."""
        self._awaited = False
        backends, callers = self._backends, self._callers
        while backends:
            sender, head, body = backends.popleft()
            sender.transmit(head, body)
        while callers:
            write, data = callers.popleft()
            try:
                write(data)
            except RuntimeError:  # uvloop's way to say that it has closed meanwhile
                pass
