"""Who is woken, and when does the timer ring? Hosts the dispatcher on the event loop.

A waiting request holds one future; each event resolves exactly the futures of those it settles; one timer serves the
earliest deadline. Nothing polls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from policies.dispatcher import Dispatcher
from policies.model import Ending, Lease, Outcome, Refusal, Ticket, Verdict
from proxy import clock

_LEFT = Ending(Verdict.NEUTRAL, Outcome.CLIENT_GONE)


class Lobby:
    """Where requests ask for a slot, wait for it, and give it back."""

    def __init__(self, dispatcher: Dispatcher, loop: asyncio.AbstractEventLoop, on_events: Callable[[Sequence[Any]], None]) -> None:
        self.dispatcher = dispatcher
        self._loop = loop
        self._on_events = on_events
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = clock.NEVER

    def enter(self, ticket: Ticket) -> Lease | Refusal | None:
        """Ask for a slot. None: `wait` for it. Whoever gets a lease owns it."""
        self._settle(self.dispatcher.arrive(ticket, clock.now()))
        return ticket.answer

    def again(self, ticket: Ticket, ending: Ending, *, sent: bool) -> Lease | Refusal | None:
        """Ask for another slot after a failed attempt whose lease is back. None: `wait` for it."""
        self._settle(self.dispatcher.again(ticket, ending, sent, clock.now()))
        return ticket.answer

    def resume(self, ticket: Ticket, lease: Lease, ending: Ending) -> Lease | Refusal | None:
        """Ask for a slot for the rest of a stream that broke, and whose lease is back. None: `wait` for it."""
        self._settle(self.dispatcher.resume(ticket, lease, ending, clock.now()))
        return ticket.answer

    def hedge(self, ticket: Ticket) -> Lease | None:
        """A slot of an idle backend for a second attempt beside the first, if there may be one. Whoever gets a lease owns it."""
        twin = Ticket(ticket.request, ticket.pool, ticket.arrived_at)
        self._settle(self.dispatcher.hedge(ticket, twin, clock.now()))
        return twin.answer if isinstance(twin.answer, Lease) else None

    def give_back(self, lease: Lease, ending: Ending) -> None:
        """The slot is free; the next ones go."""
        self._settle(self.dispatcher.give_back(lease, ending, clock.now()))

    def smoke(self, backend: str) -> Lease | None:
        """A slot of this backend for a smoke test, if it may be asked and has one. Whoever gets a lease owns it."""
        self._settle(self.dispatcher.tick(clock.now()))
        return self.dispatcher.smoke(backend, clock.now())

    def first_token(self, lease: Lease) -> None:
        """The first token has come."""
        self._settle(self.dispatcher.first_token(lease, clock.now()))

    def apply(self, event: Callable[..., Sequence[Ticket] | None], *arguments: Any) -> None:
        """Any other event of the dispatcher: `event(*arguments, now)`."""
        self._settle(event(*arguments, clock.now()) or ())

    async def wait(self, ticket: Ticket) -> Lease | Refusal:
        """Wait for the answer. Whoever gets a lease owns it."""
        ticket.host = self._loop.create_future()
        try:
            await ticket.host
        except BaseException:  # the caller left, or whatever else ends the story here
            if isinstance(ticket.answer, Lease):  # granted in the very moment the caller left
                self.give_back(ticket.answer, _LEFT)
            elif ticket.answer is None:
                self._settle(self.dispatcher.leave(ticket, clock.now()))
            raise
        finally:
            ticket.host = None
        assert ticket.answer is not None
        return ticket.answer

    def _settle(self, settled: Iterable[Ticket]) -> None:
        for ticket in settled:
            waiter = ticket.host
            if waiter is not None and not waiter.done():
                waiter.set_result(None)
        events = self.dispatcher.take_events()
        if events:
            self._on_events(events)
        next_at = self.dispatcher.next_at()
        if next_at is not None and next_at < self._timer_at:
            self._arm(next_at)

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_later(max(0.0, at - clock.now()), self._ring)

    def _ring(self) -> None:
        self._timer, self._timer_at = None, clock.NEVER
        self._settle(self.dispatcher.tick(clock.now()))

    def close(self) -> None:
        """No timer outlives the server."""
        if self._timer is not None:
            self._timer.cancel()
