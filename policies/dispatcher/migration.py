"""What becomes of everything when the file changes?

Backends of the same name and address keep their streams, their health and their past, wherever they stand in the new file; others
are new. Whoever waits keeps place, deadline and lane (by name, else the last). A pool that is gone serves those it holds from the
platforms it has left, and takes nobody. What runs on a backend that is gone runs on, and its lease comes back as ever. The first
file is taken over in the same way, from nothing.
"""

from __future__ import annotations

from dataclasses import replace

from policies.dispatcher.floor import Floor
from policies.dispatcher.levers import Levers
from policies.dispatcher.room import Room, smoked
from policies.dispatcher.site import Backend, Site
from policies.dispatcher.ward import Ward
from policies.health import Health, HealthRules, PlatformHealth
from policies.model import BackendPlan, LanePlan, Plan, PlatformPlan, PoolPlan


def take_over(floor: Floor, ward: Ward, plan: Plan, levers: Levers, now: float) -> None:
    """Arranges everything for this plan; nobody is let in yet. KeyError, and nothing has changed: a pool names no platform."""
    platforms = {platform.name for platform in plan.platforms}
    for pool in plan.pools:
        for name in pool.platforms:
            if name not in platforms:
                raise KeyError(f"pool {pool.name}: no platform {name}")
    floor.waiting_bytes_max = plan.waiting_bytes_max
    _take_over_platforms(floor, plan, levers, now)
    _take_over_pools(floor, ward, plan, levers, now)
    for site in floor.sites.values():
        site.rooms = tuple(room for room in floor.rooms.values() if site in room.sites)
    for room in floor.rooms.values():
        ward.moved(room, room.review(now, "reconfigured"))
    ward.lose()


def _take_over_platforms(floor: Floor, plan: Plan, levers: Levers, now: float) -> None:
    known: dict[tuple[str, str], Backend] = {}
    for site in floor.sites.values():
        site.rooms = ()
        for backend in tuple(site.backends.values()):
            known[backend.name, backend.plan.address] = backend
            site.remove(backend)
    before, floor.sites = floor.sites, {}
    for platform in plan.platforms:
        site = floor.sites[platform.name] = before.get(platform.name) or Site(platform.name, floor.random)
        names = {backend.name for backend in platform.backends}
        if site.health_of != names:
            _restate(floor, site, names, now)
        site.models = platform.models
        site.smoke = platform.smoke
        site.continues = platform.continues
        for each in platform.backends:
            kept = known.pop((each.name, each.address), None)
            backend = _new(floor, site, platform, each, now) if kept is None else kept
            backend.plan = each
            backend.cap_override = levers.cap(each.name)
            if levers.drained.keys().isdisjoint((backend.name, site.name)):
                backend.health.undrain()
            else:
                backend.health.drain()
            site.add(backend)
            site.health.update(backend.name, backend.health)
            floor.agenda.enter(backend, backend.health.next_at())
        site.recount()
    for backend in known.values():
        floor.agenda.enter(backend, None)


def _restate(floor: Floor, site: Site, names: set[str], now: float) -> None:
    """Other backends, other counts. A platform that refuses us is given its time again."""
    site.health_of = names
    site.health = PlatformHealth(sorted(names))
    if site.refuses:
        site.health.refused(now)
        floor.agenda.enter(site, site.health.next_at())


def _new(floor: Floor, site: Site, platform: PlatformPlan, plan: BackendPlan, now: float) -> Backend:
    return Backend(plan, floor.number(), site, Health(HealthRules(startup_s=platform.startup_s), now, floor.random))


def _take_over_pools(floor: Floor, ward: Ward, plan: Plan, levers: Levers, now: float) -> None:
    before, floor.rooms = floor.rooms, {}
    for pool in plan.pools:
        sites = tuple(floor.sites[name] for name in pool.platforms)
        room = before.pop(pool.name, None)
        if room is None:
            room = Room(pool, plan.lanes, sites, floor.budget, now)
            room.failover.pin(levers.pinned(pool.name), now)
        else:
            _rearrange(ward, room, pool, plan.lanes, sites, now)
        room.retired = False
        floor.rooms[pool.name] = room
    for room in before.values():
        left = tuple(name for name in room.plan.platforms if name in floor.sites)
        if left and (room.waiting or room.in_flight):
            _rearrange(ward, room, replace(room.plan, platforms=left), plan.lanes, tuple(floor.sites[name] for name in left), now)
            room.retired = True
            floor.rooms[room.name] = room
        else:
            floor.dissolve(room, now)


def _rearrange(ward: Ward, room: Room, pool: PoolPlan, lanes: tuple[LanePlan, ...], sites: tuple[Site, ...], now: float) -> None:
    seats = sorted((seat for lane in room.lanes for seat in lane.seats()), key=lambda seat: seat.order)
    owed = {lane.name: (lane.share, lane.owed) for lane in room.lanes}
    room.fit(pool, lanes, sites, now)
    for seat in seats:
        assert seat.ticket is not None
        room.lane(seat.lane).add(seat, room.serves(seat.ticket.request), seat.ticket.tried)
    room.waiting = len(seats)
    for lane in room.lanes:
        share, credit = owed.get(lane.name, (lane.share, 0))
        lane.owed = credit if share == lane.share and lane.waiting else 0
    standings = [site.health.standing() for site in sites]
    ward.moved(room, room.failover.reconfigure(pool.platforms, standings, pool.hold_s, pool.ramp_s, now, smoked(sites)))
