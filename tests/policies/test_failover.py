"""Which platforms of a pool are in service? Conversations first, then what must hold over any of them (S26, S27), then oracle 10."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from policies.failover import FailedBack, FailedOver, Failover, Moved, Phase, Ramping
from policies.health import Change, Health, HealthRules, HealthState, PlatformHealth
from policies.model import Ending, Lease, Outcome, Standing, Verdict

OUT, RECOVERING, AVAILABLE = Standing.OUT, Standing.RECOVERING, Standing.AVAILABLE


class Pool:
    """One pool and its host, on a clock that the test moves. `events`: what moved, and when."""

    def __init__(self, *platforms: str, hold_s: float = 300.0, ramp_s: float = 120.0, smoke: Sequence[str] = ()) -> None:
        self.now = 0.0
        self.names = list(platforms)
        self.standings = [AVAILABLE] * len(platforms)
        self.failover = Failover("chat", platforms, hold_s, ramp_s, self.now, smoke)
        self.events: list[tuple[float, Moved]] = []

    def becomes(self, name: str, standing: Standing, reason: str = "ejected") -> None:
        self.standings[self.names.index(name)] = standing
        self.note(self.failover.update(self.standings, self.now, reason))

    def note(self, moved: Sequence[Moved]) -> None:
        self.events += [(self.now, each) for each in moved]

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while (at := self.failover.next_at()) is not None and at <= until:
            self.now = max(self.now, at)
            self.note(self.failover.advance(self.now))
            after = self.failover.next_at()
            assert after is None or after > self.now, "advance left something undone"
        self.now = until
        self.note(self.failover.advance(self.now))

    def requests(self, number: int) -> list[str]:
        """Where the next requests go if each may go anywhere."""
        went = []
        for _ in range(number):
            first = self.failover.order()[0]
            self.failover.charge(first)
            went.append(self.names[first])
        return went

    def in_service(self) -> list[str]:
        return [self.names[index] for index in self.failover.in_service]

    def phase(self, name: str) -> Phase:
        return self.failover.phase(self.names.index(name))


@pytest.fixture
def pool() -> Pool:
    return Pool("own", "rented")


def test_all_start_ready_and_the_primary_serves(pool: Pool) -> None:
    assert pool.in_service() == ["own"]
    assert pool.failover.order() == (0, 1)
    assert pool.failover.next_at() is None
    assert pool.requests(3) == ["own"] * 3


def test_one_outage_is_one_failover_and_one_failback(pool: Pool) -> None:
    pool.becomes("own", OUT, "active probe")
    assert pool.in_service() == ["rented"]
    assert pool.failover.order() == (1, 0)
    pool.wait(60)
    pool.becomes("own", RECOVERING)  # the first successful probe: its hold begins
    pool.wait(5)
    pool.becomes("own", AVAILABLE)
    pool.wait(294)
    assert pool.phase("own") is Phase.HOLD
    assert pool.in_service() == ["rented"]
    pool.wait(1)
    assert pool.phase("own") is Phase.RAMP
    assert pool.in_service() == ["own", "rented"]
    pool.wait(120)
    assert pool.in_service() == ["own"]
    assert pool.events == [
        (0, FailedOver("chat", "own", "rented", "active probe")),
        (360, Ramping("chat", "rented", "own")),
        (480, FailedBack("chat", "rented", "own")),
    ]


def test_a_ramp_takes_from_a_tenth_to_all_of_the_requests(pool: Pool) -> None:
    pool.becomes("own", OUT)
    pool.becomes("own", AVAILABLE)
    pool.wait(300)
    shares = []
    for _ in range(12):
        shares.append(pool.requests(100).count("own"))
        pool.wait(10)
    for share, ideal in zip(shares, [10 + 7.5 * step for step in range(12)], strict=True):
        assert abs(share - ideal) <= 2  # a step of 1 %, and a request of credit
    assert pool.requests(100).count("own") == 100


def test_a_ramp_spreads_its_requests_evenly(pool: Pool) -> None:
    pool.becomes("own", OUT)
    pool.becomes("own", AVAILABLE)
    pool.wait(300)
    assert pool.requests(30) == (["rented"] * 9 + ["own"]) * 3
    pool.wait(60)  # 55 %
    went = pool.requests(40)
    assert went.count("own") == 22
    assert "rentedrented" not in "".join(went)


def test_in_a_ramp_nobody_waits_for_the_ramping_platform_and_it_makes_no_burst_later(pool: Pool) -> None:
    pool.becomes("own", OUT)
    pool.becomes("own", AVAILABLE)
    pool.wait(300)
    for _ in range(1000):  # it is owed a request, has no free slot, and the standby takes it
        pool.failover.charge(1)
    assert pool.failover.order() == (0, 1)
    assert pool.requests(20).count("own") <= 3
    for _ in range(1000):  # the other way round: the standby could not
        pool.failover.charge(0)
    assert pool.failover.order() == (1, 0)
    assert "own" in pool.requests(20)


def test_losing_the_primary_in_its_hold_doubles_the_hold_up_to_an_hour(pool: Pool) -> None:
    pool.becomes("own", OUT)
    holds = []
    for _ in range(6):
        pool.becomes("own", RECOVERING)
        until = pool.failover.hold_until(0)
        assert until is not None
        holds.append(until - pool.now)
        pool.wait(10)
        pool.becomes("own", OUT)
    assert holds == [300, 600, 1200, 2400, 3600, 3600]
    assert [event for _, event in pool.events] == [FailedOver("chat", "own", "rented", "ejected")]


def test_losing_the_primary_in_its_ramp_returns_to_the_standby_and_doubles_the_hold(pool: Pool) -> None:
    pool.becomes("own", OUT)
    pool.becomes("own", AVAILABLE)
    pool.wait(350)
    pool.becomes("own", OUT, "refuses us")
    assert pool.in_service() == ["rented"]
    assert pool.requests(20) == ["rented"] * 20
    pool.becomes("own", AVAILABLE)
    pool.wait(1000)
    assert pool.events[1:] == [
        (300, Ramping("chat", "rented", "own")),
        (350, FailedOver("chat", "own", "rented", "refuses us")),
        (950, Ramping("chat", "rented", "own")),
        (1070, FailedBack("chat", "rented", "own")),
    ]


def test_a_hold_is_short_again_after_the_primary_has_served_as_long_as_its_last_hold(pool: Pool) -> None:
    for serves_s, next_hold_s in [(599, 600), (600, 300)]:
        pool = Pool("own", "rented")
        pool.becomes("own", OUT)
        pool.becomes("own", RECOVERING)
        pool.becomes("own", OUT)  # a setback: 600 s
        pool.becomes("own", AVAILABLE)
        pool.wait(720)
        assert pool.in_service() == ["own"]
        pool.wait(serves_s)
        pool.becomes("own", OUT)
        pool.becomes("own", AVAILABLE)
        assert pool.failover.hold_until(0) == pool.now + next_hold_s


def test_a_primary_in_its_hold_serves_at_once_when_the_standby_is_gone(pool: Pool) -> None:
    pool.becomes("own", OUT)
    pool.becomes("own", AVAILABLE)
    pool.wait(10)
    pool.becomes("rented", OUT, "active probe")
    assert pool.in_service() == ["own"]
    assert pool.requests(5) == ["own"] * 5
    assert pool.events[-1] == (10, FailedOver("chat", "rented", "own", "active probe"))
    pool.becomes("rented", AVAILABLE)  # a standby needs no hold to stand by
    assert pool.phase("rented") is Phase.READY
    assert pool.in_service() == ["own"]


def test_a_ramp_ends_at_once_when_the_standby_is_gone(pool: Pool) -> None:
    pool.becomes("own", OUT)
    pool.becomes("own", AVAILABLE)
    pool.wait(310)
    pool.becomes("rented", OUT)
    assert pool.in_service() == ["own"]
    assert pool.failover.ramping is None
    assert pool.requests(50) == ["own"] * 50


def test_the_first_to_come_back_serves_when_all_are_out(pool: Pool) -> None:
    pool.becomes("own", OUT)
    pool.becomes("rented", OUT)
    assert pool.in_service() == []
    pool.becomes("own", RECOVERING)
    assert pool.in_service() == []
    pool.becomes("own", AVAILABLE)
    assert pool.in_service() == ["own"]


def test_a_pool_of_one_platform_never_fails_over() -> None:
    pool = Pool("own")
    pool.becomes("own", OUT)
    pool.becomes("own", AVAILABLE)
    pool.wait(1000)
    assert pool.in_service() == ["own"]
    assert pool.events == []


def test_a_primary_that_stops_being_available_before_its_hold_ends_starts_it_anew(pool: Pool) -> None:
    pool.becomes("own", OUT)
    pool.becomes("own", AVAILABLE)
    pool.wait(100)
    pool.becomes("own", RECOVERING)  # its last healthy backend was ejected, another one is being probed
    assert pool.failover.hold_until(0) == 100 + 600


def test_the_primary_stays_on_hold_until_it_is_fully_available(pool: Pool) -> None:
    pool.becomes("own", OUT)
    pool.becomes("own", RECOVERING)
    pool.wait(1000)  # too few requests to finish its probing
    assert pool.phase("own") is Phase.HOLD
    pool.becomes("own", AVAILABLE)
    assert pool.phase("own") is Phase.RAMP


def test_smoke_generations_are_asked_for_before_the_ramp() -> None:
    pool = Pool("own", "rented", smoke=("own",))
    pool.becomes("own", OUT)
    pool.becomes("own", AVAILABLE)
    pool.wait(1000)
    for ok in (True, True, False, True, True):
        pool.note(pool.failover.smoked(0, ok, pool.now))
        assert pool.phase("own") is Phase.HOLD
    pool.note(pool.failover.smoked(0, True, pool.now))
    assert pool.phase("own") is Phase.RAMP


def test_three_platforms_come_back_one_at_a_time() -> None:
    pool = Pool("own", "near", "far")
    pool.becomes("own", OUT)
    pool.becomes("near", OUT)
    assert pool.failover.order() == (2, 0, 1)
    pool.becomes("near", AVAILABLE)
    pool.wait(10)
    pool.becomes("own", AVAILABLE)
    pool.wait(291)
    assert pool.in_service() == ["near", "far"]
    assert pool.failover.order() == (2, 1, 0)
    pool.wait(1000)
    assert [(at, type(event), event.from_, event.to) for at, event in pool.events[2:]] == [
        (300, Ramping, "far", "near"),
        (420, FailedBack, "far", "near"),
        (420, Ramping, "near", "own"),
        (540, FailedBack, "near", "own"),
    ]


def test_a_standby_on_its_way_back_stands_by_as_soon_as_the_primary_serves() -> None:
    pool = Pool("own", "near", "far", hold_s=100)
    pool.becomes("own", OUT)
    pool.becomes("own", AVAILABLE)
    pool.becomes("near", OUT)
    pool.wait(90)
    pool.becomes("near", AVAILABLE)
    pool.wait(130)
    assert [pool.phase(name) for name in pool.names] == [Phase.READY] * 3


@pytest.mark.parametrize(("hold_s", "ramp_s"), [(0.0, 0.0), (10.0, 0.0), (0.0, 10.0)])
def test_zero_means_zero(hold_s: float, ramp_s: float) -> None:
    pool = Pool("own", "rented", hold_s=hold_s, ramp_s=ramp_s)
    pool.becomes("own", OUT)
    pool.becomes("own", AVAILABLE)
    pool.wait(hold_s + ramp_s)
    assert pool.in_service() == ["own"]


def test_another_file_keeps_what_is_known_of_a_platform_by_its_name(pool: Pool) -> None:
    pool.becomes("own", OUT)
    pool.becomes("own", AVAILABLE)
    pool.wait(100)
    moved = pool.failover.reconfigure(["own", "near", "rented"], [AVAILABLE, OUT, AVAILABLE], 300, 120, pool.now)
    assert moved == []
    assert [pool.failover.phase(index) for index in range(3)] == [Phase.HOLD, Phase.OUT, Phase.READY]
    assert pool.failover.hold_until(0) == 300
    assert [pool.failover.advance(300), pool.failover.ramping] == [[Ramping("chat", "rented", "own")], 0]
    moved = pool.failover.reconfigure(["near", "own", "rented"], [OUT, AVAILABLE, AVAILABLE], 300, 120, 310)
    assert (moved, pool.failover.ramping, pool.failover.in_service) == ([], 1, (1, 2))


def test_another_file_may_put_another_platform_first(pool: Pool) -> None:
    moved = pool.failover.reconfigure(["rented", "own"], [AVAILABLE, AVAILABLE], 300, 120, 0)
    assert moved == [FailedOver("chat", "own", "rented", "reconfigured")]
    assert pool.failover.reconfigure(["own"], [AVAILABLE], 300, 120, 0) == []
    assert pool.failover.in_service == (0,)


# -- what must always hold


class FailoverMachine(RuleBasedStateMachine):
    """Platforms that come and go in any order; requests all the while."""

    @initialize(count=st.integers(1, 4), hold_s=st.sampled_from([0.0, 300.0, 7200.0]), ramp_s=st.sampled_from([0.0, 120.0]))
    def start(self, count: int, hold_s: float, ramp_s: float) -> None:
        self.pool = Pool(*"abcd"[:count], hold_s=hold_s, ramp_s=ramp_s)
        self.hold_s, self.ramp_s = hold_s, ramp_s
        self.since = [-1e9] * count  # available without a break since
        self.back = [-1e9] * count  # had its first successful probe at

    @rule(index=st.integers(0, 3), standing=st.sampled_from(Standing))
    def becomes(self, index: int, standing: Standing) -> None:
        index %= len(self.since)
        before = self.pool.standings[index]
        if standing < before or before is OUT:
            self.back[index] = self.pool.now
        if standing is not before:
            self.since[index] = self.pool.now
        self.check(lambda: self.pool.becomes(self.pool.names[index], standing))

    @rule(index=st.integers(0, 3))
    def is_slow(self, index: int) -> None:
        index %= len(self.since)
        before = self.pool.phase(self.pool.names[index])
        self.pool.note(self.pool.failover.slowed(index, self.pool.now))
        if self.pool.phase(self.pool.names[index]) is not before:
            self.back[index] = self.pool.now

    @rule(seconds=st.sampled_from([0.0, 1.0, 60.0, 130.0, 301.0, 4000.0]))
    def wait(self, seconds: float) -> None:
        self.check(lambda: self.pool.wait(seconds))

    def check(self, act: object) -> None:
        assert callable(act)
        seen = len(self.pool.events)
        act()
        for at, event in self.pool.events[seen:]:
            to = self.pool.names.index(event.to)
            if isinstance(event, Ramping):  # S26: no ramp without a hold
                assert at - self.back[to] >= self.hold_s
            if isinstance(event, FailedBack):  # S26, S27: no failback without both
                assert at - self.back[to] >= self.hold_s + self.ramp_s

    @rule(number=st.integers(1, 300))
    def requests(self, number: int) -> None:
        failover = self.pool.failover
        went = self.pool.requests(number)
        serving = failover.in_service
        assert {self.pool.names.index(name) for name in went} <= set(serving or failover.order())
        if (ramping := failover.ramping) is not None:
            percent = failover._percent()
            assert abs(went.count(self.pool.names[ramping]) - number * percent / 100) <= 2

    @invariant()
    def who_serves_is_available_and_the_first_that_may(self) -> None:
        if not hasattr(self, "pool"):
            return
        failover, standings = self.pool.failover, self.pool.standings
        assert sorted(failover.order()) == list(range(len(standings)))
        available = [index for index, standing in enumerate(standings) if standing is AVAILABLE]
        assert bool(failover.in_service) == bool(available), "somebody is available and nobody serves"
        for index in failover.in_service:
            assert standings[index] is AVAILABLE
        phases = [failover.phase(index) for index in range(len(standings))]
        if available:
            first = phases.index(Phase.READY)
            assert failover.in_service[-1] == first
            assert all(phases[index] is Phase.READY for index in available if index > first)
        for phase, standing in zip(phases, standings, strict=True):
            assert (phase is Phase.OUT) == (standing is OUT)
        assert phases.count(Phase.RAMP) == (0 if failover.ramping is None else 1)


FailoverMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestFailoverAlwaysHolds = FailoverMachine.TestCase


# -- oracle 10: health and failover together


class Site:
    """A primary of one backend with a standby: one request a second, over at once, well or refused; an active probe every 5 s."""

    OK = Ending(Verdict.OK, Outcome.OK)
    REFUSED = Ending(Verdict.FAILED, Outcome.UPSTREAM_CONNECT, why="refused")

    def __init__(self) -> None:
        self.pool = Pool("own", "rented")
        self.health = Health(HealthRules(), 0.0, random.Random(3))
        self.platform = PlatformHealth(["own-1"])
        self.first_probe_at: float | None = None

    def report(self, change: Change) -> None:
        now = self.pool.now
        if change is Change.PROVES and self.first_probe_at is None:
            self.first_probe_at = now
        if change and self.platform.update("own-1", self.health):
            self.pool.becomes("own", self.platform.standing())

    def request(self, number: int, up: bool) -> None:
        """As the dispatcher does: a probing backend takes what it may; others go where the pool says."""
        probing = self.health.state() is HealthState.PROBING
        first = self.pool.failover.order()[0]
        if self.health.grantable() and (probing or first == 0):
            if not probing:
                self.pool.failover.charge(0)
            probe = self.health.granted(number, self.pool.now)
            lease = Lease(number, "chat", "own", "own-1", self.pool.now, self.health.epoch, probe=probe, slotless=False)
            may_eject = self.platform.may_eject("own-1", behind=True)
            self.report(self.health.ended(lease, self.OK if up else self.REFUSED, self.pool.now, may_eject))
        else:
            self.pool.failover.charge(1)

    def run(self, until_s: int, outages: Sequence[tuple[int, int]] = (), period_s: int = 0) -> None:
        """`outages` of the primary, as (from, to); or up and down in turn, `period_s` each."""
        for second in range(until_s):
            self.pool.wait(second - self.pool.now)
            self.report(self.health.advance(self.pool.now))
            down = bool(period_s and second // period_s % 2) or any(start <= second < end for start, end in outages)
            if second % 5 == 0:
                self.report(self.health.probed(not down, self.pool.now))
            self.request(second, not down)


def test_oracle_a_primary_up_and_down_every_minute_never_comes_back() -> None:
    site = Site()
    site.run(4 * 3600, period_s=60)
    assert [type(event) for _, event in site.pool.events] == [FailedOver]


def test_oracle_one_outage_of_a_minute_is_over_420_s_after_the_first_successful_probe() -> None:
    site = Site()
    site.run(1200, outages=[(100, 160)])
    assert site.first_probe_at is not None
    assert site.first_probe_at >= 160
    assert [type(event) for _, event in site.pool.events] == [FailedOver, Ramping, FailedBack]
    assert site.pool.events[-1][0] == pytest.approx(site.first_probe_at + 420)
