"""What must always hold, whatever happens? Random events against rules that are computed another way (policies.md 12).

The machine keeps its own books of who waits, who runs and what is good, and compares after every event. Each run is played again on a
fresh dispatcher at its end: the same calls must give the same answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from policies.dispatcher import Dispatcher, Recovered, room
from policies.health import HealthState
from policies.model import Ending, LanePlan, Lease, Outcome, PlacesPlan, Plan, Refusal, Request, Standing, Ticket, Verdict
from policies.slots import LeaseReturned
from tests.policies.stage import FAST, GONE, OK, OUR_KEY, REFUSED, RESET, SLOW, STARTING, busy, plan, platform, pool

THREE_LANES = (replace(FAST, reserve=1), replace(SLOW, share=Fraction(1, 4)), LanePlan("idle", 8.0, Fraction(1, 10)))
TWO_PLATFORMS = plan(
    platform("own", a=2, b=3), platform("rented", r=3), pool("chat", "own", "rented", places=6, hold_s=20.0, ramp_s=30.0, slo_ttft_s=0.5)
)
SHARED = plan(
    platform("own", a=2, b=1),
    platform("rented", r=2),
    pool("chat", "own", "rented", hold_s=5.0),
    pool("batch", "own", places=3, attempts=3),
)
MODELS = plan(
    platform("x", models=["m"], a=1, b=1),
    platform("y", models=["m", "n"], c=2),
    platform("z", d=1),
    pool("chat", "x", "y", "z", places=8, attempts=3, hold_s=1.0, ramp_s=5.0),
    lanes=THREE_LANES,
)
ALONE = plan(platform("own", a=1), pool("chat", "own", places=4, max_wait_s=3.0), lanes=(FAST, SLOW))
WIDE = plan(
    platform("own", a=5, b=5, c=4, d=3, e=1),
    platform("rented", r=9),
    pool("chat", "own", "rented", places=12, attempts=3, warm=Fraction(1, 4)),
    pool("bulk", "rented"),
)
PLANS = (WIDE, TWO_PLATFORMS, SHARED, MODELS, ALONE)


def variants(file: Plan) -> tuple[Plan, ...]:
    """Files that an operator might reload instead of this one."""
    first, *others = file.platforms
    lowered = replace(first, backends=tuple(replace(each, max_streams=1) for each in first.backends))
    raised = replace(first, backends=tuple(replace(each, max_streams=5) for each in first.backends))
    fewer = replace(first, backends=first.backends[:1])
    moved = replace(first, backends=tuple(replace(each, address="elsewhere") for each in first.backends))
    return (
        file,
        *(replace(file, platforms=(each, *others)) for each in (lowered, raised, fewer, moved)),
        replace(file, lanes=file.lanes[:1]),
        replace(file, pools=file.pools[:1]),
        replace(file, pools=tuple(replace(each, places=PlacesPlan(fixed=2), platforms=each.platforms[::-1]) for each in file.pools)),
    )


ENDINGS = (OK, OK, RESET, RESET, REFUSED, STARTING, OUR_KEY, GONE, busy(), busy(2.0), busy(15.0))
FAILURES = (RESET, REFUSED, REFUSED, STARTING, OUR_KEY, busy(1.0), busy(30.0))
WHICH = st.integers(0, 1000)


class Events(RuleBasedStateMachine):
    """Arrivals, endings, failures, departures, drains, probes, reloads and time, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.calls: list[tuple[str, tuple[Any, ...], list[tuple[str, object]]]] = []
        self.tickets: dict[str, Ticket] = {}
        self.waiting: dict[str, Ticket] = {}
        self.running: dict[int, tuple[Ticket, Lease]] = {}
        self.numbers: set[int] = set()
        self.over: set[str] = set()  # requests that have ended, one way or another
        self.good: dict[str, bool] = {}
        self.granted_on: set[str] = set()  # by the latest event
        self.caps: dict[str, int] = {}  # an operator's
        self.pins: dict[str, str] = {}

    @initialize(file=st.sampled_from(PLANS), seed=st.integers(0, 3))
    def begin(self, file: Plan, seed: int) -> None:
        self.origin = self.file = file
        self.seed = seed
        self.dispatcher = Dispatcher(file, 0.0, seed)

    # -- the books

    def call(self, name: str, *arguments: Any, do: Callable[[], Sequence[Ticket]]) -> list[Ticket]:
        """One event: recorded, and each answer checked against the books."""
        settled = list(do())
        self.calls.append((name, (*arguments, self.now), [(ticket.request.id, said(ticket)) for ticket in settled]))
        assert len({id(ticket) for ticket in settled}) == len(settled)
        for event in self.dispatcher.take_events():
            if isinstance(event, Recovered):
                self.good[event.backend] = True
        self.granted_on = set()
        for ticket in settled:
            self.enter(ticket)
        return settled

    def enter(self, ticket: Ticket) -> None:
        key = ticket.request.id
        assert key not in self.over, "S5: a request ends once"
        self.waiting.pop(key, None)
        answer = ticket.answer
        if isinstance(answer, Refusal):
            self.over.add(key)
            assert answer.retry_after_s is None or 1 <= answer.retry_after_s <= 60, "S39"
            if ticket.last_ending is not None and answer.outcome is not Outcome.DRAINING:
                assert answer.outcome is ticket.last_ending.outcome, "a retry ends with its own failure"
            return
        assert isinstance(answer, Lease)
        assert answer.live
        assert answer.number not in self.numbers, "S2: granted once"
        self.numbers.add(answer.number)
        assert answer.backend not in ticket.tried, "another backend"
        if ticket.attempts > 1 and not self.good.get(answer.backend, True):
            retries = 1 + sum(each.attempts > 1 for each, _ in self.running.values())
            assert retries <= max(3, 0.2 * (len(self.running) + 1)), "S28"
        self.running[answer.number] = (ticket, answer)
        if not answer.slotless:
            self.granted_on.add(answer.backend)
        site = self.dispatcher._floor.sites[answer.platform]
        health = site.backends[answer.backend].health
        assert health.state() is HealthState.HEALTHY or (health.state() is HealthState.PROBING and answer.probe), "S21"
        assert not site.refuses
        wanted = self.dispatcher._floor.rooms[ticket.pool].plan.model or ticket.request.model
        assert site.models is None or wanted in site.models, "S19"

    def tick(self) -> None:
        self.call("tick", do=lambda: self.dispatcher.tick(self.now))

    def nth(self, which: int, *, unspoken: bool = False) -> tuple[Ticket, Lease] | None:
        among = [pair for pair in self.running.values() if not unspoken or pair[1].first_token_at is None]
        return among[which % len(among)] if among else None

    # -- events

    @rule(lane=st.integers(0, 2), where=WHICH, model=st.sampled_from(["m", "n", None]), size=st.integers(0, 50), batch=st.booleans())
    def arrive(self, lane: int, where: int, model: str | None, size: int, batch: bool, slotless: bool = False) -> None:
        key = f"r{len(self.tickets)}"
        target = self.file.pools[where % len(self.file.pools)]
        lane %= len(self.file.lanes)
        request = Request(key, "t", lane, model=model, body_bytes=size, traffic="batch" if batch else "interactive")
        ticket = self.tickets[key] = Ticket(request, target.name, self.now, slotless=slotless)
        self.tick()
        room = self.dispatcher._floor.rooms[target.name]
        before = sum(len(each.ordinary) for each in room.lanes)
        self.call("arrive", key, request, target.name, slotless, do=lambda: self.dispatcher.arrive(ticket, self.now))
        seats = room.lanes[lane]
        if ticket.answer is None:
            self.waiting[key] = ticket
            assert sum(len(each.ordinary) for each in room.lanes) <= max(room.places, before), "S3"
            assert not slotless
        elif isinstance(ticket.answer, Refusal) and ticket.answer.outcome is Outcome.QUEUE_FULL:
            wait_s = room.wait_s(seats, seats.waiting, self.now)
            if wait_s is None or wait_s <= seats.max_wait_s:
                assert before >= room.places, "refused as full, and is not"
                assert all(len(each.ordinary) <= each.reserved for each in room.lanes[lane + 1 :]), "S7"
                assert len(seats.ordinary) >= seats.reserved, "S7: its own places"

    @rule(lane=st.integers(0, 2), where=WHICH)
    def arrive_slotless(self, lane: int, where: int) -> None:
        self.arrive(lane, where, "m", 0, False, slotless=True)

    @rule(count=st.integers(2, 12), lane=st.integers(0, 2), where=WHICH)
    def arrive_together(self, count: int, lane: int, where: int) -> None:
        for number in range(count):
            self.arrive(lane + number // 4, where, "m", 1, False)

    @precondition(lambda self: self.running)
    @rule(which=WHICH, how=st.sampled_from(ENDINGS))
    def end(self, which: int, how: Ending) -> None:
        pair = self.nth(which)
        assert pair is not None
        self.give_back(*pair, how)
        self.over.add(pair[0].request.id)

    @precondition(lambda self: self.running)
    @rule(count=st.integers(1, 8))
    def end_several(self, count: int) -> None:
        for _ in range(min(count, len(self.running))):
            self.end(0, OK)

    @precondition(lambda self: self.running)
    @rule(which=WHICH, how=st.sampled_from(FAILURES), sent=st.booleans())
    def fail(self, which: int, how: Ending, sent: bool) -> None:
        pair = self.nth(which)
        assert pair is not None
        ticket, lease = pair
        self.give_back(ticket, lease, how)
        self.ask_again(ticket, how, sent=sent)
        if lease.first_token_at is not None:
            assert isinstance(ticket.answer, Refusal), "S28: none after the first token"
        assert ticket.attempts <= 4

    @rule(backend=WHICH, count=st.integers(3, 6))
    def backend_breaks(self, backend: int, count: int) -> None:
        """Everything that runs on one backend fails, and what comes to it next."""
        names = list(self.dispatcher._floor.sites[self.file.platforms[0].name].backends)
        name = names[backend % len(names)]
        for _ in range(count):
            victims = [pair for pair in self.running.values() if pair[1].backend == name]
            for ticket, lease in victims:
                self.give_back(ticket, lease, RESET)
                self.ask_again(ticket, RESET, sent=False)
            self.arrive(0, 0, "m", 1, False)

    @precondition(lambda self: len(self.running) > 3)
    @rule(how=st.sampled_from([RESET, REFUSED, busy(0.5)]))
    def everything_fails(self, how: Ending) -> None:
        """All that runs fails at once, and asks again."""
        failed = list(self.running.values())
        for ticket, lease in failed:
            self.give_back(ticket, lease, how)
        for ticket, _ in failed:
            self.ask_again(ticket, how, sent=False)

    def ask_again(self, ticket: Ticket, how: Ending, *, sent: bool) -> None:
        key = ticket.request.id
        self.call("again", key, how, sent, do=lambda: self.dispatcher.again(ticket, how, sent, self.now))
        if ticket.answer is None:
            self.waiting[key] = ticket

    def give_back(self, ticket: Ticket, lease: Lease, how: Ending) -> None:
        self.tick()
        del self.running[lease.number]
        if how.verdict in (Verdict.OK, Verdict.FAILED) and self.is_current(lease):
            self.good[lease.backend] = how.verdict is Verdict.OK
        self.call("give_back", ticket.request.id, how, do=lambda: self.dispatcher.give_back(lease, how, self.now))

    def is_current(self, lease: Lease) -> bool:
        """A backend that a reload replaced under its name has another's results."""
        site = self.dispatcher._floor.sites.get(lease.platform)
        return site is not None and site.backends.get(lease.backend) is getattr(lease, "home", None)

    @precondition(lambda self: self.numbers)
    @rule(which=WHICH)
    def return_twice(self, which: int) -> None:
        ended = [ticket for ticket in self.tickets.values() if isinstance(ticket.answer, Lease) and not ticket.answer.live]
        if ended:
            before = self.dispatcher.snapshot(self.now)
            lease = ended[which % len(ended)].answer
            assert isinstance(lease, Lease)
            with pytest.raises(LeaseReturned):
                self.dispatcher.give_back(lease, OK, self.now)
            assert self.dispatcher.snapshot(self.now) == before, "S2"

    @precondition(lambda self: self.running)
    @rule(which=WHICH)
    def speak(self, which: int) -> None:
        pair = self.nth(which, unspoken=True)
        if pair is not None:
            ticket, lease = pair
            self.tick()
            if self.is_current(lease):
                self.good[lease.backend] = True
            self.call("first_token", ticket.request.id, do=lambda: self.dispatcher.first_token(lease, self.now))

    @precondition(lambda self: self.waiting)
    @rule(which=WHICH)
    def leave(self, which: int) -> None:
        self.tick()
        if self.waiting:
            key = sorted(self.waiting)[which % len(self.waiting)]
            ticket = self.waiting.pop(key)
            self.over.add(key)
            self.call("leave", key, do=lambda: self.dispatcher.leave(ticket, self.now))
            assert ticket.answer is None

    @rule(passed_s=st.sampled_from([0.1, 0.5, 1.0, 3.0, 5.0, 20.0, 61.0]), punctual=st.booleans())
    def wait(self, passed_s: float, punctual: bool) -> None:
        until_at = self.now + passed_s
        while punctual and (due_at := self.dispatcher.next_at()) is not None and due_at < until_at:
            assert due_at >= self.now
            self.now = due_at
            self.tick()
            assert (self.dispatcher.next_at() or until_at) > due_at, "a tick does what was due"
        self.now = until_at
        self.tick()

    @rule(which=WHICH, alive=st.booleans(), times=st.integers(1, 3))
    def probe(self, which: int, alive: bool, times: int) -> None:
        names = [each.name for site in self.file.platforms for each in site.backends]
        name = names[which % len(names)]
        for _ in range(times):
            self.tick()
            self.call("probed", name, alive, do=lambda: self.dispatcher.probed(name, alive, self.now))

    @rule(which=WHICH, back=st.booleans())
    def drain(self, which: int, back: bool) -> None:
        names = [site.name for site in self.file.platforms] + [each.name for site in self.file.platforms for each in site.backends]
        name = names[which % len(names)]
        self.tick()
        lever = self.dispatcher.undrain if back else self.dispatcher.drain
        self.call("undrain" if back else "drain", name, do=lambda: lever(name, self.now))

    @rule(which=WHICH)
    def undrain_all(self, which: int) -> None:
        for name in sorted(self.dispatcher._levers.drained.keys() & set(self.dispatcher._floor.sites)):
            self.undrain(name)

    def undrain(self, name: str) -> None:
        self.call("undrain", name, do=lambda: self.dispatcher.undrain(name, self.now))

    @rule(which=WHICH, streams=st.integers(1, 6), back=st.booleans())
    def override_cap(self, which: int, streams: int, back: bool) -> None:
        names = [each.name for site in self.file.platforms for each in site.backends]
        name = names[which % len(names)]
        self.tick()
        if back:
            self.caps.pop(name, None)
            self.call("uncap", name, do=lambda: self.dispatcher.uncap(name, self.now))
        else:
            self.caps[name] = streams
            self.call("cap", name, streams, do=lambda: self.dispatcher.cap(name, streams, self.now))

    @rule(which=WHICH, where=WHICH, back=st.booleans())
    def pin(self, which: int, where: int, back: bool) -> None:
        target = self.file.pools[which % len(self.file.pools)]
        self.tick()
        if back:
            self.pins.pop(target.name, None)
            self.call("unpin", target.name, do=lambda: self.dispatcher.unpin(target.name, self.now))
        else:
            name = self.pins[target.name] = target.platforms[where % len(target.platforms)]
            self.call("serve", target.name, name, do=lambda: self.dispatcher.serve(target.name, name, self.now))

    @rule(which=st.integers(0, 7))
    def reload(self, which: int) -> None:
        file = variants(self.origin)[which]
        self.tick()
        homes = {name: each.plan.address for site in self.dispatcher._floor.sites.values() for name, each in site.backends.items()}
        for each in (each for site in file.platforms for each in site.backends):
            if homes.get(each.name) != each.address:
                self.good[each.name] = True  # another backend under that name
        self.file = file
        self.call("reconfigure", file, do=lambda: self.dispatcher.reconfigure(file, self.now))

    # -- what holds after each of them

    @invariant()
    def caps_hold(self) -> None:
        state = self.dispatcher.snapshot(self.now)
        for name, backend in state.backends.items():
            mine = [lease for _, lease in self.running.values() if lease.backend == name and not lease.slotless and self.is_current(lease)]
            assert backend.in_flight == len(mine), "one owner per count"
            if name in self.granted_on:
                assert backend.in_flight <= backend.cap, "S1"
            health = self.dispatcher._floor.sites[backend.platform].backends[name].health
            if backend.state is HealthState.PROBING:
                recent = [each for each in mine if each.probe and each.epoch == health.epoch]
                assert sum(self.now < each.granted_at + health.probe_deadline_s() for each in recent) <= 1, "at most one probe"
        assert state.in_flight == len(self.running)
        assert state.retries == sum(ticket.attempts > 1 for ticket, _ in self.running.values())

    @invariant()
    def levers_hold(self) -> None:
        state = self.dispatcher.snapshot(self.now)
        file = {each.name: each.max_streams for site in self.file.platforms for each in site.backends}
        assert {name: each.max_streams for name, each in state.backends.items()} == {
            name: self.caps.get(name, cap) for name, cap in file.items()
        }
        for name, pinned in self.pins.items():
            site = self.dispatcher._floor.sites.get(pinned)
            room = state.pools.get(name)
            if room is not None and not room.retired and site is not None and site.health.standing() is Standing.AVAILABLE:
                assert room.in_service == (pinned,), "a pinned platform that is available serves, alone"
        pulled = {(each.lever, each.on, each.value) for each in state.levers if each.lever != "drain"}
        assert pulled == {("cap", *pair) for pair in self.caps.items()} | {("pin", *pair) for pair in self.pins.items()}

    @invariant()
    def the_waiting_are_those_who_wait(self) -> None:
        state = self.dispatcher.snapshot(self.now)
        assert state.waiting == len(self.waiting)
        assert state.waiting == sum(lane.waiting for each in state.pools.values() for lane in each.lanes.values())
        assert state.waiting_bytes == sum(ticket.request.body_bytes for ticket in self.waiting.values() if not ticket.tried), "S3"
        for ticket in self.waiting.values():
            assert ticket.seat.due_at > self.now, "S6"
            assert ticket.waited_s + self.now - ticket.seat.since_at < 20.0, "no lane waits longer"

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        floor = self.dispatcher._floor
        for ticket in self.waiting.values():
            room = floor.rooms[ticket.pool]
            wanted = room.plan.model or ticket.request.model
            sites = [site for site in room.sites if not site.refuses and (site.models is None or wanted in site.models)]
            left = [each for site in sites for each in site.backends.values() if each.name not in ticket.tried]
            assert any(each.health.state() in (HealthState.HEALTHY, HealthState.PROBING) for each in left)

    @invariant()
    def nobody_waits_for_a_slot_that_is_free(self) -> None:
        heads: dict[tuple[object, ...], Ticket] = {}
        for ticket in self.waiting.values():
            key = (ticket.pool, id(ticket.seat.line))
            if key not in heads or ticket.seat.order < heads[key].seat.order:
                heads[key] = ticket
        for ticket in heads.values():
            assert self.usable(ticket) == [], f"S4: {ticket.request.id} waits while a slot is free for it"

    def usable(self, ticket: Ticket) -> list[str]:
        """Which backends could it be dispatched to now? Looked for one by one."""
        floor = self.dispatcher._floor
        room = floor.rooms[ticket.pool]
        wanted = room.plan.model or ticket.request.model
        within = floor.budget.allows()
        sites = [site for site in room.sites if not site.refuses and (site.models is None or wanted in site.models)]
        every = [(site, each) for site in sites for each in site.backends.values() if each.name not in ticket.tried]
        every = [(site, each) for site, each in every if not ticket.tried or within or self.good.get(each.name, True)]
        room_left = [(site, each) for site, each in every if each.slots.in_flight < each.cap and each.health.grantable()]
        probing = [each.name for _, each in room_left if each.health.state() is HealthState.PROBING]
        if probing and (within or not ticket.tried):
            return probing
        plans = [each.name for each in self.file.lanes]
        index = plans.index(ticket.seat.lane) if ticket.seat.lane in plans else len(plans) - 1
        floor_slots = max((each.reserve for each in self.file.lanes[:index]), default=0)
        for position, site in enumerate(room.sites[index] for index in room.failover.order()):
            if site not in sites:
                continue
            healthy = [
                each
                for each in site.backends.values()
                if each.name not in ticket.tried and each.health.state() is HealthState.HEALTHY and not each.health.starting()
            ]
            awake = [each for each in healthy if not each.health.blocked_until()]
            if awake:
                free = sum(max(0, each.cap - each.slots.in_flight) for each in site.backends.values() if each.use.value == "open")
                if free > floor_slots:
                    found = [each.name for holder, each in room_left if holder is site and each in awake]
                    if found:
                        return found
                if position or room.failover.ramping is None or room.sites[room.failover.ramping] is not site:
                    return []
            elif any(each.health.blocked_until() < ticket.seat.due_at for each in healthy):
                return []
        return [each.name for _, each in room_left if each.health.starting()] if within or not ticket.tried else []

    # -- the end

    def teardown(self) -> None:
        if not hasattr(self, "dispatcher"):
            return
        self.call("close", do=lambda: self.dispatcher.close(self.now))
        self.end_several(5)
        self.call("expel", do=lambda: self.dispatcher.expel(self.now))
        assert not self.waiting
        while self.running:
            self.end(0, OK)
        state = self.dispatcher.snapshot(self.now)
        assert (state.waiting, state.waiting_bytes, state.in_flight, state.retries) == (0, 0, 0, 0)
        assert self.over == set(self.tickets), "S5: every request has ended"
        replay(self.origin, self.seed, self.calls)


def said(ticket: Ticket) -> object:
    answer = ticket.answer
    return (answer.number, answer.backend, answer.probe) if isinstance(answer, Lease) else answer


def replay(file: Plan, seed: int, calls: list[tuple[str, tuple[Any, ...], list[tuple[str, object]]]]) -> None:
    """S0: a fresh dispatcher gives the same answers to the same calls."""
    dispatcher = Dispatcher(file, 0.0, seed)
    tickets: dict[str, Ticket] = {}
    for name, arguments, answers in calls:
        subject, now = arguments[0], arguments[-1]
        if name == "arrive":
            key, request, target, slotless, _ = arguments
            tickets[key] = Ticket(request, target, now, slotless=slotless)
            settled = dispatcher.arrive(tickets[key], now)
        elif name in ("give_back", "first_token"):
            settled = getattr(dispatcher, name)(tickets[subject].answer, *arguments[1:])
        elif name in ("again", "leave"):
            settled = getattr(dispatcher, name)(tickets[subject], *arguments[1:])
        else:
            settled = getattr(dispatcher, name)(*arguments)
        assert [(ticket.request.id, said(ticket)) for ticket in settled] == answers, f"S0: {name}"


@pytest.fixture(scope="module", autouse=True)
def no_request_here_tries_more_than_three() -> Iterator[None]:
    """So that platforms of four backends are large ones, whose retries are asked for all at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "TRIED_MOST", 3)
        yield


TestEvents = Events.TestCase
TestEvents.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
