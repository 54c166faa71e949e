"""What must always hold with second attempts and continued streams? Random events, books kept another way, and the replay (S0)."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lab.simulator.replay import Recording, replay
from policies.continuation import WAIT_S
from policies.health import HealthState
from policies.model import Ending, Hedge, Lease, Outcome, Plan, Refusal, Request, Ticket
from tests.policies.stage import GONE, OK, REFUSED, RESET, busy, plan, platform, pool
from tests.policies.test_continuation import CUT, STALLED
from tests.policies.test_conversations_beside import LOST

TWO = plan(
    platform("own", a=3, b=3, c=2),
    platform("rented", r=4),
    pool("chat", "own", "rented", places=6, hedge=Hedge(after_s=0.5), continues=True, attempts=3, hold_s=5.0, ramp_s=5.0),
)
SHARED = plan(
    platform("own", a=2, b=2),
    platform("rented", r=2),
    pool("chat", "own", "rented", places=4, hedge=Hedge(percent=50), continues=True),
    pool("bulk", "rented", "own", places=4, max_wait_s=60.0),
)
WHICH = st.integers(0, 1000)


class Passage:
    """One request and what it holds: at most two leases, and after its first token one."""

    def __init__(self, ticket: Ticket) -> None:
        self.ticket = ticket
        self.leases: list[Lease] = []
        self.beside = False  # it was hedged
        self.failures = 0
        self.over = False

    @property
    def speaking(self) -> bool:
        return any(lease.first_token_at is not None for lease in self.leases)


class OptIns(RuleBasedStateMachine):
    """Arrivals, late first tokens, races, cuts, endings, drains, reloads and time, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.passages: list[Passage] = []
        self.granted: set[int] = set()
        self.ended: dict[str, int] = {}  # attempts by pool
        self.hedges: dict[str, int] = {}

    @initialize(file=st.sampled_from([TWO, SHARED]), seed=st.integers(0, 3))
    def begin(self, file: Plan, seed: int) -> None:
        self.file = file
        self.recording: Any = Recording(file, 0.0, seed)

    # -- the books

    def call(self, name: str, *arguments: Any) -> None:
        for ticket in getattr(self.recording, name)(*arguments, self.now):
            passage = next((each for each in self.passages if each.ticket is ticket), None)
            if passage is None:
                continue  # a twin: whoever asked for it enters it
            if isinstance(ticket.answer, Lease):
                self.enter(passage, ticket.answer)
            else:
                passage.over = True

    def enter(self, passage: Passage, lease: Lease) -> None:
        assert lease.number not in self.granted, "S2"
        assert lease.live and not passage.over
        self.granted.add(lease.number)
        passage.leases.append(lease)

    def give_back(self, passage: Passage, lease: Lease, how: Ending) -> None:
        passage.leases.remove(lease)
        self.ended[lease.pool] = self.ended.get(lease.pool, 0) + 1
        self.call("give_back", lease, how)

    def pick(self, which: int, *, speaking: bool | None = None, leases: int | None = None) -> Passage | None:
        among = [
            each
            for each in self.passages
            if each.leases and (speaking is None or each.speaking is speaking) and (leases is None or len(each.leases) == leases)
        ]
        return among[which % len(among)] if among else None

    @property
    def running(self) -> list[Passage]:
        return [each for each in self.passages if each.leases]

    # -- events

    @rule(lane=st.sampled_from([0, 0, 0, 1]), where=WHICH, streamed=st.sampled_from([True, True, False]), batch=st.booleans())
    def arrive(self, lane: int, where: int, streamed: bool, batch: bool) -> None:
        traffic = "batch" if batch and where % 3 == 0 else "interactive"
        request = Request(f"r{len(self.passages)}", "t", lane, traffic, model="m" if where % 5 else None, streamed=streamed)
        ticket = Ticket(request, self.file.pools[where % len(self.file.pools)].name, self.now)
        self.passages.append(Passage(ticket))
        self.call("arrive", ticket)

    @rule(count=st.integers(1, 30))
    def answer_many(self, count: int) -> None:
        """So many requests come one after another and are answered: what pays for hedges."""
        for _ in range(count):
            self.arrive(0, 1, True, False)
            passage = self.passages[-1]
            if passage.leases:
                self.call("first_token", passage.leases[0])
                self.finish(passage, OK)

    @rule(count=st.integers(15, 25), later_s=st.sampled_from([0.5, 1.0]))
    def late(self, count: int, later_s: float) -> None:
        """The next request is late, and about as many have been answered before it as a hedge costs."""
        self.answer_many(count)
        self.arrive(0, 0, True, False)
        self.hedge(-1, later_s)

    @rule(which=WHICH, how=st.sampled_from([CUT, STALLED]))
    def breaks(self, which: int, how: Ending) -> None:
        """A request that speaks breaks off."""
        self.arrive(0, which, True, False)
        self.speak(-1, 0)
        self.break_off(-1, how)

    def finish(self, passage: Passage, how: Ending) -> None:
        passage.over = True
        for lease in list(passage.leases):
            self.give_back(passage, lease, how)

    @rule(which=WHICH, later_s=st.sampled_from([0.0, 0.5, 1.0]))
    def hedge(self, which: int, later_s: float) -> None:
        passage = self.pick(which, speaking=False, leases=1)
        if passage is None:
            return
        self.wait(later_s)
        if not passage.leases:
            return
        ticket, first = passage.ticket, passage.leases[0]
        before, pool = self.recording.snapshot(self.now), ticket.pool
        due_at = self.recording.hedge_at(ticket, self.now)
        twin = Ticket(ticket.request, pool, ticket.arrived_at)
        self.call("hedge", ticket, twin)
        if twin.answer is None:
            assert self.recording.snapshot(self.now).in_flight <= before.in_flight
            return
        assert isinstance(twin.answer, Lease)
        assert due_at is not None and due_at <= self.now, "late"
        assert not passage.beside and ticket.attempts == 2 and ticket.request.streamed and ticket.request.lane == 0
        assert ticket.request.traffic == "interactive"
        second = twin.answer
        assert second.backend != first.backend and before.backends[second.backend].in_flight == 0, "idle"
        assert before.backends[second.backend].state is HealthState.HEALTHY and not second.probe
        self.enter(passage, second)
        passage.beside = True
        self.hedges[pool] = self.hedges.get(pool, 0) + 1
        assert self.hedges[pool] * 20 <= self.ended.get(pool, 0), "5 %"

    @precondition(lambda self: self.running)
    @rule(which=WHICH, lease=st.integers(0, 1))
    def speak(self, which: int, lease: int) -> None:
        """A first token: whoever stands beside it has lost."""
        passage = self.pick(which, speaking=False)
        if passage is not None:
            winner = passage.leases[lease % len(passage.leases)]
            self.call("first_token", winner)
            for other in [each for each in passage.leases if each is not winner]:
                self.give_back(passage, other, LOST)

    @precondition(lambda self: self.running)
    @rule(which=WHICH, lease=st.integers(0, 1), how=st.sampled_from([RESET, REFUSED, busy(1.0)]))
    def fail(self, which: int, lease: int, how: Ending) -> None:
        """An attempt fails before its first token; the last of them asks again."""
        passage = self.pick(which, speaking=False)
        if passage is None:
            return
        continued = passage.ticket.last_ending in (CUT, STALLED)
        passage.failures += 1
        self.give_back(passage, passage.leases[lease % len(passage.leases)], how)
        if not passage.leases:
            self.call("again", passage.ticket, how, True)
            assert passage.over or not continued, "S28: none after a token has gone out"
            assert passage.ticket.attempts <= 4, "O-f"

    @precondition(lambda self: self.running)
    @rule(which=WHICH, how=st.sampled_from([CUT, CUT, STALLED]))
    def break_off(self, which: int, how: Ending) -> None:
        passage = self.pick(which, speaking=True)
        if passage is None:
            return
        (lease,) = passage.leases
        ticket = passage.ticket
        first_failure = not passage.failures
        passage.failures += 1
        self.give_back(passage, lease, how)
        self.call("resume", ticket, lease, how)
        asked = self.file.pools[[each.name for each in self.file.pools].index(ticket.pool)]
        if passage.over:
            return
        assert asked.continues and ticket.request.streamed and ticket.request.model is not None, "as restricted"
        assert first_failure or ticket.last_ending is how, "once"
        for each in passage.leases:
            assert each.backend != lease.backend and not each.probe, "another, and no test of it"
        if not passage.leases:
            assert ticket.seat.due_at <= self.now + WAIT_S, "it does not wait long"

    @precondition(lambda self: self.running)
    @rule(which=WHICH, how=st.sampled_from([OK, OK, GONE]))
    def end(self, which: int, how: Ending) -> None:
        passage = self.pick(which)
        if passage is not None:
            self.finish(passage, how if passage.speaking else GONE)

    @rule(which=WHICH)
    def leave(self, which: int) -> None:
        waiting = [each for each in self.passages if not each.over and not each.leases]
        if waiting:
            passage = waiting[which % len(waiting)]
            passage.over = True
            self.call("leave", passage.ticket)
            assert passage.ticket.answer is None

    @rule(passed_s=st.sampled_from([0.1, 0.5, 1.0, 5.0, 20.0]))
    def wait(self, passed_s: float) -> None:
        until_at = self.now + passed_s
        while (due_at := self.recording.next_at()) is not None and due_at < until_at:
            self.now = due_at
            self.call("tick")
        self.now = until_at
        self.call("tick")

    @rule(which=WHICH, back=st.booleans())
    def drain(self, which: int, back: bool) -> None:
        names = [each.name for site in self.file.platforms for each in site.backends]
        self.call("undrain" if back else "drain", names[which % len(names)])

    @rule(opt_in=st.booleans())
    def reload(self, opt_in: bool) -> None:
        self.call(
            "reconfigure",
            self.file if opt_in else plan(*self.file.platforms, *(pool(each.name, *each.platforms) for each in self.file.pools)),
        )
        if not opt_in:
            self.call("reconfigure", self.file)

    # -- what holds after each of them

    @invariant()
    def counts_are_those_of_the_leases(self) -> None:
        state = self.recording.snapshot(self.now)
        leases = [lease for each in self.passages for lease in each.leases]
        assert state.in_flight == len(leases)
        for name, backend in state.backends.items():
            assert backend.in_flight == sum(lease.backend == name for lease in leases), "S2, one owner per count"
        caps = {each.name: each.max_streams for site in self.file.platforms for each in site.backends}
        assert all(each.in_flight <= caps[name] for name, each in state.backends.items()), "S1"
        assert state.waiting == sum(not each.over and not each.leases for each in self.passages)
        assert state.retries <= len(leases)

    @invariant()
    def who_speaks_holds_one_lease(self) -> None:
        for passage in self.passages:
            assert len(passage.leases) <= 2
            assert not passage.over or not passage.leases
            assert not passage.speaking or len(passage.leases) == 1
            if isinstance(passage.ticket.answer, Refusal):
                assert passage.over and passage.ticket.answer.outcome is not Outcome.INTERNAL

    def teardown(self) -> None:
        if not hasattr(self, "recording"):
            return
        self.call("expel")
        for passage in self.running:
            self.finish(passage, OK)
        state = self.recording.snapshot(self.now)
        assert (state.in_flight, state.retries, state.waiting) == (0, 0, 0)
        assert replay(self.recording.log) is None, "S0"


TestOptIns = OptIns.TestCase
TestOptIns.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
