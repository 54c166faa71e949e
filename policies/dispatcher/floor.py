"""Who is dispatched, who is seated, who is turned away? The moves that every event is made of.

Each move leaves counts, agenda and answers in agreement; tickets whose answer it sets are added to `settled`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from math import inf

from policies.dispatcher.agenda import NEVER, Agenda
from policies.dispatcher.room import Room
from policies.dispatcher.site import Backend, Grant, Site
from policies.lanes import Lane, Seat, Serves, pick
from policies.model import Outcome, Refusal, Ticket
from policies.refusal import FALLBACK_S, retry_after_s
from policies.retries import Budget

NOTHING_TRIED: frozenset[str] = frozenset()
A_RETRY_ANYWHERE = frozenset({""})  # it has been tried, and excludes no backend: none is called so


class Floor:
    """The rooms and the platforms, and what moves between them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.agenda: Agenda[Seat | Backend | Site | Room] = Agenda()
        self.budget = Budget()
        self.sites: dict[str, Site] = {}
        self.rooms: dict[str, Room] = {}  # in the file's order, then those it no longer has
        self.waiting_bytes = 0  # bodies of those who take a place: a retry's is held anyway
        self.waiting_bytes_max = 0
        self.settled: list[Ticket] = []
        self._number = 0

    def number(self) -> int:
        """The next number: tickets and leases are numbered in the order of events."""
        self._number += 1
        return self._number

    # -- dispatched

    def grant(self, ticket: Ticket, room: Room, lane: Lane, backend: Backend, now: float) -> None:
        """The request goes to this backend."""
        self._number = number = self._number + 1
        slotless, retry = ticket.slotless, ticket.attempts > 0
        lease = Grant(number, room, backend, now, slotless=slotless, retry=retry)
        if not slotless:
            self._take(lease, now)
        room.granted(ticket, lane, backend.site, lease, now)
        self.budget.granted(retry)
        ticket.attempts += 1
        ticket.answer = lease
        self.settled.append(ticket)

    def grant_beside(self, ticket: Ticket, twin: Ticket, room: Room, backend: Backend, now: float) -> Grant:
        """The request goes to this backend as well, which is idle. It counts as a retry: of attempts, and of the budget."""
        lease = Grant(self.number(), room, backend, now, slotless=False, retry=True)
        self._take(lease, now)
        room.in_flight += 1
        self.budget.granted(True)
        ticket.attempts += 1
        ticket.tried |= {backend.name}
        twin.attempts = ticket.attempts
        twin.answer = lease
        self.settled.append(twin)
        return lease

    def grant_smoke(self, backend: Backend, now: float) -> Grant:
        """A smoke generation goes to this backend, which has room for it."""
        lease = Grant(self.number(), None, backend, now, slotless=False, retry=False)
        self._take(lease, now)
        self.budget.granted(False)
        return lease

    def _take(self, lease: Grant, now: float) -> None:
        backend = lease.home
        health = backend.health
        lease.probe = health.granted(lease.number, now)
        backend.slots.take(lease)
        backend.site.touch(backend)
        if lease.probe:
            lease.probe_until_at = now + health.probe_deadline_s()
            self.agenda.enter(backend, health.next_at())

    def grant_slotless(self, ticket: Ticket, room: Room, lane: Lane, serves: Serves, now: float) -> None:
        """The request takes no slot: it goes to the best backend that is open, full or not, or is refused."""
        tried = ticket.tried
        good_only = bool(tried) and not self.budget.allows()
        for site in room.order:
            if site.refuses or not site.serves(serves):
                continue
            backend = site.best(tried, good_only) or (None if good_only else site.best_starting(tried))
            if backend is not None:
                self.grant(ticket, room, lane, backend, now)
                return
        self.refuse(ticket, self.no_backend(room, serves, now))

    def let_in(self, rooms: Iterable[Room], now: float) -> None:
        """Dispatches those who may go, until nobody may. Earlier rooms first."""
        for room in rooms:
            if room.waiting:
                self._fill(room, now)
        budget = self.budget
        while budget.withheld and budget.allows():
            budget.withheld = False
            for room in self.rooms.values():
                self._fill(room, now)

    def _fill(self, room: Room, now: float) -> None:
        while room.waiting and room.has_room and (picked := pick(room.lanes, room.find, room.bars_retries)) is not None:
            self._call(picked[0], picked[1], room, now)

    def _call(self, seat: Seat, backend: Backend, room: Room, now: float) -> None:
        assert seat.line is not None
        lane = seat.line.lane
        self.grant(self.unseat(seat, room, now), room, lane, backend, now)

    # -- seated

    def sit(self, ticket: Ticket, room: Room, lane: Lane, serves: Serves, due_at: float, now: float) -> None:
        """The request waits, until then at most."""
        seat: Seat = ticket.seat
        seat.ticket = ticket
        seat.since_at = now
        if not ticket.tried:
            self.waiting_bytes += ticket.request.body_bytes
        lane.add(seat, serves, ticket.tried)
        room.waiting += 1
        self.agenda.enter(seat, due_at)

    def unseat(self, seat: Seat, room: Room, now: float) -> Ticket:
        """It waits no longer, whatever comes next."""
        ticket, line = seat.ticket, seat.line
        assert ticket is not None and line is not None, "the seat does not wait"
        line.lane.remove(seat)
        room.waiting -= 1
        seat.ticket = None
        seat.due_at = NEVER
        ticket.waited_s += now - seat.since_at
        if not ticket.tried:
            self.waiting_bytes -= ticket.request.body_bytes
        return ticket

    def make_place(self, ticket: Ticket, room: Room, lane: Lane, serves: Serves, due_at: float, now: float) -> bool:
        """Is there a place for this arrival? Else it is refused, or (overflow) dispatched.

        In a pool that overflows, whoever goes next goes to the standby before anybody is refused or pushed out.
        """
        while True:
            wait_s = room.wait_s(lane, lane.waiting, now)
            too_long = wait_s is not None and wait_s > lane.max_wait_s
            bytes_over = self.waiting_bytes + ticket.request.body_bytes - self.waiting_bytes_max
            if not (too_long or room.full or bytes_over > 0):
                return True
            if not (room.plan.overflow and self._overflow(ticket, room, lane, serves, due_at, now)):
                break
            if ticket.answer is not None:
                return False
        victim = None if too_long else room.victim_below(lane) or (room.victim_above(lane) if room.full else None)
        if victim is None or victim.ticket is None or victim.ticket.request.body_bytes < bytes_over:
            self.refuse(ticket, self.hint(Outcome.QUEUE_FULL, room, lane, now))
            return False
        place = room.lane(victim.lane)
        self.refuse(self.unseat(victim, room, now), self.hint(Outcome.DISPLACED, room, place, now))
        return True

    def _overflow(self, ticket: Ticket, room: Room, lane: Lane, serves: Serves, due_at: float, now: float) -> bool:
        """Sends whoever goes next to a platform behind: somebody who waits, else this arrival."""
        picked = pick(room.lanes, room.find_beyond)
        if picked is not None:
            self._call(*picked, room, now)
            return True
        backend = room.seek(serves, NOTHING_TRIED, due_at, lane.floor, good_only=False, beyond=True)
        if backend is not None:
            self.grant(ticket, room, lane, backend, now)
        return backend is not None

    # -- turned away

    def refuse(self, ticket: Ticket, refusal: Refusal) -> None:
        """It ends here. A retry ends with its own failure, whatever kept it from being tried again."""
        ticket.answer = refusal if ticket.last_ending is None else Refusal(ticket.last_ending.outcome)
        self.settled.append(ticket)

    def expire(self, seat: Seat, now: float) -> None:
        """Its time is up."""
        assert seat.ticket is not None and seat.line is not None
        room = self.rooms[seat.ticket.pool]
        line = seat.line
        backend = room.find_beyond(line, seat) if room.plan.overflow else None
        ticket = self.unseat(seat, room, now)
        if backend is not None:
            self.grant(ticket, room, line.lane, backend, now)
        else:
            self.refuse(ticket, self.hint(Outcome.QUEUE_TIMEOUT, room, line.lane, now))

    def dissolve(self, room: Room, now: float) -> None:
        """The room is gone, with every platform that served it."""
        for seat in [seat for lane in room.lanes for seat in lane.seats()]:
            self.refuse(self.unseat(seat, room, now), Refusal(Outcome.NO_BACKEND, retry_after_s(FALLBACK_S, self.random)))

    def expel(self, now: float) -> None:
        """Everybody who waits is refused as draining, in order of arrival."""
        seats = [(seat, room) for room in self.rooms.values() for lane in room.lanes for seat in lane.seats()]
        for seat, room in sorted(seats, key=lambda pair: pair[0].order):
            ticket = self.unseat(seat, room, now)
            ticket.answer = Refusal(Outcome.DRAINING, retry_after_s(FALLBACK_S, self.random))
            self.settled.append(ticket)

    def turn_away(self, room: Room, now: float) -> None:
        """Refuses those who wait for backends that are all gone."""
        if room.keeps_all():
            return
        for lane in room.lanes:
            for line in lane.lines():
                if not room.may_serve(line.serves, line.tried):
                    for seat in sorted(line, key=lambda seat: seat.order):
                        self.refuse(self.unseat(seat, room, now), self.no_backend(room, line.serves, now))

    def hint(self, outcome: Outcome, room: Room, lane: Lane, now: float) -> Refusal:
        """A refusal with the wait that this lane's callers have before them."""
        return Refusal(outcome, retry_after_s(room.hint_s(lane, now), self.random))

    def no_backend(self, room: Room, serves: Serves, now: float) -> Refusal:
        """A refusal with the time until the first of the backends may be tried again, if that is known."""
        opens_at = min((site.opens_at() for site in room.sites if site.serves(serves)), default=inf)
        return Refusal(Outcome.NO_BACKEND, retry_after_s(FALLBACK_S if opens_at == inf else opens_at - now, self.random))
