"""May this backend receive traffic, and how much of it?

Model: a circuit breaker fed by real traffic, and beside it the active probe. Three states (`_LEGAL` is all there is to them):

    HEALTHY --ejection--> EJECTED --pause over--> PROBING --3 successes--> HEALTHY, with slow start
                             ^----- failure --------'

Laid over them, without being states: *resting* (busy: blocked for a while, no failure), *starting* (has never served, may still be
loading its model), *slow* (half the weight), *drained* (an operator's). An ejection begins a new epoch; results of leases granted in
an earlier one are ignored. `PlatformHealth` adds a platform's backends up and keeps traffic from ejecting too many of them.

Nothing moves by itself: `advance(now)` is called at `next_at()` at the latest; between calls the questions are plain reads. What may
change something returns a `Change`. Every call is O(1), amortised. Source of the figures: policies.md 7 (Envoy's outlier detection,
with probing by one request at a time instead of a return at full weight).
"""

from __future__ import annotations

import enum
import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from policies.model import Ending, Lease, Standing, Verdict


class HealthState(enum.IntEnum):
    """The numbers are those of the metric `fairlane_backend_state`."""

    HEALTHY = 0
    PROBING = 1
    EJECTED = 2
    DRAINED = 3  # laid over the other three by an operator


_LEGAL = {
    HealthState.HEALTHY: {HealthState.EJECTED},
    HealthState.EJECTED: {HealthState.PROBING, HealthState.HEALTHY},  # HEALTHY: pardoned
    HealthState.PROBING: {HealthState.HEALTHY, HealthState.EJECTED},
}


class Change(enum.IntEnum):
    """What a call changed that matters to dispatching: the strongest, if several. Falsy: nothing."""

    NONE = 0
    ROOM = 1  # cap, weight or probe permit: there may be room now
    RESTS = 2  # busy or starting: blocked for a while
    WAKES = 3  # the rest is over, or it no longer counts as starting
    PROBES = 4  # the pause is over: one request at a time
    PROVES = 5  # the first probe succeeded
    RECOVERED = 6
    UNDRAINED = 7
    DRAINED = 8
    EJECTED = 9


_OK, _HEALTHY, _NOTHING = Verdict.OK, HealthState.HEALTHY, Change.NONE  # looked up once: what most calls compare with


@dataclass(frozen=True, slots=True)
class HealthRules:
    """The figures of policies.md 7, for the backends of one platform."""

    startup_s: float = 60.0
    failures_in_row: int = 5
    window_s: int = 30
    window_samples: int = 20  # fewer say nothing
    pause_s: float = 15.0
    pause_max_s: float = 300.0  # also how long a backend must be healthy for its next pause to be a first one again
    pause_jitter_ratio: float = 0.2
    probe_s: float = 30.0
    probes_needed: int = 3
    rest_s: float = 1.0
    rest_max_s: float = 30.0
    rest_asked_max_s: float = 60.0
    slow_factor: float = 3.0  # a first token is late beyond this many times the SLO's TTFT
    slow_weight_ratio: float = 0.5
    slow_start_s: float = 60.0
    active_failures: int = 3
    active_successes: int = 2


class Condition(NamedTuple):
    """A backend's health for the snapshot. `until_at`: when what `why` names ends, if that is known."""

    state: HealthState
    why: str
    until_at: float | None


class Window:
    """How many of the last `length_s` seconds' samples were hits? Buckets of one second, so O(1) amortised however many samples."""

    __slots__ = ("_bucket", "_buckets", "_length_s", "_second", "hits", "total")

    def __init__(self, length_s: int) -> None:
        self._length_s = length_s
        self._buckets: deque[tuple[int, list[int]]] = deque()  # second, [hits, total]
        self._second: int | None = None  # of the latest bucket
        self._bucket = [0, 0]
        self.hits = 0
        self.total = 0

    def add(self, hit: bool, now: float) -> None:
        second = int(now)
        if second != self._second:
            self._turn_to(second)
        bucket = self._bucket
        bucket[1] += 1
        self.total += 1
        if hit:
            bucket[0] += 1
            self.hits += 1

    def _turn_to(self, second: int) -> None:
        while self._buckets and self._buckets[0][0] <= second - self._length_s:
            _, (hits, total) = self._buckets.popleft()
            self.hits -= hits
            self.total -= total
        self._second, self._bucket = second, [0, 0]
        self._buckets.append((second, self._bucket))

    def clear(self) -> None:
        self._buckets.clear()
        self._second = None
        self.hits = self.total = 0


