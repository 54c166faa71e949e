"""What does each event lead to? One method per event, each complete in itself.

An arrival is dispatched, seated or refused; a lease that comes back lets the next ones in; a change of health sends waiting requests
elsewhere or away. Decide and take are one synchronous step.
"""

from __future__ import annotations

from collections.abc import Sequence

from policies.continuation import CUTS
from policies.dispatcher import beside, onward
from policies.dispatcher.floor import A_RETRY_ANYWHERE, NOTHING_TRIED, Floor
from policies.dispatcher.levers import Levers
from policies.dispatcher.migration import take_over
from policies.dispatcher.site import Backend, Grant
from policies.dispatcher.snapshot import snapshot
from policies.dispatcher.state import Event, State
from policies.dispatcher.ward import Ward
from policies.lanes import Seat
from policies.model import Ending, Lease, Outcome, Plan, Refusal, Ticket, Verdict
from policies.refusal import FALLBACK_S, retry_after_s
from policies.retries import attempts_allowed, may_pay_twice, may_retry
from policies.slots import LeaseReturned

_OK, _FAILED, _REFUSES_US = Verdict.OK, Verdict.FAILED, Verdict.REFUSES_US  # looked up once


class Dispatcher:
    """Composes lanes, slots, selection, health, failover and retries. Times are seconds on one monotonic clock.

    KeyError: a pool of the plan names no platform of it.
    """

    def __init__(self, plan: Plan, now: float, seed: int = 0) -> None:
        self._floor = Floor(seed)
        self._ward = Ward(self._floor)
        self._due = self._floor.agenda.heap
        self._levers = Levers()
        self._closed = False
        self._expelled = False
        take_over(self._floor, self._ward, plan, self._levers, now)

    def _begin(self, now: float) -> None:
        """Every event begins with what time has brought, and with nobody settled. (The frequent ones spell it out.)"""
        self._floor.settled = []
        if self._due and self._due[0][0] <= now:
            self._ward.advance(now)

    # -- the passage of a request

    def arrive(self, ticket: Ticket, now: float) -> Sequence[Ticket]:
        """A request arrives at its pool. Afterwards its answer is a lease, a refusal, or None: it waits."""
        floor = self._floor
        floor.settled = []
        if self._due and self._due[0][0] <= now:
            self._ward.advance(now)
        room = floor.rooms.get(ticket.pool)
        if room is None or room.retired:
            floor.refuse(ticket, Refusal(Outcome.NOT_FOUND))
            return floor.settled
        request = ticket.request
        lanes = room.lanes
        lane = lanes[request.lane] if request.lane < len(lanes) else lanes[-1]
        floor._number = number = floor._number + 1
        ticket.seat = Seat(number, lane.name)
        room.load.arrived(now)
        serves = room.serves(request)
        due_at = now + lane.max_wait_s
        if self._closed:
            floor.refuse(ticket, Refusal(Outcome.DRAINING, retry_after_s(FALLBACK_S, floor.random)))
        elif serves is not None and not serves:
            floor.refuse(ticket, Refusal(Outcome.NOT_FOUND))
        elif ticket.slotless:
            floor.grant_slotless(ticket, room, lane, serves, now)
        elif (not room.waiting or room.has_room) and (
            backend := (room.warms and room.cold(ticket, lane, serves))
            or room.seek(serves, NOTHING_TRIED, due_at, lane.floor, good_only=False)
        ):
            floor.grant(ticket, room, lane, backend, now)
        elif not room.may_serve(serves, NOTHING_TRIED):
            floor.refuse(ticket, floor.no_backend(room, serves, now))
        elif floor.make_place(ticket, room, lane, serves, due_at, now):
            floor.sit(ticket, room, lane, serves, due_at, now)
        if room.ramping or floor.budget.withheld:  # both may now allow what they did not before
            floor.let_in((room,), now)
        return floor.settled

    def give_back(self, lease: Lease, ending: Ending, now: float) -> Sequence[Ticket]:
        """An attempt has ended, this way. Exactly once per lease: the second call raises LeaseReturned and changes nothing."""
        if not isinstance(lease, Grant) or not lease.live:
            raise LeaseReturned(f"lease {lease.number} was given back before")
        floor, ward = self._floor, self._ward
        floor.settled = []
        if self._due and self._due[0][0] <= now:
            ward.advance(now)
        backend = lease.home
        site = backend.site
        backend.slots.give_back(lease)
        floor.budget.ended(lease.retry)
        if lease.room is not None:
            lease.room.returned(now - lease.granted_at, lease.slotless, now)
        verdict = ending.verdict
        failed = verdict is _FAILED
        change = backend.health.ended(lease, ending, now, not failed or site.health.may_eject(backend.name, site.backed))
        if failed or verdict is _OK:
            if backend.good is failed:
                ward.learn(backend, not failed)
        elif verdict is _REFUSES_US:
            ward.refused(backend, ending, now)
        site.touch(backend)
        if change or verdict is _REFUSES_US:
            ward.changed(backend, change, now)
            ward.conclude(now)
        else:
            floor.let_in(site.rooms, now)
        return floor.settled

    def again(self, ticket: Ticket, ending: Ending, sent: bool, now: float) -> Sequence[Ticket]:
        """After `give_back` of an attempt that failed before the first token: may it be tried again?

        Its answer is then a lease, the refusal with the failure's own outcome, or None: it waits at the head of its lane, for a slot or
        for the retry budget. `sent`: the request had been sent completely. A probe's lease may stay out: its backend may need longer
        than its caller can wait. ValueError: another's lease has not come back.
        """
        failed = ticket.answer
        if not isinstance(failed, Grant) or failed.room is None or (failed.live and not failed.probe):
            raise ValueError("only a request whose lease has come back is tried again")
        self._begin(now)
        floor = self._floor
        room = failed.room
        seat: Seat = ticket.seat
        pays_twice = may_pay_twice(ending, sent)
        continued = ticket.last_ending is not None and ticket.last_ending.outcome in CUTS  # its caller has had tokens already
        allowed = (
            not continued
            and failed.first_token_at is None
            and may_retry(
                ending,
                attempts=ticket.attempts,
                allowed=attempts_allowed(room.plan.attempts, ticket.request.traffic),
                pays_twice=pays_twice,
                paid_twice=seat.paid_twice,
                after_send=room.plan.retry_after_send,
            )
        )
        seat.paid_twice |= pays_twice
        ticket.tried |= {failed.backend}
        ticket.last_ending = ending
        ticket.answer = None
        lane = room.lane(seat.lane)
        serves = room.serves(ticket.request)
        due_at = now + lane.max_wait_s - ticket.waited_s
        if ending.verdict is Verdict.FAILED and not room.may_serve(serves, ticket.tried):
            ticket.tried = A_RETRY_ANYWHERE  # the same one once more, where there is no other; the busy are not asked again
        if not allowed or self._expelled or floor.rooms.get(room.name) is not room or not room.may_serve(serves, ticket.tried):
            floor.refuse(ticket, Refusal(ending.outcome))
        elif ticket.slotless:
            floor.grant_slotless(ticket, room, lane, serves, now)
            floor.let_in((room,), now)
        else:
            floor.sit(ticket, room, lane, serves, due_at, now)
            floor.let_in((room,), now)
            if ticket.answer is None and due_at <= now:
                self._ward.advance(now)
        return floor.settled

    def resume(self, ticket: Ticket, lease: Lease, ending: Ending, now: float) -> Sequence[Ticket]:
        """After `give_back` of the lease whose stream broke after its first token: may another backend say the rest?

        Answered as `again` is. Whether there is a rest that can be asked for is for the host to know. ValueError: its lease is not back.
        """
        self._begin(now)
        if self._expelled:
            ticket.last_ending = ending
            self._floor.refuse(ticket, Refusal(ending.outcome))
        else:
            onward.resume(self._floor, ticket, lease, ending, now)
            if ticket.answer is None and ticket.seat.due_at <= now:
                self._ward.advance(now)
        return self._floor.settled

    def hedge_at(self, ticket: Ticket, now: float) -> float | None:
        """When is the first token of this request's attempt late enough for `hedge`? None: never, or nobody can tell yet."""
        return beside.due_at(ticket, now)

    def hedge(self, ticket: Ticket, twin: Ticket, now: float) -> Sequence[Ticket]:
        """The first token is late: may `twin`, the same request once more, be sent to an idle backend beside it?

        Its answer is then a lease of its own, else still None. It counts as an attempt of `ticket`, whose first lease stays out.
        """
        self._begin(now)
        if not self._closed:
            beside.begin(self._floor, ticket, twin, now)
        return self._floor.settled

    def first_token(self, lease: Lease, now: float) -> Sequence[Ticket]:
        """The first real token of a lease's answer has come. Nothing happens to one that was given back."""
        floor = self._floor
        floor.settled = []
        if self._due and self._due[0][0] <= now:
            self._ward.advance(now)
        if isinstance(lease, Grant) and lease.live:
            backend, room = lease.home, lease.room
            first = lease.first_token_at is None
            change = backend.health.first_token(lease, now, None if room is None else room.plan.slo_ttft_s)
            moved = room.first_token(backend.site, now - lease.granted_at, now) if first and room is not None else ()
            if first and room is not None and room.hedging is not None:
                room.hedging.spoke(lease, now)
            if moved and room is not None:
                self._ward.moved(room, moved)
            if change or moved or not backend.good:
                self._ward.changed(backend, change, now)
                self._ward.learn(backend, True)
                self._ward.conclude(now)
        return floor.settled

    def leave(self, ticket: Ticket, now: float) -> Sequence[Ticket]:
        """The caller of a waiting request has left. Nothing happens to one that does not wait."""
        self._begin(now)
        floor = self._floor
        seat: Seat | None = ticket.seat
        if seat is not None and seat.line is not None:
            room = floor.rooms[ticket.pool]
            floor.unseat(seat, room, now)
            floor.let_in((room,), now)
        return floor.settled

    # -- the passage of time

    def tick(self, now: float) -> Sequence[Ticket]:
        """Time has passed."""
        self._begin(now)
        return self._floor.settled

    def next_at(self) -> float | None:
        """When must `tick` be called at the latest, if nothing else is before?"""
        due = self._due
        if not due:
            return None
        at, _, first = due[0]
        return at if first.due_at == at else self._floor.agenda.next_at()

    # -- what is learnt of backends and platforms

    def probed(self, backend: str, alive: bool, now: float) -> Sequence[Ticket]:
        """The result of an active probe. An unknown name (its probe outlived a reload) is ignored."""
        self._begin(now)
        for found in self._backends(backend):
            self._ward.changed(found, found.health.probed(alive, now), now)
        return self._end(now)

    def smoked(self, platform: str, ok: bool, now: float) -> Sequence[Ticket]:
        """A smoke generation on a platform passed or failed. An unknown name is ignored."""
        self._begin(now)
        site = self._floor.sites.get(platform)
        if site is not None:
            for room in site.rooms:
                self._ward.moved(room, room.failover.smoked(room.sites.index(site), ok, now))
        return self._end(now)

    def smoke(self, backend: str, now: float) -> Lease | None:
        """The right to one slot of this backend for a smoke generation; its end is told as any lease's.

        None: nothing may go there now, or it is full, or there is none of that name. The next `tick` tells of what time has brought.
        """
        for found in self._backends(backend):
            if not found.site.refuses and found.health.grantable() and found.slots.free:
                return self._floor.grant_smoke(found, now)
        return None

    def drain(self, name: str, now: float) -> Sequence[Ticket]:
        """Nothing new goes to this backend, or platform, also after a reload. KeyError: no such name."""
        backends = self._backends(name, platform=True)
        self._begin(now)
        self._levers.drained.setdefault(name, now)
        for backend in backends:
            self._ward.changed(backend, backend.health.drain(), now)
        return self._end(now)

    def undrain(self, name: str, now: float) -> Sequence[Ticket]:
        """Takes `drain` back; a backend stays drained while its platform is. KeyError: no such name."""
        backends = [] if name in self._levers.drained and not self._knows(name) else self._backends(name, platform=True)
        self._begin(now)
        self._levers.drained.pop(name, None)
        for backend in backends:
            if self._levers.drained.keys().isdisjoint((backend.name, backend.site.name)):
                self._ward.changed(backend, backend.health.undrain(), now)
        return self._end(now)

    def serve(self, pool: str, platform: str, now: float) -> Sequence[Ticket]:
        """Pins a pool to one of its platforms: while that is available it serves, whatever hold and ramp say. KeyError: no such name."""
        room = self._floor.rooms[pool]
        if platform not in room.plan.platforms:
            raise KeyError(platform)
        self._begin(now)
        self._levers.pin(pool, platform, now)
        self._ward.moved(room, room.failover.pin(platform, now))
        return self._end(now)

    def unpin(self, pool: str, now: float) -> Sequence[Ticket]:
        """Takes `serve` back. KeyError: no such pool."""
        room = self._floor.rooms.get(pool)
        if room is None and pool not in self._levers.pins:
            raise KeyError(pool)
        self._begin(now)
        if self._levers.pins.pop(pool, None) is not None and room is not None:
            self._ward.moved(room, room.failover.pin(None, now))
        return self._end(now)

    def cap(self, backend: str, streams: int, now: float) -> Sequence[Ticket]:
        """This cap instead of the file's. KeyError: no such backend; ValueError: no such cap; then nothing has changed."""
        found = self._backend(backend)
        self._levers.override(backend, streams, now)
        return self._recap(found, now)

    def uncap(self, backend: str, now: float) -> Sequence[Ticket]:
        """Takes `cap` back. KeyError: no such backend."""
        found = None if backend in self._levers.caps and not self._knows(backend) else self._backend(backend)
        self._levers.caps.pop(backend, None)
        return self._recap(found, now)

    def close(self, now: float) -> Sequence[Ticket]:
        """From now on arrivals are refused as draining. Who waits, waits on."""
        self._closed = True
        return self.tick(now)

    def expel(self, now: float) -> Sequence[Ticket]:
        """The end of a drain: all who wait are refused as draining."""
        self._begin(now)
        self._closed = self._expelled = True
        self._floor.expel(now)
        return self._floor.settled

    def reconfigure(self, plan: Plan, now: float) -> Sequence[Ticket]:
        """Another file. Nothing waiting or in flight is lost. KeyError, and nothing has changed: a pool names no platform of it."""
        self._begin(now)
        take_over(self._floor, self._ward, plan, self._levers, now)
        return self._end(now)

    # -- what there is to see

    def take_events(self) -> list[Event]:
        """What happened to backends and platforms since the last time?"""
        events = self._ward.events
        if not events:
            return []
        taken = list(events)
        events.clear()
        return taken

    def snapshot(self, now: float) -> State:
        """What does everything look like now?"""
        return snapshot(self._floor, self._levers, self._closed, now)

    # -- inside

    def _end(self, now: float) -> Sequence[Ticket]:
        self._ward.conclude(now)
        return self._floor.settled

    def _recap(self, backend: Backend | None, now: float) -> Sequence[Ticket]:
        """The cap that an operator sets on this backend may be another: places follow, and whoever now has room goes."""
        self._begin(now)
        if backend is not None:
            site = backend.site
            backend.cap_override = self._levers.cap(backend.name)
            site.recount()
            site.judge(backend)
            for room in site.rooms:
                room.reorder()
        return self._end(now)

    def _knows(self, name: str) -> bool:
        return name in self._floor.sites or any(name in site.backends for site in self._floor.sites.values())

    def _backend(self, name: str) -> Backend:
        found = self._backends(name)
        if not found:
            raise KeyError(name)
        return found[0]

    def _backends(self, name: str, *, platform: bool = False) -> list[Backend]:
        """The backend of that name; with `platform`, also all of a platform's, and KeyError if there is neither."""
        sites = self._floor.sites
        found = [site.backends[name] for site in sites.values() if name in site.backends]
        if platform and name in sites:
            found.extend(sites[name].backends.values())
        elif platform and not found:
            raise KeyError(name)
        return found
