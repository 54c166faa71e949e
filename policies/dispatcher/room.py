"""May this request wait here, where will it go, and whom does it push out?

A `Room` is the waiting room of one pool: its lanes, its places, and the order of its platforms. Nothing in it is bound to a backend
before it is dispatched.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil

from policies.capacity import DRAIN_SPAN_S, Load, Window, places
from policies.dispatcher.site import Backend, Site
from policies.failover import Failover, Moved
from policies.health import Window as Samples
from policies.hedging import Hedging
from policies.lanes import Lane, Line, Seat, Serves
from policies.model import LanePlan, Lease, PoolPlan, Request, Standing, Ticket
from policies.refusal import FALLBACK_S, effective_share, estimate_s
from policies.retries import Budget

SLOW_SPAN_S, SLOW_SAMPLES, SLOW_FACTOR = 30, 20, 3.0  # policies.md 7: more than half of 20 first tokens in 30 s beyond 3 x the SLO's TTFT

TRIED_MOST = 11  # backends that one request has tried at most: more are never allowed (`retries.attempts` of the file, one more for batch)


class Room:
    """The waiting room of one pool."""

    def __init__(self, plan: PoolPlan, lanes: tuple[LanePlan, ...], sites: tuple[Site, ...], budget: Budget, now: float) -> None:
        self.name = plan.name
        self.retired = False  # the file no longer has it: it serves those it holds, and takes nobody
        self.load = Load(now)
        self.waiting = 0
        self.in_flight = 0
        self.due_at = -1.0
        self._budget = budget
        self._warm_owed = Fraction(0)  # dispatches that the platforms out of service are owed
        self.warms = False  # the next one is
        self._late = {site.name: Samples(SLOW_SPAN_S) for site in sites}  # first tokens of this pool, by platform
        self.hedging: Hedging | None = None
        self.failover = Failover(plan.name, [site.name for site in sites], plan.hold_s, plan.ramp_s, now, smoked(sites))
        self.fit(plan, lanes, sites, now)
        self.reorder()

    def fit(self, plan: PoolPlan, lanes: tuple[LanePlan, ...], sites: tuple[Site, ...], now: float) -> None:
        """Arranges the room for this plan, with empty lanes. The failover is told by whoever calls."""
        self.plan = plan
        self.sites = sites
        self.lanes = tuple(_lane(index, plan, lanes) for index in range(len(lanes)))
        self._lane_by_name = {lane.name: lane for lane in self.lanes}
        self._dispatched = [Window(DRAIN_SPAN_S, now) for _ in lanes]
        self.waiting = 0
        self.warms = bool(plan.warm) and self._warm_owed + plan.warm >= 1
        self._late = {site.name: self._late.get(site.name) or Samples(SLOW_SPAN_S) for site in sites}
        if self.hedging is None or self.hedging.plan != plan.hedge:
            self.hedging = None if plan.hedge is None else Hedging(plan.hedge, self.load.returned_ever)
        named = [site.models for site in sites if site.models is not None]
        self._all_serve = not named
        self._serves = {model: self._serving(model) for models in named for model in sorted(models)}
        self._serves_unnamed = self._serving(None)

    # -- where to

    def reorder(self) -> None:
        """The platforms in service have changed: the order in which they are asked, and the places, follow."""
        serving = [index for index in self.failover.in_service if index != self.failover.ramping]
        self.ramping = self.failover.ramping is not None
        self.order = tuple(self.sites[index] for index in self.failover.order())
        self.streams = sum(self.sites[index].streams for index in serving) if serving else self.order[0].streams
        self.places = places(self.plan.places, self.streams)
        left = self.places - 1
        for lane in self.lanes:
            lane.reserved = max(0, min(ceil(lane.share * self.places), left))
            left -= lane.reserved

    def serves(self, request: Request) -> Serves:
        """Which platforms serve its model? None: all of them; an empty set: none."""
        if self._all_serve:
            return None
        return self._serves.get(self.plan.model or request.model or "", self._serves_unnamed)

    def _serving(self, model: str | None) -> Serves:
        serving = frozenset(site.name for site in self.sites if site.models is None or model in site.models)
        return None if len(serving) == len(self.sites) else serving

    def may_serve(self, serves: Serves, tried: frozenset[str]) -> bool:
        """Is there anything to wait for?"""
        for site in self.sites:
            if site.hope and not site.refuses and (serves is None or site.name in serves) and (not tried or site.may_serve(tried)):
                return True
        return False

    @property
    def has_room(self) -> bool:
        """Is anything free on its platforms, whoever may use it?"""
        for site in self.sites:  # noqa: SIM110 asked at every event while somebody waits: half the time of any()
            if site.free or site.permits or site.starting:
                return True
        return False

    def seek(
        self, serves: Serves, tried: frozenset[str], due_at: float, floor: int, *, good_only: bool, beyond: bool = False
    ) -> Backend | None:
        """A backend with a free slot that this request may take now.

        It belongs to the first platform in order with an open backend that it has not tried, or one that rests and opens before its time is
        up, and waits for a slot there. `beyond`: it may go on to the platforms behind. `good_only`: the retry budget is used up.
        A probing backend of any platform takes a request first; one that is starting takes what has nowhere else to go.
        """
        if not good_only:
            for site in self.sites:
                if site.permits and not site.refuses and site.serves(serves) and (probing := site.permit(tried)):
                    return probing
        order, ramping = self.order, None
        if self.ramping:
            order = tuple(self.sites[index] for index in self.failover.order())
            ramping = order[0] if self.failover.ramping == self.sites.index(order[0]) else None
        for site in order:
            if site.refuses or not (serves is None or site.name in serves):
                continue
            if site.open and (not tried or site.is_open(tried)):
                if site.free > floor or site.free == site.streams:
                    backend = site.best(tried, good_only)
                    if backend is not None and backend.free:
                        return backend
                if not beyond and site is not ramping:
                    return None
            elif site.rests_until(tried) < due_at:
                return None
        if good_only:
            return None
        for site in order:
            if not site.refuses and site.serves(serves) and (starting := site.best_starting(tried)):
                return starting
        return None

    def find(self, line: Line, seat: Seat) -> Backend | None:
        """What `lanes.pick` asks: a backend for the head of this line."""
        if line.tried or self.warms:
            return self._find(line, seat, beyond=False)
        return self.seek(line.serves, line.tried, seat.due_at, line.lane.floor, good_only=False)

    def find_beyond(self, line: Line, seat: Seat) -> Backend | None:
        """The same, on the standby if need be."""
        return self._find(line, seat, beyond=True)

    def _find(self, line: Line, seat: Seat, *, beyond: bool) -> Backend | None:
        if self.warms and seat.ticket is not None and (cold := self.cold(seat.ticket, line.lane, line.serves)):
            return cold
        if line.tried and (trusted := self._trusted(line, seat)):
            return trusted
        good_only = bool(line.tried) and not self._budget.allows()
        backend = self.seek(line.serves, line.tried, seat.due_at, line.lane.floor, good_only=good_only, beyond=beyond)
        if good_only and backend is None:
            self._budget.withheld = True
        return backend

    def _trusted(self, line: Line, seat: Seat) -> Backend | None:
        """For a request that has failed: the first platform where an open backend, not tried by it, has a good latest result.

        A platform's backends fail together. So one whose latest result is bad too is no place to spend another attempt on while a platform
        behind has a better one; a good one that is full is waited for as ever.
        """
        for site in tuple(self.sites[index] for index in self.failover.order()) if self.ramping else self.order:
            if site.open and not site.refuses and site.serves(line.serves) and (good := site.best(line.tried, good_only=True)):
                floor = line.lane.floor
                return good if good.free and (site.free > floor or site.free == site.streams) else None
            if site.rests_until(line.tried) < seat.due_at:
                return None
        return None

    def bars_retries(self, lane: Lane, serves: Serves) -> bool:
        """Is there certainly nothing now for any retry of this lane? What `lanes.pick` asks once, instead of for each of their lines.

        When a large platform breaks, they are thousands, in hundreds of lines. False: perhaps there is something.
        """
        good_only = not self._budget.allows()
        if self.ramping or not (good_only or all(not (site.permits or site.starting) for site in self.sites)):
            return False
        for site in self.order:
            if site.refuses or not site.serves(serves):
                continue
            if (site.free > lane.floor or site.free == site.streams) and (site.offers_good() if good_only else site.free):
                return False
        self._budget.withheld |= good_only
        return True

    def keeps_all(self) -> bool:
        """Is there certainly something to wait for, whoever waits and whatever it has tried?"""
        return any(site.models is None and not site.refuses and site.hope > TRIED_MOST for site in self.sites)

    # -- platforms out of service, kept warm

    def cold(self, ticket: Ticket, lane: Lane, serves: Serves) -> Backend | None:
        """Where does this request go to show that a platform out of service works? None: it is not one for that, or none has room."""
        if not _spare(ticket, lane) or ticket.tried:
            return None
        serving = self.failover.in_service
        for index, site in enumerate(self.sites):
            if index not in serving and index > min(serving, default=index) and not site.refuses and site.serves(serves) and site.free:
                backend = site.best((), good_only=False)
                if backend is not None and backend.free:
                    return backend
        return None

    # -- who waits

    def lane(self, name: str) -> Lane:
        """The lane of that name, else the last."""
        return self._lane_by_name.get(name) or self.lanes[-1]

    def wait_s(self, lane: Lane, place: int, now: float) -> float | None:
        """How long would a request wait that finds `place` others before it in its lane? None: too little has been measured."""
        load = self.load
        if load.returned_ever < self.streams:
            return None
        drain_rps = load.drain_rps(self.in_flight, now)
        if not drain_rps:
            return None
        if lane.index == 0:
            return estimate_s(place, drain_rps)  # nobody goes before it: all of it is its own
        counts = [window.total(now) for window in self._dispatched]
        total = sum(counts)
        share = effective_share(lane.share_ratio, sum(counts[: lane.index]) / total) if total else 1.0
        return estimate_s(place, drain_rps * share)

    def hint_s(self, lane: Lane, now: float) -> float:
        """What wait should a refused caller of this lane be told?"""
        wait_s = self.wait_s(lane, lane.waiting, now)
        return FALLBACK_S if wait_s is None else wait_s

    @property
    def full(self) -> bool:
        """Are all places taken? Retries take none."""
        taken = 0
        for lane in self.lanes:
            taken += len(lane.ordinary)
        return taken >= self.places

    def victim_below(self, lane: Lane) -> Seat | None:
        """Whom may an arrival in this lane push out? The newest of the lowest lane that holds more than its reserve."""
        for other in reversed(self.lanes[lane.index + 1 :]):
            if len(other.ordinary) > other.reserved:
                return other.newest()
        return None

    def victim_above(self, lane: Lane) -> Seat | None:
        """Whom may it push out to have the place that is its own? The newest of the lanes above that hold more than their reserve."""
        if len(lane.ordinary) >= lane.reserved:
            return None
        above = (other.newest() for other in self.lanes[: lane.index] if len(other.ordinary) > other.reserved)
        return max((seat for seat in above if seat is not None), key=lambda seat: seat.order, default=None)

    # -- what happened

    def granted(self, ticket: Ticket, lane: Lane, site: Site, lease: Lease, now: float) -> None:
        """A request of this lane was dispatched to this platform."""
        self.in_flight += 1
        dispatched = self._dispatched[lane.index]
        if now >= dispatched._ends_at:
            dispatched._turn(now)
        dispatched._recent += 1.0
        if self.plan.warm and not ticket.tried and not lease.probe and _spare(ticket, lane):
            owed = self._warm_owed + self.plan.warm
            serves = self.sites.index(site) in self.failover.in_service
            self._warm_owed = min(1 - self.plan.warm, owed) if serves else max(Fraction(0), owed - 1)
            self.warms = self._warm_owed + self.plan.warm >= 1
        if self.ramping and not lease.probe:
            self.failover.charge(self.sites.index(site))

    def returned(self, held_s: float, slotless: bool, now: float) -> None:
        """A lease of this pool came back."""
        self.in_flight -= 1
        if not slotless:
            self.load.returned(held_s, now)

    def first_token(self, site: Site, ttft_s: float, now: float) -> list[Moved]:
        """A first token came this long after its dispatch: perhaps so many are late that another platform takes over."""
        slo_ttft_s, late = self.plan.slo_ttft_s, self._late.get(site.name)
        if slo_ttft_s is None or late is None:
            return []
        late.add(ttft_s > SLOW_FACTOR * slo_ttft_s, now)
        if late.total < SLOW_SAMPLES or 2 * late.hits <= late.total:
            return []
        moved = self.failover.slowed(self.sites.index(site), now)
        if moved:
            late.clear()  # when it comes back, it is judged by what it does then
        return moved

    def review(self, now: float, reason: str) -> list[Moved]:
        """The standing of a platform has changed, for this reason."""
        moved = self.failover.update([site.health.standing() for site in self.sites], now, reason)
        self.reorder()
        return moved

    def behind(self, site: Site) -> bool:
        """Is a later platform of this pool available?"""
        return any(other.health.standing() is Standing.AVAILABLE for other in self.sites[self.sites.index(site) + 1 :])


def smoked(sites: Sequence[Site]) -> frozenset[str]:
    """Which platforms must pass smoke generations before they serve again?"""
    return frozenset(site.name for site in sites if site.smoke)


def _spare(ticket: Ticket, lane: Lane) -> bool:
    """May it be sent where it could be slower? Lower lanes and batch may."""
    return lane.index > 0 or ticket.request.traffic == "batch"


def _lane(index: int, pool: PoolPlan, plans: tuple[LanePlan, ...]) -> Lane:
    plan = plans[index]
    floor = max((higher.reserve for higher in plans[:index]), default=0)
    return Lane(index, plan.name, plan.max_wait_s if pool.max_wait_s is None else pool.max_wait_s, plan.share, floor)