class Health:
    """May this one backend receive traffic? A lease carries the `epoch` it was granted in."""

    _SLOW_START_STEPS = 18  # of 5 %, from 10 %: each step is one event, and at 60 s one every 3.3 s

    def __init__(self, rules: HealthRules, now: float, rng: random.Random) -> None:
        self.epoch = 0
        self._rules = rules
        self._rng = rng
        self._state = HealthState.HEALTHY
        self._drained = False
        self._why = ""
        # Traffic: what ejects, and how long the next pause is.
        self._failures_row = 0
        self._served = Window(rules.window_s)
        self._learned = False  # the ejection is traffic's, not the active probe's
        self._pauses_row = 0
        self._pause_until: float | None = None
        self._healthy_at = now
        # Probing.
        self._permit: int | None = None  # the lease that is the probe
        self._permit_until = 0.0
        self._proofs = 0
        # Resting and starting.
        self._blocked_until = 0.0
        self._rests_row = 0
        self._rest_ended_at = 0.0  # of the latest rest for being busy: leases granted before know nothing new
        self._startup_until: float | None = now + rules.startup_s  # None: has served, or had its time
        self._starting = False
        # Weight and cap.
        self._late = Window(rules.window_s)
        self._slow_until: float | None = None
        self._slow_start_at: float | None = None
        self._slow_start_step = 0
        # The active probe.
        self._down = False
        self._seen_alive = False
        self._active_row = 0  # > 0 successes in a row, < 0 failures in a row

    # -- questions

    def state(self) -> HealthState:
        return HealthState.DRAINED if self._drained else self._state

    def standing(self) -> Standing:
        """What is it good for, as failover sees it? Resting and starting change nothing."""
        if self._drained or self._state is HealthState.EJECTED:
            return Standing.OUT
        if self._state is HealthState.HEALTHY:
            return Standing.AVAILABLE
        return Standing.RECOVERING if self._proofs else Standing.OUT

    def blocked_until(self) -> float:
        """Until when does it rest (0.0: it does not)?"""
        return self._blocked_until

    def starting(self) -> bool:
        """Has it refused and never served, within its startup? Then others are preferred; between rests of 1 s it may be asked again."""
        return self._starting

    def grantable(self) -> bool:
        """May one more request go there, slots apart? Healthy, or probing with its permit free; neither resting nor drained."""
        if self._drained or self._blocked_until:
            return False
        return self._state is HealthState.HEALTHY or (self._state is HealthState.PROBING and self._permit is None)

    def probe_deadline_s(self) -> float:
        """How long may a probe wait for its first token? A restarted engine may be loading its model."""
        return max(self._rules.probe_s, self._rules.startup_s)

    def cap(self, max_streams: int) -> int:
        """How many of its slots may be used now? 10 % to all of them during slow start, at least 1."""
        if self._slow_start_at is None:
            return max_streams
        return min(max_streams, max(1, max_streams * (10 + 90 * self._slow_start_step // self._SLOW_START_STEPS) // 100))

    def weight_ratio(self) -> float:
        return 1.0 if self._slow_until is None else self._rules.slow_weight_ratio

    def learned_away(self) -> bool:
        """Is it ejected or probing because of traffic? (The active probe's ejections are exempt from the guard.)"""
        return self._learned

    def condition(self) -> Condition:
        state = self.state()
        if state is HealthState.DRAINED:
            return Condition(state, "drained", None)
        if state is not HealthState.HEALTHY:
            return Condition(state, self._why, self._pause_until)
        if self._blocked_until:
            return Condition(state, "starting" if self._starting else "busy", self._blocked_until)
        if self._starting:
            return Condition(state, "starting", self._startup_until)
        if self._slow_start_at is not None:
            return Condition(state, "slow start", self._slow_start_at + self._rules.slow_start_s)
        return Condition(state, "" if self._slow_until is None else "slow", self._slow_until)

    # -- traffic

    def granted(self, number: int, now: float) -> bool:
        """Lease `number` goes there: is it the probe? Slotless leases are none of its business. ValueError if nothing may go there."""
        if self._state is _HEALTHY and not (self._drained or self._blocked_until):
            return False
        if not self.grantable():
            raise ValueError(f"nothing may go to a backend that is {self.state().name.lower()}, resting or being probed")
        self._permit = number
        self._permit_until = now + self.probe_deadline_s()
        return True

    def first_token(self, lease: Lease, now: float, slo_ttft_s: float | None = None) -> Change:
        """A lease's first real token: the success of a probe, a sample for *slow* where the pool has an SLO. Once per lease."""
        if lease.first_token_at is not None:
            return _NOTHING
        lease.first_token_at = now
        if lease.epoch != self.epoch:
            return _NOTHING
        change = self._took(lease, now)
        return change if slo_ttft_s is None else max(change, self._sampled(now - lease.granted_at, now, slo_ttft_s))

    def ended(self, lease: Lease, ending: Ending, now: float, may_eject: bool = True) -> Change:
        """A lease came back, slotless ones too. `may_eject`: what `PlatformHealth.may_eject` says."""
        if lease.epoch != self.epoch:
            return _NOTHING
        change = _NOTHING
        if self._permit == lease.number:
            self._permit = None
            change = Change.ROOM
        verdict = ending.verdict
        if verdict is _OK:  # by far the most frequent case
            self._failures_row = 0
            served = self._served
            if int(now) != served._second:
                served._turn_to(int(now))
            served._bucket[0] += 1
            served._bucket[1] += 1
            served.hits += 1
            served.total += 1
            return change if lease.first_token_at is not None else max(change, self._took(lease, now))
        match verdict:
            case Verdict.BUSY:
                change = max(change, self._rest(lease, ending.retry_after_s, now))
            case Verdict.FAILED if ending.maybe_starting and self._in_startup(now):
                self._starting = True
                self._blocked_until = now + self._rules.rest_s
                change = Change.RESTS
            case Verdict.FAILED:
                change = max(change, self._failed(lease, ending.why or ending.outcome.value, now, may_eject))
            case Verdict.REFUSES_US | Verdict.NEUTRAL:  # the first is the platform's; the second says nothing
                pass
        return change

    def pardon(self, now: float) -> Change:
        """Healthy again without proof, with slow start: nothing stands behind the platform any more. Not what the active probe ejected."""
        if not self._learned:
            return Change.NONE
        return self._recover(now)

    # -- the active probe, the operator, the clock

    def probed(self, alive: bool, now: float) -> Change:
        """The result of one active probe (GET /health)."""
        self._active_row = max(self._active_row, 0) + 1 if alive else min(self._active_row, 0) - 1
        if alive:
            self._seen_alive = True
            change = self._ready()
            if self._down and self._active_row >= self._rules.active_successes:
                self._down = False
                self._pause_until = now  # it came back to life: no reason to wait out an older pause
                change = max(change, self.advance(now))
            return change
        if not self._seen_alive and self._in_startup(now):
            change = Change.NONE if self._starting else Change.RESTS
            self._starting = True
            return change
        if self._down or self._active_row > -self._rules.active_failures:
            return Change.NONE
        self._down = True
        return self._eject("active probe", None)

    def drain(self) -> Change:
        """Nothing more goes there until `undrain`; all else goes on underneath."""
        change = Change.NONE if self._drained else Change.DRAINED
        self._drained = True
        return change

    def undrain(self) -> Change:
        change = Change.UNDRAINED if self._drained else Change.NONE
        self._drained = False
        return change

    def advance(self, now: float) -> Change:
        """Ends what is over: rest, startup, pause, permit, a step of slow start, slowness without news."""
        change = Change.NONE
        if self._blocked_until and now >= self._blocked_until:
            self._blocked_until = 0.0
            change = Change.WAKES
        if self._startup_until is not None and now >= self._startup_until:
            self._startup_until = None
            change = max(change, self._ready())
        if self._pause_until is not None and now >= self._pause_until:
            self._pause_until = None
            self._proofs = 0
            self._move(HealthState.PROBING)
            change = Change.PROBES
        if self._permit is not None and now >= self._permit_until:
            self._permit = None  # a probe that streams on, or cannot show a first token, does not keep the next one out
            change = max(change, Change.ROOM)
        while self._slow_start_at is not None and now >= self._next_step_at(self._slow_start_at):
            self._slow_start_step += 1
            if self._slow_start_step == self._SLOW_START_STEPS:
                self._slow_start_at = None
            change = max(change, Change.ROOM)
        if self._slow_until is not None and now >= self._slow_until:
            self._slow_until = None
            self._late.clear()
            change = max(change, Change.ROOM)
        return change

    def next_at(self) -> float | None:
        """When must `advance` be called at the latest?"""
        times = [at for at in (self._startup_until if self._starting else None, self._pause_until, self._slow_until) if at is not None]
        if self._blocked_until:
            times.append(self._blocked_until)
        if self._permit is not None:
            times.append(self._permit_until)
        if self._slow_start_at is not None:
            times.append(self._next_step_at(self._slow_start_at))
        return min(times, default=None)

    # -- inside

    def _move(self, to: HealthState) -> None:
        if to not in _LEGAL[self._state]:
            raise ValueError(f"a backend that is {self._state.name.lower()} cannot become {to.name.lower()}")
        self._state = to

    def _took(self, lease: Lease, now: float) -> Change:
        """A success: perhaps the backend's first, a probe's, the first one after a rest."""
        self._startup_until = None
        self._seen_alive = True
        change = self._ready() if self._starting else _NOTHING
        if lease.granted_at >= self._rest_ended_at:
            self._rests_row = 0
        if lease.probe and self._state is HealthState.PROBING:
            self._proofs += 1
            if self._proofs >= self._rules.probes_needed:
                return self._recover(now)
            if self._proofs == 1:
                return Change.PROVES
        return change

    def _sampled(self, ttft_s: float, now: float, slo_ttft_s: float) -> Change:
        self._late.add(ttft_s > self._rules.slow_factor * slo_ttft_s, now)
        was = self._slow_until is not None
        slow = self._late.total >= self._rules.window_samples and 2 * self._late.hits > self._late.total
        self._slow_until = now + self._rules.window_s if slow else None
        return Change.ROOM if slow != was else Change.NONE

    def _rest(self, lease: Lease, asked_s: float | None, now: float) -> Change:
        """Busy. The latest answer counts; only one that was sent after the last rest makes the next rest longer."""
        if lease.granted_at >= self._rest_ended_at:
            self._rests_row += 1
        if asked_s is None:
            rest_s = min(self._rules.rest_max_s, self._rules.rest_s * 2.0 ** min(self._rests_row - 1, 16))
        else:
            rest_s = min(self._rules.rest_asked_max_s, max(0.0, asked_s))
        self._blocked_until = self._rest_ended_at = now + rest_s
        return Change.RESTS

    def _failed(self, lease: Lease, why: str, now: float, may_eject: bool) -> Change:
        if self._state is HealthState.PROBING:
            if not lease.probe:
                return Change.NONE
            self._proofs = 0
            return self._pause(f"probe: {why}", now) if self._learned or may_eject else Change.ROOM
        self._failures_row += 1
        self._served.add(False, now)
        in_row = self._failures_row >= self._rules.failures_in_row
        too_few = self._served.total >= self._rules.window_samples and 2 * self._served.hits < self._served.total
        if self._state is not HealthState.HEALTHY or not may_eject or not (in_row or too_few):
            return Change.NONE
        if now - self._healthy_at >= self._rules.pause_max_s:
            self._pauses_row = 0
        return self._pause(f"{self._failures_row} failures in a row: {why}" if in_row else f"success below 50 %: {why}", now)

    def _pause(self, why: str, now: float) -> Change:
        jitter_ratio = self._rules.pause_jitter_ratio
        # Bounded before the jitter, so that the longest pauses of a fleet end apart from each other too.
        pause_s = min(self._rules.pause_max_s / (1.0 + jitter_ratio), self._rules.pause_s * 2.0 ** min(self._pauses_row, 16))
        pause_s *= 1.0 + jitter_ratio * self._rng.uniform(-1.0, 1.0)
        self._pauses_row += 1
        return self._eject(why, now + pause_s)

    def _eject(self, why: str, until_at: float | None) -> Change:
        """Out until then, or (None) until the active probe says otherwise; an ejection by traffic is overtaken by the probe's."""
        if self._state is not HealthState.EJECTED:
            self._move(HealthState.EJECTED)
        self.epoch += 1
        self._learned = until_at is not None
        self._why = why
        self._pause_until = until_at
        self._permit = None
        self._blocked_until = 0.0
        self._starting = False
        self._slow_start_at = None
        return Change.EJECTED

    def _recover(self, now: float) -> Change:
        self._move(HealthState.HEALTHY)
        self._learned = False
        self._pause_until = None
        self._permit = None
        self._failures_row = 0
        self._served.clear()
        self._late.clear()
        self._slow_until = None
        self._healthy_at = self._slow_start_at = now
        self._slow_start_step = 0
        return Change.RECOVERED

    def _in_startup(self, now: float) -> bool:
        return self._startup_until is not None and now < self._startup_until

    def _ready(self) -> Change:
        """No longer starting, whether it served, answers its probe, or had its time."""
        if not self._starting:
            return Change.NONE
        self._starting = False
        if self._blocked_until > self._rest_ended_at:  # the rest was for starting, not for being busy
            self._blocked_until = 0.0
        return Change.WAKES

    def _next_step_at(self, started_at: float) -> float:
        return started_at + self._rules.slow_start_s * (self._slow_start_step + 1) / self._SLOW_START_STEPS


class PlatformHealth:
    """What do a platform's backends amount to, how many more may traffic eject, and does the platform accept our credential?"""

    REFUSED_S = 60.0

    def __init__(self, backends: Iterable[str]) -> None:
        self._standings: dict[str, Standing] = {}
        self._counts = dict.fromkeys(Standing, 0)
        self._learned: dict[str, None] = {}  # in order of ejection
        self._refused_until = 0.0
        for backend in backends:
            self._standings[backend] = Standing.AVAILABLE
            self._counts[Standing.AVAILABLE] += 1

    def update(self, backend: str, health: Health) -> bool:
        """To be called after every `Change` of that backend. Did the platform's standing change? (KeyError: not of this platform.)"""
        before = self.standing()
        self._counts[self._standings[backend]] -= 1
        self._standings[backend] = health.standing()
        self._counts[self._standings[backend]] += 1
        if not health.learned_away():
            self._learned.pop(backend, None)
        elif backend not in self._learned:
            self._learned[backend] = None
        return self.standing() is not before

    def standing(self) -> Standing:
        """The best of its backends'; OUT while it refuses us."""
        if self._refused_until:
            return Standing.OUT
        for standing in (Standing.AVAILABLE, Standing.RECOVERING):
            if self._counts[standing]:
                return standing
        return Standing.OUT

    def may_eject(self, backend: str, behind: bool) -> bool:
        """May traffic eject this one too? At most floor(n/2), unless `behind`: a later platform of every pool it serves is available."""
        return behind or backend in self._learned or len(self._learned) < len(self._standings) // 2

    def excess(self) -> tuple[str, ...]:
        """Which are learned away beyond floor(n/2), longest away first? To be pardoned when nothing stands behind any more."""
        over = len(self._learned) - len(self._standings) // 2
        return tuple(self._learned)[:over] if over > 0 else ()

    def refused(self, now: float) -> bool:
        """An attempt ended with REFUSES_US: out for 60 s from now. Is that news?"""
        news = not self._refused_until
        self._refused_until = now + self.REFUSED_S
        return news

    def refused_until(self) -> float:
        """Until when is it out for refusing us (0.0: it is not)?"""
        return self._refused_until

    def advance(self, now: float) -> bool:
        """Did it stop being out for refusing us?"""
        if not self._refused_until or now < self._refused_until:
            return False
        self._refused_until = 0.0
        return True

    def next_at(self) -> float | None:
        return self._refused_until or None
