"""Who reads a body of many megabytes, so that the streams beside it go on? A thread of its own, one body after the other.

Reading holds the interpreter for some five milliseconds a megabyte. In a thread it gives it up between its steps, and the loop, which has a
thousand streams to serve, takes its turn there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from proxy.edition import Edition
from proxy.http1.exchange import Exchange
from proxy.intake import Admitted, Reading, Refused

LARGE_BYTES = 1024 * 1024  # below this, handing over costs more than it spares


class Job:
    """One body being read, or waiting for its turn. Cancelled when its caller leaves."""

    __slots__ = ("admitted", "edition", "exchange", "left", "reading", "received_at", "request_id")

    reading: Reading | Refused

    def __init__(self, exchange: Exchange, received_at: float, request_id: str, edition: Edition, admitted: Admitted) -> None:
        self.exchange = exchange
        self.received_at = received_at
        self.request_id = request_id
        self.edition = edition
        self.admitted = admitted
        self.left = False

    def read(self) -> None:
        """In the thread."""
        self.reading = self.edition.reception.read(self.exchange.body, self.admitted, self.request_id)

    def cancel(self) -> None:
        """Nobody waits for it any more; its turn passes all the same."""
        self.left = True


class LargeBodies:
    """The bodies that are being read. `done` is called on the loop for each, in the order in which they came."""

    def __init__(self, loop: asyncio.AbstractEventLoop, done: Callable[[Job], None]) -> None:
        self._loop = loop
        self._done = done
        self._thread = ThreadPoolExecutor(1, "large-bodies")  # started by the first of them
        self.jobs: set[Job] = set()

    def put(self, job: Job) -> None:
        """Read this one when its turn has come."""
        job.exchange.task = job
        self.jobs.add(job)
        self._loop.run_in_executor(self._thread, job.read).add_done_callback(lambda future: self._over(job, future))

    def _over(self, job: Job, future: asyncio.Future[None]) -> None:
        self.jobs.discard(job)
        job.exchange.task = None
        if future.cancelled():
            return
        try:
            future.result()
            self._done(job)
        except BaseException:
            job.exchange.abort()
            raise

    def close(self) -> None:
        """What has not begun is not read."""
        self._thread.shutdown(wait=True, cancel_futures=True)
