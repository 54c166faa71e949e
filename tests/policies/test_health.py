"""May this backend receive traffic? Conversations first, then what must hold over any of them (S21-S25), then the oracle of detection."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from policies.health import Change, Health, HealthRules, HealthState, PlatformHealth, Window
from policies.model import Ending, Lease, Outcome, Standing, Verdict

OK = Ending(Verdict.OK, Outcome.OK)
CUT = Ending(Verdict.FAILED, Outcome.TRUNCATED, why="cut")
STATUS_500 = Ending(Verdict.FAILED, Outcome.UPSTREAM_STATUS, why="status 500")
REFUSED = Ending(Verdict.FAILED, Outcome.UPSTREAM_CONNECT, maybe_starting=True, why="refused")
GONE = Ending(Verdict.NEUTRAL, Outcome.CLIENT_GONE)
NO_CREDIT = Ending(Verdict.REFUSES_US, Outcome.UPSTREAM_AUTH)


def busy(retry_after_s: float | None = None) -> Ending:
    return Ending(Verdict.BUSY, Outcome.UPSTREAM_STATUS, retry_after_s)


class Backend:
    """One backend and the host around it, on a clock that the test moves."""

    def __init__(self, rules: HealthRules | None = None, seed: int = 0) -> None:
        self.now = 1000.0
        self.health = Health(rules or HealthRules(), self.now, random.Random(seed))
        self._numbers = 0

    def wait(self, seconds: float) -> Change:
        """Lets time pass the way a host does: waking at every `next_at`. Answers the strongest change."""
        until, change = self.now + seconds, Change.NONE
        while (at := self.health.next_at()) is not None and at <= until:
            self.now = max(self.now, at)
            change = max(change, self.health.advance(self.now))
            after = self.health.next_at()
            assert after is None or after > self.now, "advance left something undone"
        self.now = until
        return max(change, self.health.advance(self.now))

    def send(self) -> Lease:
        self._numbers += 1
        probe = self.health.granted(self._numbers, self.now)
        return Lease(self._numbers, "chat", "gpu", "gpu-1", self.now, self.health.epoch, probe=probe, slotless=False)

    def answers(self, ending: Ending, after_s: float = 0.0, may_eject: bool = True) -> Change:
        """One request goes there and ends so."""
        lease = self.send()
        if after_s:
            self.wait(after_s)
        return self.health.ended(lease, ending, self.now, may_eject)

    def eject(self) -> None:
        while self.health.state() is not HealthState.EJECTED:
            self.answers(STATUS_500)

    def to_probing(self) -> None:
        self.eject()
        until = self.health.condition().until_at
        assert until is not None
        self.wait(until - self.now)
        assert self.health.state() is HealthState.PROBING


@pytest.fixture
def backend() -> Backend:
    one = Backend()
    one.answers(OK)  # it has served: no longer in its startup
    return one


# -- ejection


def test_five_failures_in_a_row_eject(backend: Backend) -> None:
    assert [backend.answers(STATUS_500) for _ in range(5)] == [Change.NONE] * 4 + [Change.EJECTED]
    assert backend.health.state() is HealthState.EJECTED
    assert backend.health.condition().why == "5 failures in a row: status 500"
    assert not backend.health.grantable()
    with pytest.raises(ValueError, match="ejected"):
        backend.send()


def test_a_success_between_failures_starts_the_count_anew(backend: Backend) -> None:
    for ending in [STATUS_500] * 4 + [OK] + [STATUS_500] * 4:
        assert backend.answers(ending) is Change.NONE


@pytest.mark.parametrize("neither", [GONE, NO_CREDIT])
def test_what_says_nothing_about_the_backend_changes_nothing(backend: Backend, neither: Ending) -> None:
    for _ in range(4):
        backend.answers(STATUS_500)
        assert [backend.answers(neither) for _ in range(50)] == [Change.NONE] * 50
    assert backend.answers(STATUS_500) is Change.EJECTED


def test_success_below_half_of_twenty_in_thirty_seconds_ejects(backend: Backend) -> None:
    pattern = [OK, STATUS_500] * 9  # with the success at the start of the fixture: 10 of 19, never two failures in a row
    assert {backend.answers(ending) for ending in pattern} == {Change.NONE}
    assert backend.answers(STATUS_500) is Change.NONE  # 20 samples, half of them good: not below
    assert backend.answers(STATUS_500) is Change.EJECTED
    assert backend.health.condition().why == "success below 50 %: status 500"


def test_samples_older_than_thirty_seconds_do_not_count(backend: Backend) -> None:
    for ending in [STATUS_500, STATUS_500, OK] * 6:
        backend.answers(ending)
    backend.wait(30)
    for ending in [STATUS_500, STATUS_500, OK] * 6:
        assert backend.answers(ending) is Change.NONE


def test_pauses_double_with_jitter_up_to_five_minutes() -> None:
    pauses: list[list[float]] = []
    for seed in range(40):
        backend = Backend(seed=seed)
        backend.answers(OK)
        backend.eject()
        pauses.append([])
        for _ in range(7):
            until = backend.health.condition().until_at
            assert until is not None
            pauses[-1].append(until - backend.now)
            backend.wait(until - backend.now)
            assert backend.answers(CUT) is Change.EJECTED  # the probe fails
    for nominal, drawn in zip([15, 30, 60, 120, 240, 250, 250], zip(*pauses, strict=True), strict=True):
        assert min(drawn) >= nominal * 0.8
        assert max(drawn) <= nominal * 1.2
        assert max(drawn) - min(drawn) > nominal * 0.2, "hardly any jitter"


def test_pauses_start_small_again_after_five_healthy_minutes() -> None:
    backend = Backend(HealthRules(pause_jitter_ratio=0.0))
    for healthy_s, pause_s in [(0, 15), (200, 30), (300, 15)]:
        backend.answers(OK)
        backend.wait(healthy_s)
        backend.eject()
        assert backend.health.condition().until_at == backend.now + pause_s
        backend.wait(pause_s)
        for _ in range(3):
            backend.answers(OK)
        assert backend.health.state() is HealthState.HEALTHY


def test_the_guard_holds_an_ejection_back_only_while_it_must(backend: Backend) -> None:
    for _ in range(9):
        assert backend.answers(STATUS_500, may_eject=False) is Change.NONE
    assert backend.answers(STATUS_500, may_eject=True) is Change.EJECTED


def test_results_of_an_earlier_epoch_are_ignored(backend: Backend) -> None:
    old = [backend.send() for _ in range(8)]
    backend.to_probing()
    assert [backend.health.first_token(lease, backend.now) for lease in old] == [Change.NONE] * 8
    assert [backend.health.ended(lease, ending, backend.now) for lease, ending in zip(old, [OK, CUT] * 4, strict=True)] == [Change.NONE] * 8
    assert backend.health.state() is HealthState.PROBING
    assert backend.health.grantable()


# -- probing


def test_probing_admits_one_at_a_time_and_three_successes_recover(backend: Backend) -> None:
    backend.to_probing()
    assert backend.health.standing() is Standing.OUT
    for change in (Change.PROVES, Change.ROOM, Change.RECOVERED):
        probe = backend.send()
        assert probe.probe
        assert not backend.health.grantable()
        assert backend.health.ended(probe, OK, backend.now) is change
    assert backend.health.state() is HealthState.HEALTHY
    assert backend.health.standing() is Standing.AVAILABLE
    assert not backend.send().probe


def test_a_probe_succeeds_with_its_first_token_and_keeps_its_permit_to_its_end(backend: Backend) -> None:
    backend.to_probing()
    probe = backend.send()
    assert backend.health.first_token(probe, backend.now) is Change.PROVES
    assert backend.health.standing() is Standing.RECOVERING
    assert not backend.health.grantable()
    assert backend.health.first_token(probe, backend.now) is Change.NONE
    assert backend.health.ended(probe, OK, backend.now) is Change.ROOM
    for change in (Change.ROOM, Change.RECOVERED):  # so the first counted once, not twice
        assert backend.answers(OK) is change


def test_a_probe_that_streams_past_its_deadline_lets_the_next_one_in(backend: Backend) -> None:
    backend.to_probing()
    probe = backend.send()
    backend.health.first_token(probe, backend.now)
    backend.wait(59)
    assert not backend.health.grantable()
    assert backend.wait(1) is Change.ROOM
    second = backend.send()
    assert second.probe
    assert backend.health.ended(probe, OK, backend.now) is Change.NONE  # and does not give back another's permit
    assert not backend.health.grantable()


@pytest.mark.parametrize(("startup_s", "deadline_s"), [(5, 30), (120, 120)])
def test_a_probe_may_wait_for_its_first_token_as_long_as_a_model_loads(startup_s: float, deadline_s: float) -> None:
    assert Backend(HealthRules(startup_s=startup_s)).health.probe_deadline_s() == deadline_s


@pytest.mark.parametrize("ending", [GONE, NO_CREDIT])
def test_a_cancelled_probe_gives_its_permit_back_and_changes_nothing(backend: Backend, ending: Ending) -> None:
    backend.to_probing()
    backend.answers(OK)
    before = (backend.health.state(), backend.health.standing(), backend.health.epoch)
    assert backend.answers(ending) is Change.ROOM
    assert (backend.health.state(), backend.health.standing(), backend.health.epoch) == before
    assert backend.health.grantable()
    assert [backend.answers(OK) for _ in range(2)] == [Change.ROOM, Change.RECOVERED]


def test_a_probe_cut_after_its_first_token_failed(backend: Backend) -> None:
    backend.to_probing()
    probe = backend.send()
    backend.health.first_token(probe, backend.now)
    assert backend.health.ended(probe, CUT, backend.now) is Change.EJECTED
    assert backend.health.standing() is Standing.OUT


def test_a_busy_probe_is_no_failure(backend: Backend) -> None:
    backend.to_probing()
    backend.answers(OK)
    assert backend.answers(busy(7)) is Change.RESTS
    assert backend.health.standing() is Standing.RECOVERING
    assert not backend.health.grantable()
    assert backend.wait(7) is Change.WAKES
    assert [backend.answers(OK) for _ in range(2)] == [Change.ROOM, Change.RECOVERED]


# -- slow start


def test_slow_start_grows_from_a_tenth_to_all_over_a_minute(backend: Backend) -> None:
    assert backend.health.cap(200) == 200  # not at our own start
    backend.to_probing()
    for _ in range(3):
        backend.answers(OK)
    caps = []
    for _ in range(13):
        caps.append(backend.health.cap(200))
        backend.wait(5)
    assert caps[0] == 20
    assert caps[-1] == 200
    assert caps == sorted(caps)
    for cap, ideal in zip(caps, [20 + 15 * step for step in range(13)], strict=True):
        assert ideal - 10 <= cap <= ideal  # one step of 5 % behind at most
    assert backend.health.next_at() is None


@pytest.mark.parametrize("max_streams", [1, 2, 9, 16])
def test_slow_start_leaves_at_least_one_slot(backend: Backend, max_streams: int) -> None:
    backend.to_probing()
    for _ in range(3):
        backend.answers(OK)
    assert backend.health.cap(max_streams) == 1
    backend.wait(60)
    assert backend.health.cap(max_streams) == max_streams


def test_failures_from_before_a_recovery_do_not_count_after_it(backend: Backend) -> None:
    backend.to_probing()
    for _ in range(3):  # all three prove themselves by their first tokens, and are still streaming
        probe = backend.send()
        change = backend.health.first_token(probe, backend.now)
        backend.wait(60)
    assert change is Change.RECOVERED
    assert [backend.answers(CUT) for _ in range(5)] == [Change.NONE] * 4 + [Change.EJECTED]


def test_an_ejection_ends_a_slow_start(backend: Backend) -> None:
    backend.to_probing()
    for _ in range(3):
        backend.answers(OK)
    backend.wait(10)
    backend.eject()
    assert backend.wait(10) is Change.NONE
    assert backend.health.condition().until_at == backend.health.next_at()


# -- busy


@pytest.mark.parametrize(("asked_s", "rest_s"), [(2, 2), (0.5, 0.5), (3600, 60), (-1, 0), (None, 1)])
def test_busy_rests_as_long_as_asked_for(backend: Backend, asked_s: float | None, rest_s: float) -> None:
    assert backend.answers(busy(asked_s)) is Change.RESTS
    assert backend.health.blocked_until() == backend.now + rest_s
    assert backend.health.standing() is Standing.AVAILABLE


def test_unasked_rests_double_up_to_thirty_seconds(backend: Backend) -> None:
    rests = []
    for _ in range(7):
        backend.answers(busy())
        rests.append(backend.health.blocked_until() - backend.now)
        assert not backend.health.grantable()
        assert backend.wait(rests[-1]) is Change.WAKES
        assert backend.health.grantable()
    assert rests == [1, 2, 4, 8, 16, 30, 30]
    backend.answers(OK)
    backend.answers(busy())
    assert backend.health.blocked_until() == backend.now + 1


def test_of_several_rests_the_latest_answer_counts(backend: Backend) -> None:
    leases = [backend.send() for _ in range(3)]
    backend.health.ended(leases[0], busy(40), backend.now)
    backend.health.ended(leases[1], busy(5), backend.now)
    assert backend.health.blocked_until() == backend.now + 5
    backend.health.ended(leases[2], busy(), backend.now)  # sent before any of this: it does not double anything
    assert backend.health.blocked_until() == backend.now + 1


def test_the_end_of_a_stream_from_before_does_not_end_a_rest(backend: Backend) -> None:
    old = backend.send()
    backend.answers(busy(10))
    backend.health.ended(old, OK, backend.now)
    assert not backend.health.grantable()


# -- starting


def test_refused_before_the_first_success_is_starting_not_failed() -> None:
    backend = Backend(HealthRules(startup_s=60))
    for _ in range(59):
        assert backend.answers(REFUSED) is Change.RESTS
        assert backend.health.starting()
        assert not backend.health.grantable()
        backend.wait(1)
        assert backend.health.grantable()  # it may be asked again
    assert backend.health.standing() is Standing.AVAILABLE
    backend.wait(1)
    assert not backend.health.starting()
    assert [backend.answers(REFUSED) for _ in range(5)][-1] is Change.EJECTED


def test_the_first_success_ends_the_startup() -> None:
    backend = Backend()
    early = backend.send()
    backend.answers(REFUSED)
    assert backend.health.first_token(early, backend.now) is Change.WAKES
    assert backend.health.grantable()
    assert backend.health.cap(16) == 16  # our own start is not slow
    assert [backend.answers(REFUSED) for _ in range(5)][-1] is Change.EJECTED


def test_a_failure_that_is_no_refusal_counts_in_startup_too() -> None:
    backend = Backend()
    assert [backend.answers(STATUS_500) for _ in range(5)][-1] is Change.EJECTED


# -- slow


def test_late_first_tokens_halve_the_weight(backend: Backend) -> None:
    def first_tokens(number: int, ttft_s: float) -> None:
        for _ in range(number):
            lease = backend.send()
            lease.granted_at -= ttft_s
            backend.health.first_token(lease, backend.now, slo_ttft_s=1.0)

    first_tokens(9, 2.9)
    first_tokens(9, 3.1)
    first_tokens(1, 3.1)
    assert backend.health.weight_ratio() == 1.0  # 19 say nothing
    first_tokens(1, 2.9)
    assert backend.health.weight_ratio() == 1.0  # half is not more than half
    first_tokens(1, 3.1)
    assert backend.health.weight_ratio() == 0.5
    assert backend.health.condition().why == "slow"
    first_tokens(1, 2.9)
    assert backend.health.weight_ratio() == 1.0
    first_tokens(1, 3.1)
    assert backend.health.weight_ratio() == 0.5
    assert backend.wait(30) is Change.ROOM  # without news it is given another chance
    assert backend.health.weight_ratio() == 1.0


def test_without_an_slo_nothing_is_slow(backend: Backend) -> None:
    for _ in range(50):
        lease = backend.send()
        lease.granted_at -= 100
        backend.health.first_token(lease, backend.now)
    assert backend.health.weight_ratio() == 1.0


# -- active probe, drain, pardon


def test_three_failed_probes_are_down_and_two_good_ones_up(backend: Backend) -> None:
    health = backend.health
    for alive in (False, False, True, False, False):
        assert health.probed(alive, backend.now) is Change.NONE
    assert health.probed(False, backend.now) is Change.EJECTED
    assert (health.condition().why, health.condition().until_at) == ("active probe", None)
    assert not health.learned_away()
    backend.wait(10_000)
    assert health.state() is HealthState.EJECTED
    assert [health.probed(alive, backend.now) for alive in (True, False, True)] == [Change.NONE] * 3
    assert health.probed(True, backend.now) is Change.PROBES
    assert [backend.answers(OK) for _ in range(3)][-1] is Change.RECOVERED


def test_a_backend_that_is_down_and_comes_back_does_not_wait_out_its_old_pause(backend: Backend) -> None:
    backend.eject()
    assert [backend.health.probed(False, backend.now) for _ in range(3)][-1] is Change.EJECTED
    backend.health.probed(True, backend.now)
    assert backend.health.probed(True, backend.now) is Change.PROBES


def test_the_active_probe_of_a_loading_engine_says_starting() -> None:
    backend = Backend(HealthRules(startup_s=60))
    assert [backend.health.probed(False, backend.now) for _ in range(9)] == [Change.RESTS] + [Change.NONE] * 8
    assert backend.health.starting()
    assert backend.health.probed(True, backend.now) is Change.WAKES
    assert not backend.health.starting()


def test_drained_gets_nothing_and_keeps_its_health_underneath(backend: Backend) -> None:
    lease = backend.send()
    assert backend.health.drain() is Change.DRAINED
    assert backend.health.drain() is Change.NONE
    assert backend.health.state() is HealthState.DRAINED
    assert backend.health.standing() is Standing.OUT
    assert not backend.health.grantable()
    assert backend.health.ended(lease, OK, backend.now) is Change.NONE
    assert backend.health.undrain() is Change.UNDRAINED
    assert backend.health.undrain() is Change.NONE
    assert backend.health.state() is HealthState.HEALTHY
    assert backend.health.cap(16) == 16


def test_pardon_brings_back_what_traffic_ejected_and_nothing_else(backend: Backend) -> None:
    assert backend.health.pardon(backend.now) is Change.NONE
    backend.eject()
    assert backend.health.pardon(backend.now) is Change.RECOVERED
    assert backend.health.cap(100) == 10
    for _ in range(3):
        backend.health.probed(False, backend.now)
    assert backend.health.pardon(backend.now) is Change.NONE


# -- the platform


def platform_of(*backends: Backend) -> tuple[PlatformHealth, Callable[[], None]]:
    platform = PlatformHealth([str(index) for index in range(len(backends))])

    def report() -> None:
        for index, backend in enumerate(backends):
            platform.update(str(index), backend.health)

    return platform, report


def test_traffic_ejects_half_of_a_platform_at_most() -> None:
    backends = [Backend() for _ in range(5)]
    platform, report = platform_of(*backends)
    for ejected in range(2):
        assert platform.may_eject(str(ejected), behind=False)
        backends[ejected].eject()
        report()
    assert not platform.may_eject("2", behind=False)
    assert platform.may_eject("2", behind=True)  # a later platform is there
    assert platform.may_eject("1", behind=False)  # it is away already: a failed probe costs nothing more
    backends[2].eject()
    report()
    assert platform.excess() == ("0",)  # what to pardon when the later platform goes


def test_the_only_backend_is_never_ejected_by_traffic_alone() -> None:
    assert not PlatformHealth(["only"]).may_eject("only", behind=False)
    assert PlatformHealth(["only"]).may_eject("only", behind=True)


def test_what_the_active_probe_ejected_leaves_the_guard_its_allowance() -> None:
    backends = [Backend() for _ in range(2)]
    platform, report = platform_of(*backends)
    backends[0].answers(OK)  # past its startup
    backends[0].eject()
    report()
    assert not platform.may_eject("1", behind=False)
    for _ in range(3):
        backends[0].health.probed(False, backends[0].now)
    report()
    assert platform.may_eject("1", behind=False)


def test_a_platform_stands_as_its_best_backend_does() -> None:
    backends = [Backend() for _ in range(2)]
    platform, report = platform_of(*backends)
    backends[0].to_probing()
    report()
    assert platform.standing() is Standing.AVAILABLE
    backends[1].eject()
    assert platform.update("1", backends[1].health)
    assert platform.standing() is Standing.OUT
    backends[0].answers(OK)
    assert platform.update("0", backends[0].health)
    assert not platform.update("0", backends[0].health)
    assert platform.standing() is Standing.RECOVERING


def test_a_platform_that_refuses_us_is_out_for_a_minute() -> None:
    platform = PlatformHealth(["a", "b"])
    assert platform.refused(now=100)
    assert platform.standing() is Standing.OUT
    assert not platform.refused(now=110)  # no news, but a minute from here
    assert platform.next_at() == 170
    assert not platform.advance(now=169)
    assert platform.advance(now=170)
    assert platform.standing() is Standing.AVAILABLE
    assert platform.next_at() is None


# -- the window


def test_the_window_counts_as_a_list_would() -> None:
    rng = random.Random(1)
    window, samples, now = Window(30), list[tuple[int, bool]](), 0.0
    for _ in range(5000):
        now += rng.choice([0.0, 0.1, 0.4, 3.0, 20.0]) if rng.random() < 0.5 else 0.0
        hit = rng.random() < 0.6
        window.add(hit, now)
        samples.append((int(now), hit))
        samples = [(second, was) for second, was in samples if second > int(now) - 30]
        assert (window.hits, window.total) == (sum(was for _, was in samples), len(samples))


# -- what must always hold


class HealthMachine(RuleBasedStateMachine):
    """A platform of backends under any order of events, with a standby that comes and goes behind it."""

    @initialize(count=st.integers(1, 5), startup_s=st.sampled_from([0.0, 60.0]), seed=st.integers(0, 3))
    def start(self, count: int, startup_s: float, seed: int) -> None:
        self.now = 50.0
        rng = random.Random(seed)
        self.healths = [Health(HealthRules(startup_s=startup_s), self.now, rng) for _ in range(count)]
        self.platform = PlatformHealth(str(index) for index in range(count))
        self.behind = True
        self.leases: list[Lease] = []
        self.down = [False] * count
        self.numbers = 0
        self.only_busy = [True] * count  # it has had no failure and no failed active probe so far

    def report(self, index: int, change: Change, before: tuple[object, ...]) -> None:
        health = self.healths[index]
        if before != self.look(index):
            assert change, "a change was not announced"
        self.platform.update(str(index), health)

    def look(self, index: int) -> tuple[object, ...]:
        health = self.healths[index]
        return (health.state(), health.standing(), health.grantable(), health.cap(40), health.weight_ratio(), health.starting())

    @rule(data=st.data())
    def grant(self, data: st.DataObject) -> None:
        open_to = [index for index, health in enumerate(self.healths) if health.grantable()]
        if open_to:
            index = data.draw(st.sampled_from(open_to))
            self.numbers += 1
            probe = self.healths[index].granted(self.numbers, self.now)
            assert probe == (self.healths[index].state() is HealthState.PROBING)
            epoch = self.healths[index].epoch
            self.leases.append(Lease(self.numbers, "p", "gpu", str(index), self.now, epoch, probe=probe, slotless=False))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def first_token(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.leases))
        index = int(lease.backend)
        before = self.look(index)
        self.report(index, self.healths[index].first_token(lease, self.now, 0.5), before)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), ending=st.sampled_from([OK, CUT, CUT, CUT, REFUSED, GONE, NO_CREDIT, busy(), busy(0), busy(90)]))
    def end(self, data: st.DataObject, ending: Ending) -> None:
        lease = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
        self.finish(lease, ending)

    @rule(index=st.integers(0, 4), times=st.integers(1, 25), ending=st.sampled_from([OK, CUT, REFUSED, busy()]))
    def run_of(self, index: int, times: int, ending: Ending) -> None:
        index %= len(self.healths)
        for _ in range(times):
            if self.healths[index].grantable():
                self.numbers += 1
                probe = self.healths[index].granted(self.numbers, self.now)
                epoch = self.healths[index].epoch
                self.finish(Lease(self.numbers, "p", "gpu", str(index), self.now, epoch, probe=probe, slotless=False), ending)

    def finish(self, lease: Lease, ending: Ending) -> None:
        index = int(lease.backend)
        before, epoch = self.look(index), self.healths[index].epoch
        may_eject = self.platform.may_eject(lease.backend, self.behind)
        change = self.healths[index].ended(lease, ending, self.now, may_eject)
        if ending.verdict is Verdict.FAILED:
            self.only_busy[index] = False
        else:
            assert self.healths[index].epoch == epoch, "ejected without a failure"
        if lease.epoch != epoch:
            assert change is Change.NONE
            assert self.look(index) == before, "a late result counted"
        self.report(index, change, before)

    @rule(index=st.integers(0, 4), alive=st.booleans(), times=st.integers(1, 3))
    def active_probe(self, index: int, alive: bool, times: int) -> None:
        index %= len(self.healths)
        self.only_busy[index] &= alive
        for _ in range(times):
            before = self.look(index)
            self.report(index, self.healths[index].probed(alive, self.now), before)

    @rule(index=st.integers(0, 4), on=st.booleans())
    def drain(self, index: int, on: bool) -> None:
        index %= len(self.healths)
        before = self.look(index)
        self.report(index, self.healths[index].drain() if on else self.healths[index].undrain(), before)

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 31.0, 400.0]))
    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while (at := min((at for health in self.healths if (at := health.next_at()) is not None), default=until + 1)) <= until:
            self.now = max(self.now, at)
            self.advance()
        self.now = until
        self.advance()

    def advance(self) -> None:
        for index, health in enumerate(self.healths):
            before = self.look(index)
            self.report(index, health.advance(self.now), before)
            at = health.next_at()
            assert at is None or at > self.now, "advance left something undone"

    @rule(behind=st.booleans())
    def standby(self, behind: bool) -> None:
        self.behind = behind
        if not behind:
            for name in self.platform.excess():
                before = self.look(int(name))
                self.report(int(name), self.healths[int(name)].pardon(self.now), before)

    @invariant()
    def s21_nothing_goes_to_an_ejected_or_drained_backend(self) -> None:
        for health in getattr(self, "healths", []):
            if health.state() in (HealthState.EJECTED, HealthState.DRAINED):
                assert not health.grantable()
                assert health.standing() is Standing.OUT

    @invariant()
    def s22_at_most_one_probe_that_is_not_overdue(self) -> None:
        for index, health in enumerate(getattr(self, "healths", [])):
            if health.state() is HealthState.PROBING:
                probes = [lease for lease in self.leases if lease.backend == str(index) and lease.epoch == health.epoch and lease.probe]
                assert sum(self.now < lease.granted_at + health.probe_deadline_s() for lease in probes) <= 1

    @invariant()
    def s23_probing_never_gets_stuck(self) -> None:
        """Whoever probes takes a request now, or something has a time at which it will, or an operator has it drained."""
        for health in getattr(self, "healths", []):
            if health.state() is HealthState.PROBING and not health.grantable():
                at = health.next_at()
                assert at is not None
                assert at <= self.now + max(60, health.probe_deadline_s())  # 60 s: the longest rest

    @invariant()
    def s24_busy_never_counts_as_failed(self) -> None:
        for health, only_busy in zip(getattr(self, "healths", []), getattr(self, "only_busy", []), strict=True):
            assert not only_busy or health.state() in (HealthState.HEALTHY, HealthState.DRAINED)

    @invariant()
    def s25_half_is_left_while_nothing_stands_behind(self) -> None:
        healths = getattr(self, "healths", [])
        if healths and not self.behind:
            assert sum(health.learned_away() for health in healths) <= len(healths) // 2


HealthMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestHealthAlwaysHolds = HealthMachine.TestCase


def test_the_same_calls_give_the_same_answers() -> None:
    """S0: two runs of one random script, draws of the jitter included."""

    def run() -> list[object]:
        rng = random.Random(7)
        backend = Backend(seed=5)
        said: list[object] = []
        for _ in range(500):
            if backend.health.grantable():
                said.append(backend.answers(rng.choice([OK, CUT, CUT, busy(), GONE])))
            said.append(backend.wait(rng.choice([0.0, 0.5, 20.0])))
            said.append(backend.health.condition())
        return said

    assert run() == run()


# -- oracle 9


@pytest.mark.parametrize("error_ratio", [1.0, 0.7, 0.5])
def test_oracle_detection(error_ratio: float) -> None:
    """Requests until 5 failures in a row at error rate p: (1 - p^5) / (p^5 (1 - p)) in the mean."""
    rng = random.Random(9)
    rules = HealthRules(window_samples=10**9)  # the rule of the row alone
    counts = []
    for _ in range(2000):
        backend = Backend(rules)
        count = 0
        while backend.health.state() is HealthState.HEALTHY:
            backend.answers(STATUS_500 if rng.random() < error_ratio else OK)
            count += 1
        counts.append(count)
    p = error_ratio
    expected = 5.0 if p == 1 else (1 - p**5) / (p**5 * (1 - p))
    spread = statistics.stdev(counts) / len(counts) ** 0.5
    assert abs(statistics.mean(counts) - expected) <= 4 * spread
