"""What becomes of a probe whose caller could not wait? Its backend is given its own time to the first token.

A restarted engine may need a minute for its first answer, and a caller has `first_token`. When that is over the caller goes on to
another backend, and the probe stays: slot, permit and connection. Its first token proves the backend and ends it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from policies.model import Ending, Lease, Outcome, Verdict
from proxy import clock
from proxy.attempt import Attempt

if TYPE_CHECKING:
    from proxy.service import Service

_PROVED = Ending(Verdict.NEUTRAL, Outcome.FIRST_TOKEN_TIMEOUT, why="late first token")
_ENDED_EARLY = Ending(Verdict.NEUTRAL, Outcome.DRAINING, why="ended early")


class LateProbes:
    """The probes that outlast their callers."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, lease: Lease, attempt: Attempt, ending: Ending) -> bool:
        """Is this failed attempt a probe that has time left? Then lease and attempt are kept here."""
        if not lease.probe or ending.outcome is not Outcome.FIRST_TOKEN_TIMEOUT or clock.now() >= lease.probe_until_at:
            return False
        task = self._service.loop.create_task(self._wait_on(lease, attempt))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    def close(self) -> None:
        """End them all."""
        for task in self._tasks:
            task.cancel()

    async def _wait_on(self, lease: Lease, attempt: Attempt) -> None:
        service = self._service
        ending = _ENDED_EARLY
        service.deadlines.watch(attempt)
        try:
            failed = await attempt.wait_on(lease.probe_until_at)
            if failed is None:
                service.lobby.first_token(lease)
            ending = failed or _PROVED
        finally:
            service.deadlines.forget(attempt)
            attempt.abandon()
            service.give_back(lease, ending)
