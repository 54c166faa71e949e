"""Whose first token comes first? One attempt, and when its token is late perhaps a second one beside it.

The policies say when a token is late, and which idle backend may be asked as well; here both run until one is left. Whoever speaks first
is the answer; an attempt that fails while the other runs goes back quietly; the loser's connection and lease end in the step in which it
loses. The lease and attempt that the story holds are its own at every moment; what stands beside them is returned here, whatever happens.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from policies.model import Ending, Lease, Outcome, Ticket, Verdict
from proxy import clock
from proxy.telemetry import labels

if TYPE_CHECKING:
    from proxy.attempt import Attempt
    from proxy.edition import Pool
    from proxy.story import Story

LOST = Ending(Verdict.NEUTRAL, Outcome.CANCELLED, why="hedge lost")
TICK_S = 0.002  # the loop's timers count in milliseconds, and may ring a little early
_BROKEN = Ending(Verdict.NEUTRAL, Outcome.INTERNAL, why="internal")


class _Entrant:
    """One of the two: the right to its slot, the attempt, and the task that waits for its first token."""

    __slots__ = ("attempt", "lease", "task")

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.attempt: Attempt | None = None
        self.task: asyncio.Task[Ending | None] | None = None

    def start(self, story: Story, pool: Pool, attempt: Attempt) -> asyncio.Task[Ending | None]:
        """Send the request."""
        self.attempt = attempt
        self.task = story.service.loop.create_task(attempt.first_token(*story.request_for(attempt), pool.connect_s))
        return self.task


async def first_of_two(story: Story, pool: Pool, ticket: Ticket) -> Ending | None:
    """As `Attempt.first_token`, of the attempt that the story holds afterwards; the other's lease is back."""
    assert story.lease is not None and story.attempt is not None
    first = _Entrant(story.lease)
    beside: _Entrant | None = None
    result, ending = labels.HEDGE_CANCELLED, _BROKEN
    try:
        task = first.start(story, pool, story.attempt)
        lease = await _second(story, ticket, task)
        if lease is None:
            return await task
        beside = _Entrant(lease)
        attempt = story.attempt_at(pool, story.service.backend(lease.backend), lease.granted_at, story.attempt.total_at)
        story.sent_beside(ticket, lease)
        story.service.deadlines.watch(attempt)
        running = {task: first, beside.start(story, pool, attempt): beside}
        while True:
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for each in [running[task] for task in running if task in done]:  # the first is asked first
                assert each.task is not None
                failed = each.task.result()
                del running[each.task]
                if failed is None or not running or (each is first and failed.verdict is Verdict.NEUTRAL):
                    _keep(story, each)
                    ending = LOST
                    result = labels.HEDGE_FAILED if failed is not None else labels.HEDGE_WON if each is beside else labels.HEDGE_LOST
                    return failed
                _keep(story, *running.values())
                _leave(story, each, failed)
    except asyncio.CancelledError:
        ending = story.left_as
        raise
    finally:
        for each in (first, beside or first):
            if each.task is not None:
                each.task.cancel()  # whichever the story keeps: it is done, or the story is
        if beside is not None:
            for each in (first, beside):
                if each.attempt is not None:
                    story.service.deadlines.forget(each.attempt)
                if each.lease.live and each.lease is not story.lease:
                    _leave(story, each, ending)
            story.service.telemetry.hedged(pool.name, result)


async def _second(story: Story, ticket: Ticket, first: asyncio.Task[Ending | None]) -> Lease | None:
    """Wait until the first token is late. None: it came, or there is no second attempt."""
    service = story.service
    while (late_at := service.lobby.dispatcher.hedge_at(ticket, clock.now())) is not None:
        wait_s = late_at - clock.now()
        if wait_s <= 0.0:
            lease = service.lobby.hedge(ticket)
            if lease is None:
                service.telemetry.hedged(ticket.pool, labels.HEDGE_DENIED)
            return lease
        await asyncio.wait((first,), timeout=wait_s + TICK_S)
        if first.done():
            break
    return None


def _keep(story: Story, entrant: _Entrant) -> None:
    """This one is the story's own from now on."""
    story.lease, story.attempt = entrant.lease, entrant.attempt
    story.record.backend, story.record.platform = entrant.lease.backend, entrant.lease.platform


def _leave(story: Story, entrant: _Entrant, ending: Ending) -> None:
    """This one is over: its backend sees the connection close, its slot is free."""
    if entrant.task is not None:
        entrant.task.cancel()
    if entrant.attempt is not None:
        entrant.attempt.abandon()
    story.service.give_back(entrant.lease, ending)
    if story.trace is not None:
        story.trace.over(entrant.lease.backend, ending.why, clock.now())
