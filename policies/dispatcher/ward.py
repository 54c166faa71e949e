"""What follows from a change of health? Counts of the platform, order of the pools, who is turned away, what is told.

Changes may come several at a time (a whole platform is drained), and one may undo what another did (a pardon). So nobody is turned away
or let in before `conclude`, at the end of the event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from policies.dispatcher.floor import Floor
from policies.dispatcher.room import Room
from policies.dispatcher.site import Backend, Site, Use
from policies.dispatcher.state import Ejected, Event, PlatformRefuses, Recovered, Resting
from policies.failover import Moved
from policies.health import Change
from policies.lanes import Seat
from policies.model import Ending

EVENTS_KEPT = 4096  # a host that never takes them must not fill the memory
OUT_REASONS = {Change.EJECTED: "ejected", Change.DRAINED: "drained"}


class Ward:
    """The health of backends, platforms and pools, and the log of what happened to it."""

    def __init__(self, floor: Floor) -> None:
        self._floor = floor
        self._lost = False  # something is gone that somebody may have waited for
        self.events: deque[Event] = deque(maxlen=EVENTS_KEPT)

    def advance(self, now: float) -> None:
        """Ends what is over: deadlines, rests, pauses, refusals, holds, ramps."""
        floor = self._floor
        for item in floor.agenda.take(now):
            if isinstance(item, Seat):
                floor.expire(item, now)
            elif isinstance(item, Backend):
                self.changed(item, item.health.advance(now), now)
            elif isinstance(item, Site):
                self._accepted(item, now)
            else:
                self.moved(item, item.failover.advance(now))
        self.conclude(now)

    def conclude(self, now: float) -> None:
        """The end of an event: who waits for nothing is turned away, who may go is let in."""
        floor = self._floor
        if self._lost:
            self._lost = False
            for room in floor.rooms.values():
                if room.waiting:
                    floor.turn_away(room, now)
        floor.let_in(floor.rooms.values(), now)

    def lose(self) -> None:
        """Something is gone that somebody may have waited for."""
        self._lost = True

    def changed(self, backend: Backend, change: Change, now: float) -> None:
        """Something about this backend's health is different, or nothing is."""
        site = backend.site
        if not site.has(backend):
            return
        health = backend.health
        self._floor.agenda.enter(backend, health.next_at())
        if not change:
            return
        rested = backend.use is Use.RESTING
        backend.good |= change is Change.RECOVERED
        site.judge(backend)
        condition = health.condition()
        if change is Change.EJECTED:
            self.events.append(Ejected(site.name, backend.name, condition.until_at, condition.why))
        elif change is Change.RECOVERED:
            self.events.append(Recovered(site.name, backend.name))
        elif change is Change.RESTS and backend.use is Use.RESTING and not rested:
            self.events.append(Resting(site.name, backend.name, health.blocked_until()))
        if site.health.update(backend.name, health):
            self._review(site, OUT_REASONS.get(change, ""), now)
        if change in OUT_REASONS:
            self.lose()

    def learn(self, backend: Backend, good: bool) -> None:
        """The latest result of this backend: does the retry budget trust it?"""
        if backend.good is not good:
            backend.good = good
            if backend.site.has(backend):
                backend.site.judge(backend)

    def refused(self, backend: Backend, ending: Ending, now: float) -> None:
        """The platform refuses our own credential, or the model name that the file gave it."""
        site = backend.site
        if not site.has(backend):
            return
        news = site.health.refused(now)
        site.refuses = True
        self._floor.agenda.enter(site, site.health.next_at())
        if news:
            self.events.append(PlatformRefuses(site.name, backend.name, site.health.refused_until(), ending.why or ending.outcome.value))
            self._review(site, "refused", now)
            self.lose()

    def _accepted(self, site: Site, now: float) -> None:
        accepted = site.health.advance(now)
        site.refuses = not accepted
        self._floor.agenda.enter(site, site.health.next_at())
        if accepted:
            self._review(site, "", now)

    def _review(self, site: Site, reason: str, now: float) -> None:
        """The platform's standing is another: its pools look again at who serves, and pardon where nothing is left behind."""
        for room in site.rooms:
            self.moved(room, room.review(now, reason))
        for room in site.rooms:
            for other in room.sites:
                if other.health.excess() and not other.backed:
                    for name in other.health.excess():
                        pardoned = other.backends[name]
                        self.changed(pardoned, pardoned.health.pardon(now), now)

    def moved(self, room: Room, moved: Iterable[Moved]) -> None:
        """The order of a pool's platforms may be another."""
        self.events.extend(moved)
        room.reorder()
        self._floor.agenda.enter(room, room.failover.next_at())
