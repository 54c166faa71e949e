"""Which platforms of a pool are in service?

Each platform is in one phase (`_LEGAL` is all there is to it):

    READY --lost--> OUT --answers again--> HOLD --hold over, smokes passed--> RAMP --ramp over--> READY
                     ^---------------- lost again: hold doubles --------------'

The first READY platform in the file's order serves. One before it that comes back must first prove itself: it stays healthy for `hold_s`,
counted from its first successful probe, then takes 10 % of the requests, growing to all of them over `ramp_s`. Two ways lead past hold
and ramp, both from HOLD or RAMP straight to READY: no platform is READY (the standby is gone: whoever is available serves at once), or a
platform before it serves anyway (a standby that is well again waits for nothing).

An operator may pin a platform: while it is available it is READY and serves, whatever hold or ramp say, and nothing ramps; while it is
not, the others serve as if there were no pin. All else goes on underneath, so that taking the pin away leaves things as they would be.

What is lost or back is told by standings: resting and starting backends keep their platform AVAILABLE, so a busy platform is no failover.
A platform that answers, and far too slowly, is told of by `slowed`: if another stands ready behind it, it goes into its hold as a lost one
would. Platforms with smoke tests must pass SMOKES_NEEDED of them in a row once their hold is over: `Proving` asks the host for one.
Whoever is in service, streams in flight stay where they are: this module only says where the next request goes. `advance(now)` is called
at `next_at()` at the latest. Source: policies.md 8.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from policies.model import Standing


class Phase(enum.Enum):
    READY = "ready"
    OUT = "out"
    HOLD = "hold"
    RAMP = "ramp"


_LEGAL = {
    Phase.READY: {Phase.OUT},
    Phase.OUT: {Phase.HOLD},
    Phase.HOLD: {Phase.RAMP, Phase.READY, Phase.OUT},
    Phase.RAMP: {Phase.READY, Phase.OUT, Phase.HOLD},  # to HOLD: a pin keeps it from ramping
}


@dataclass(frozen=True, slots=True)
class FailedOver:
    """`from_` served, or was on its way back to serving, and is lost; `to` takes its requests."""

    pool: str
    from_: str
    to: str
    reason: str


@dataclass(frozen=True, slots=True)
class Ramping:
    """The hold is over: `to` begins to take requests from `from_`."""

    pool: str
    from_: str
    to: str


@dataclass(frozen=True, slots=True)
class FailedBack:
    """The ramp is over: `to` takes all requests again."""

    pool: str
    from_: str
    to: str


@dataclass(frozen=True, slots=True)
class Proving:
    """The hold is over: before `to` takes requests from `from_` again, a smoke generation on it is asked for (`Failover.smoked`)."""

    pool: str
    from_: str
    to: str


Moved = FailedOver | Ramping | FailedBack | Proving


class _Platform:
    """One platform as this pool sees it."""

    __slots__ = ("asked", "hold_s", "hold_until", "name", "phase", "smoke_at", "smokes", "standing", "steady_at", "why")

    def __init__(self, name: str, hold_s: float) -> None:
        self.name = name
        self.phase = Phase.READY
        self.standing = Standing.AVAILABLE
        self.why = ""  # it was lost
        self.hold_s = hold_s  # its next hold: doubled by every setback
        self.hold_until = 0.0
        self.smokes = 0  # passed in this hold, in a row
        self.smoke_at = 0.0  # the next one is not asked for before that
        self.asked = False  # one is being run
        self.steady_at = 0.0  # READY until then, and the setbacks are forgotten

    def move(self, to: Phase) -> None:
        if to not in _LEGAL[self.phase]:
            raise ValueError(f"a platform that is {self.phase.value} cannot become {to.value}")
        self.phase = to

    def hold(self, now: float) -> None:
        """It answers again, and has to prove itself from now on."""
        self.move(Phase.HOLD)
        self.hold_until = now + self.hold_s
        self.smokes = 0
        self.smoke_at = 0.0
        self.asked = False


class Failover:
    """The platforms of one pool, by their index in the file's order. All start READY: there is no hold at our own start."""

    HOLD_MAX_S = 3600.0
    RAMP_STEPS = 90  # of 1 %, from 10 %
    SMOKES_NEEDED = 3
    SMOKE_AGAIN_S = 15.0  # after one that failed

    def __init__(self, pool: str, platforms: Sequence[str], hold_s: float, ramp_s: float, now: float, smoked: Collection[str] = ()) -> None:
        self._pool = pool
        self._hold_s = hold_s
        self._ramp_s = ramp_s
        self._smoked = smoked  # those whose failback needs smoke generations
        self._platforms = [_Platform(name, hold_s) for name in platforms]
        self._served = self._platforms[0]  # the latest that served
        self._pinned: str | None = None
        self._ramping: int | None = None  # at most one comes back at a time
        self._ramp_at = 0.0
        self._ramp_step = 0
        self._credit = 0  # percent of a request that the ramping platform is owed
        self._settle(now, [])

    # -- questions

    def order(self) -> tuple[int, ...]:
        """In which order does the next request consider the platforms? All of them; it goes to the first with a backend available to it.

        A ramping platform comes first when it is owed the request, else after all READY ones. If it comes first and has no free slot,
        the platform after it may take the request at once: a ramp keeps nobody waiting.
        """
        return self._order_owed if self._owes() else self._order

    @property
    def in_service(self) -> tuple[int, ...]:
        """Which platforms receive new requests: the one that serves, and the one that ramps. Empty: none is available."""
        return self._in_service

    @property
    def ramping(self) -> int | None:
        return self._ramping

    @property
    def pin_holds(self) -> bool:
        """Does the pinned platform serve?"""
        return self._pin() is not None

    def phase(self, index: int) -> Phase:
        return self._platforms[index].phase

    def hold_until(self, index: int) -> float | None:
        """When is its hold over, if it holds?"""
        platform = self._platforms[index]
        return platform.hold_until if platform.phase is Phase.HOLD else None

    def next_at(self) -> float | None:
        """When must `advance` be called at the latest?"""
        if self._ramping is not None:
            return self._next_step_at()
        if self.pin_holds:
            return None
        acts_at = (self._acts_at(platform) for platform in self._before_serving())
        return min((at for at in acts_at if at is not None), default=None)

    # -- events

    def update(self, standings: Sequence[Standing], now: float, reason: str = "ejected") -> list[Moved]:
        """The standings of the platforms, whenever one changed. `reason`: why one is lost, a word for metric and log."""
        moved: list[Moved] = []
        for index, (platform, standing) in enumerate(zip(self._platforms, standings, strict=True)):
            before, platform.standing = platform.standing, standing
            if standing < before:
                self._lose(index, now, reason, moved)
            if standing is not Standing.OUT and platform.phase is Phase.OUT:
                platform.hold(now)
        self._settle(now, moved)
        return moved

    def slowed(self, index: int, now: float) -> list[Moved]:
        """First tokens on a platform in service come far too late: it gives way, unless it is pinned or nobody behind it is ready."""
        platform = self._platforms[index]
        moved: list[Moved] = []
        if not self.pin_holds and index in self._in_service and any(other.phase is Phase.READY for other in self._platforms[index + 1 :]):
            self._lose(index, now, "slow", moved)
            platform.hold(now)
            self._settle(now, moved)
        return moved

    def advance(self, now: float) -> list[Moved]:
        """Ends the holds and ramps that are over, takes the next steps of a ramp. `order()` may change without an event."""
        moved: list[Moved] = []
        while self._ramping is not None and self._ramp_step < self.RAMP_STEPS and now >= self._next_step_at():
            self._ramp_step += 1
        self._settle(now, moved)
        return moved

    def smoked(self, index: int, ok: bool, now: float) -> list[Moved]:
        """A smoke generation on this platform passed or failed: counted while it holds; a failure starts the count anew, after a while."""
        platform = self._platforms[index]
        platform.asked = False
        platform.smokes = platform.smokes + 1 if ok else 0
        platform.smoke_at = 0.0 if ok else now + self.SMOKE_AGAIN_S
        return self.advance(now)

    def pin(self, platform: str | None, now: float) -> list[Moved]:
        """This platform serves while it is available; None: as the standings say. A name that the pool does not have waits until it has."""
        self._pinned = platform
        moved: list[Moved] = []
        self._settle(now, moved, "unpinned" if platform is None else "pinned")
        return moved

    def charge(self, index: int) -> None:
        """A request, not a probe, was dispatched to this platform: a ramping platform is owed its percentage of each.

        What it could not take, or took out of turn, is remembered up to one request, so that neither makes a burst later.
        """
        if self._ramping is not None:
            paid = 100 if index == self._ramping else 0
            self._credit = max(-100, min(100, self._credit + self._percent() - paid))

    def reconfigure(
        self,
        platforms: Sequence[str],
        standings: Sequence[Standing],
        hold_s: float,
        ramp_s: float,
        now: float,
        smoked: Collection[str] = (),
    ) -> list[Moved]:
        """Another file: phases and holds are kept by name; a new platform starts READY, if available."""
        self._smoked = smoked
        known = {platform.name: platform for platform in self._platforms}
        ramping = None if self._ramping is None else self._platforms[self._ramping].name
        for platform in self._platforms:
            platform.hold_s = max(hold_s, platform.hold_s) if platform.hold_s > self._hold_s else hold_s
        self._hold_s, self._ramp_s = hold_s, ramp_s
        self._platforms = [known.get(name) or _Platform(name, hold_s) for name in platforms]
        self._ramping = platforms.index(ramping) if ramping in platforms else None
        if self._served.name not in platforms:
            self._served = next((platform for platform in self._platforms if platform.phase is Phase.READY), self._platforms[0])
        return self.update(standings, now, "reconfigured")

    # -- inside

    def _lose(self, index: int, now: float, reason: str, moved: list[Moved]) -> None:
        platform = self._platforms[index]
        if platform.phase is Phase.READY:
            if now >= platform.steady_at:
                platform.hold_s = self._hold_s
        else:
            platform.hold_s = min(max(self.HOLD_MAX_S, self._hold_s), 2 * platform.hold_s)
        if platform.phase is Phase.RAMP:
            self._ramping = None
            moved.append(FailedOver(self._pool, platform.name, self._served.name, reason))
        platform.why = reason
        platform.move(Phase.OUT)

    def _settle(self, now: float, moved: list[Moved], why: str = "reconfigured") -> None:
        """Applies what follows from the standings and the time, in this order. `why` another serves than did, where none was lost."""
        ramped = None
        if self._ramping is not None and self._ramp_step == self.RAMP_STEPS:
            ramped = self._platforms[self._ramping]
            self._become_ready(self._ramping, now)
        for index, platform in enumerate(self._platforms):
            if platform.name == self._pinned and platform.standing is Standing.AVAILABLE and platform.phase is not Phase.READY:
                self._become_ready(index, now)
                ramped, why = None, "pinned"
        serving = next((index for index, platform in enumerate(self._platforms) if platform.phase is Phase.READY), None)
        for index, platform in enumerate(self._platforms):
            if platform.standing is Standing.AVAILABLE and platform.phase is not Phase.READY and (serving is None or index > serving):
                serving = index if serving is None else serving  # none is ready: the first available one serves at once
                self._become_ready(index, now)
        pin = self._pin()
        if pin is not None:
            serving = pin
            if self._ramping is not None:
                self._platforms[self._ramping].move(Phase.HOLD)
                self._ramping = None
        if serving is not None and (served := self._served) is not (serves := self._platforms[serving]):
            self._served = serves
            if serves is ramped:
                moved.append(FailedBack(self._pool, served.name, serves.name))
            else:
                reason = why if served.phase is Phase.READY or serving == pin else served.why
                moved.append(FailedOver(self._pool, served.name, serves.name, reason))
        if self._ramping is None and pin is None and self._start_ramp(now, moved) and self._ramp_s == 0:
            self._ramp_step = self.RAMP_STEPS
            self._settle(now, moved, why)
            return
        self._set_order(serving)

    def _pin(self) -> int | None:
        """Which platform serves because an operator says so?"""
        ready = ((index, platform.name) for index, platform in enumerate(self._platforms) if platform.phase is Phase.READY)
        return next((index for index, name in ready if name == self._pinned), None)

    def _become_ready(self, index: int, now: float) -> None:
        platform = self._platforms[index]
        platform.move(Phase.READY)
        platform.steady_at = now + platform.hold_s
        if index == self._ramping:
            self._ramping = None

    def _start_ramp(self, now: float, moved: list[Moved]) -> bool:
        for index, platform in enumerate(self._before_serving()):
            acts_at = self._acts_at(platform)
            if acts_at is None or now < acts_at:
                continue
            if not self._proven(platform):
                platform.asked = True
                moved.append(Proving(self._pool, self._served.name, platform.name))
                continue
            platform.move(Phase.RAMP)
            self._ramping, self._ramp_at, self._ramp_step, self._credit = index, now, 0, 0
            moved.append(Ramping(self._pool, self._served.name, platform.name))
            return True
        return False

    def _before_serving(self) -> list[_Platform]:
        return self._platforms[: self._platforms.index(self._served)]

    def _proven(self, platform: _Platform) -> bool:
        """Has it passed the smoke generations that it needs?"""
        return platform.name not in self._smoked or platform.smokes >= self.SMOKES_NEEDED

    def _acts_at(self, platform: _Platform) -> float | None:
        """When is its hold over, or the next smoke generation due? None: that does not hang on time."""
        if platform.phase is not Phase.HOLD or platform.standing is not Standing.AVAILABLE:
            return None
        if self._proven(platform):
            return platform.hold_until
        return None if platform.asked else max(platform.hold_until, platform.smoke_at)

    def _set_order(self, serving: int | None) -> None:
        rank = {Phase.READY: 0, Phase.RAMP: 1, Phase.HOLD: 2, Phase.OUT: 3}
        pin = self._pin()
        by_phase = sorted(range(len(self._platforms)), key=lambda index: (index != pin, rank[self._platforms[index].phase]))  # stable
        self._order = tuple(by_phase)
        self._order_owed = self._order
        self._in_service: tuple[int, ...] = () if serving is None else (serving,)
        if self._ramping is not None:
            self._order_owed = (self._ramping, *(index for index in self._order if index != self._ramping))
            self._in_service = (self._ramping, *self._in_service)

    def _percent(self) -> int:
        return 10 + 90 * self._ramp_step // self.RAMP_STEPS

    def _owes(self) -> bool:
        return self._ramping is not None and self._credit + self._percent() >= 100

    def _next_step_at(self) -> float:
        return self._ramp_at + self._ramp_s * (self._ramp_step + 1) / self.RAMP_STEPS
