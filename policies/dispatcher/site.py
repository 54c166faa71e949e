"""What of this platform is free now, and for whom?

A `Site` is a platform as the dispatcher runs it: its backends, each with slots and health, sorted by what they are good for at this
moment. Every question is answered from counts and heaps that are kept when something changes, never by looking at all backends.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Container, Iterator
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING

from policies.health import Health, HealthState, PlatformHealth
from policies.lanes import Serves
from policies.model import BackendPlan, Lease
from policies.selection import Ranked, Selection, withdraw
from policies.slots import Slots

if TYPE_CHECKING:
    from policies.dispatcher.room import Room


class Use(enum.Enum):
    """What is a backend good for at this moment?"""

    OPEN = "open"  # takes requests while it has slots
    RESTING = "resting"  # will again, at a known time
    STARTING = "starting"  # takes requests that nobody else can take
    PROBING = "probing"  # takes one request at a time, which proves it
    OUT = "out"  # ejected or drained: nothing to wait for


_OPEN = Use.OPEN  # looked up once


class Backend(Ranked):
    """One backend: its plan, its slots, its health, and what follows from them."""

    __slots__ = ("cap", "cap_override", "due_at", "free", "good", "health", "plan", "site", "slots", "use", "weight")

    def __init__(self, plan: BackendPlan, number: int, site: Site, health: Health) -> None:
        super().__init__(plan.name, number)
        self.plan = plan
        self.site = site
        self.health = health
        self.slots = Slots(plan.max_streams)
        self.cap_override: int | None = None  # an operator's, instead of the plan's
        self.cap = plan.max_streams  # what may be used of it now
        self.weight = plan.weight  # halved while it is slow
        self.free = 0  # slots, as counted in its site's
        self.good = True  # its latest result; no news is good news
        self.use = Use.OUT
        self.due_at = -1.0  # its next entry in the agenda

    @property
    def max_streams(self) -> int:
        """Its configured cap: the operator's if there is one, else the file's."""
        return self.plan.max_streams if self.cap_override is None else self.cap_override


class Grant(Lease):
    """A lease and what its return settles."""

    __slots__ = ("home", "retry", "room")

    def __init__(self, number: int, room: Room | None, home: Backend, granted_at: float, *, slotless: bool, retry: bool) -> None:
        site = home.site
        self.number = number
        self.pool = room.name if room is not None else ""
        self.platform = site.name
        self.backend = home.name
        self.granted_at = granted_at
        self.epoch = home.health.epoch
        self.probe = False
        self.probe_until_at = 0.0
        self.slotless = slotless
        self.first_token_at = None
        self.live = True
        self.home = home
        self.room = room  # None: a smoke generation, which is no pool's
        self.retry = retry


class Site:
    """One platform: which of its backends are open, resting, starting, probing."""

    def __init__(self, name: str, generator: random.Random) -> None:
        self.name = name
        self.models: frozenset[str] | None = None  # our names that it serves; None: all
        self.continues = True  # its backends go on with an answer that another has begun
        self.smoke = False  # it must pass smoke generations before it serves again
        self.backends: dict[str, Backend] = {}
        self.health = PlatformHealth(())
        self.health_of: set[str] = set()  # the backends that it counts
        self.streams = 0  # configured caps
        self.free = 0  # slots of open backends
        self.open = 0  # how many backends are
        self.hope = 0  # how many are not out
        self.starting = 0  # how many are
        self.permits: dict[str, Backend] = {}  # probing, and free to take a request
        self.rooms: tuple[Room, ...] = ()  # the waiting rooms of the pools it serves, in their order
        self.refuses = False  # our own credential, or a model name of the file
        self.due_at = -1.0
        self._opens_at: float | None = None
        self._alone: Backend | None = None  # its only backend needs no ranking
        self._freed: Backend | None = None  # the last that had all that is free here: in a full house, the one whose stream has ended
        self._trusted: Selection[Backend] = Selection(generator)  # open, latest result good
        self._doubted: Selection[Backend] = Selection(generator)  # open, latest result bad
        self._starting: Selection[Backend] = Selection(generator)
        self._rests: list[tuple[float, int, Backend]] = []

    # -- questions

    def serves(self, serves: Serves) -> bool:
        """Is it one of those that serve the model?"""
        return serves is None or self.name in serves

    def may_serve(self, tried: frozenset[str]) -> bool:
        """Will there be a backend for a request that has tried these, now or later, as far as anyone knows?"""
        if self.refuses:
            return False
        return self.hope > 0 and (not tried or self.hope > sum(1 for backend in self._of(tried) if backend.use is not Use.OUT))

    @property
    def has_room(self) -> bool:
        """Is anything free here, whoever may use it?"""
        return self.free > 0 or bool(self.permits) or self.starting > 0

    def is_open(self, tried: frozenset[str]) -> bool:
        """Is some backend open that is not among the tried, full or not?"""
        return self.open > 0 and (not tried or self.open > sum(1 for backend in self._of(tried) if backend.use is Use.OPEN))

    def best(self, tried: Container[str], good_only: bool) -> Backend | None:
        """The best open backend, full ones last. `good_only`: none whose latest result is bad."""
        alone = self._alone
        if alone is not None:
            return alone if alone.use is _OPEN and alone.name not in tried and (alone.good or not good_only) else None
        freed, free = self._freed, self.free
        if freed is not None and 0 < free == freed.free and (not tried or freed.name not in tried) and (freed.good or not good_only):
            return freed  # all others are full, and rank behind it
        good = self._trusted.best(tried)
        if good_only or not self._doubted:
            return good
        bad = self._doubted.best(tried)
        if good is None or bad is None:
            return good or bad
        assert good.entry is not None and bad.entry is not None
        return good if good.entry < bad.entry else bad

    def idle(self, tried: Container[str]) -> Backend | None:
        """The largest open backend where nothing runs, and whose latest result is good. Looks at each: asked rarely."""
        found = [each for name, each in self.backends.items() if name not in tried and each.use is _OPEN and each.good and each.free]
        return max((each for each in found if not each.slots.live), key=lambda each: (each.cap * each.weight, -each.number), default=None)

    def offers_good(self) -> bool:
        """Has an open backend whose latest result is good a free slot?"""
        backend = self.best((), good_only=True)
        return backend is not None and backend.free > 0

    def best_starting(self, tried: Container[str]) -> Backend | None:
        """The best of those that are starting and may be asked now."""
        return self._starting.best(tried)

    def permit(self, tried: Container[str]) -> Backend | None:
        """A probing backend that may take a request."""
        return next((backend for name, backend in self.permits.items() if name not in tried), None)

    def rests_until(self, tried: Container[str]) -> float:
        """When does the first of the resting backends open again? inf: none rests."""
        rests = self._rests
        aside = []
        until_at = inf
        while rests:
            at, _, backend = rests[0]
            if backend.use is not Use.RESTING or backend.site is not self or backend.health.blocked_until() != at:
                heappop(rests)
            elif backend.name in tried:
                aside.append(heappop(rests))
            else:
                until_at = at
                break
        for entry in aside:
            heappush(rests, entry)
        return until_at

    def opens_at(self) -> float:
        """When may one of the ejected, or the platform that refuses us, be tried again? inf: nobody knows."""
        if self.refuses:
            return self.health.refused_until()
        if self._opens_at is None:
            ends = (backend.health.condition().until_at for backend in self.backends.values())
            self._opens_at = min((until_at for until_at in ends if until_at is not None), default=inf)
        return self._opens_at

    @property
    def backed(self) -> bool:
        """Has every pool that it serves a later platform that is available?"""
        return all(room.behind(self) for room in self.rooms)

    def _of(self, names: frozenset[str]) -> Iterator[Backend]:
        return (self.backends[name] for name in names if name in self.backends)

    # -- changes

    def touch(self, backend: Backend) -> None:
        """Its streams in flight have changed."""
        if backend.use is _OPEN:
            in_flight, cap = len(backend.slots.live), backend.cap
            free = cap - in_flight if in_flight < cap else 0
            self.free += free - backend.free
            backend.free = free
            if free == self.free:
                self._freed = backend
            if self._alone is None:
                selection = self._trusted if backend.good else self._doubted
                selection.offer(backend, in_flight, cap, backend.weight)
        elif backend.use is not Use.OUT:
            self.judge(backend)

    def judge(self, backend: Backend) -> None:
        """Its health, cap or latest result has changed: sorts it anew."""
        health = backend.health
        was, use = backend.use, _use(health)
        self.open += (use is Use.OPEN) - (was is Use.OPEN)
        self.hope += (use is not Use.OUT) - (was is not Use.OUT)
        self.starting += (use is Use.STARTING) - (was is Use.STARTING)
        self.free -= backend.free
        backend.free = 0
        backend.use = use
        backend.cap = backend.slots.cap = health.cap(backend.max_streams)
        backend.weight = backend.plan.weight * health.weight_ratio()
        self._opens_at = None
        withdraw(backend)
        self.permits.pop(backend.name, None)
        has_room = health.grantable() and backend.slots.free > 0
        if use is Use.OPEN:
            self.touch(backend)
        elif use is Use.PROBING and has_room:
            self.permits[backend.name] = backend
        elif use is Use.STARTING and has_room:
            self._starting.offer(backend, backend.slots.in_flight, backend.cap, backend.weight)
        elif use is Use.RESTING:
            heappush(self._rests, (health.blocked_until(), backend.number, backend))

    def add(self, backend: Backend) -> None:
        """It is part of this platform from now on."""
        backend.site = self
        self.backends[backend.name] = backend
        before, self._alone = self._alone, backend if len(self.backends) == 1 else None
        if before is not None:
            self.judge(before)  # there is somebody to be compared with now
        self.judge(backend)

    def remove(self, backend: Backend) -> None:
        """It is part of this platform no more; what runs on it runs on."""
        self.open -= backend.use is Use.OPEN
        self.hope -= backend.use is not Use.OUT
        self.starting -= backend.use is Use.STARTING
        self.free -= backend.free
        backend.free = 0
        backend.use = Use.OUT
        withdraw(backend)
        self.permits.pop(backend.name, None)
        del self.backends[backend.name]
        if self._alone is backend:
            self._alone = None
        if self._freed is backend:
            self._freed = None

    def recount(self) -> None:
        """The configured cap of some backend is another."""
        self.streams = sum(backend.max_streams for backend in self.backends.values())

    def has(self, backend: Backend) -> bool:
        """Is it part of this platform? False: a reload has removed it."""
        return self.backends.get(backend.name) is backend


def _use(health: Health) -> Use:
    state = health.state()
    if state is HealthState.HEALTHY:
        if health.starting():
            return Use.STARTING
        return Use.RESTING if health.blocked_until() else Use.OPEN
    return Use.PROBING if state is HealthState.PROBING else Use.OUT
