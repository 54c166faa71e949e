"""What does everything look like now? Reads, and changes nothing but the ages of measurements."""

from __future__ import annotations

from policies.dispatcher.floor import Floor
from policies.dispatcher.levers import Levers
from policies.dispatcher.room import Room
from policies.dispatcher.site import Backend, Site
from policies.dispatcher.state import BackendState, LaneState, PlatformState, PoolState, Role, State
from policies.lanes import Lane


def snapshot(floor: Floor, levers: Levers, closed: bool, now: float) -> State:
    """Everything, at `now`."""
    return State(
        at=now,
        pools={room.name: _pool(room, levers, now) for room in floor.rooms.values()},
        platforms={site.name: _platform(site, levers) for site in floor.sites.values()},
        backends={backend.name: _backend(backend) for site in floor.sites.values() for backend in site.backends.values()},
        waiting=sum(room.waiting for room in floor.rooms.values()),
        waiting_bytes=floor.waiting_bytes,
        in_flight=floor.budget.in_flight,
        retries=floor.budget.retries,
        closed=closed,
        levers=tuple(levers.states(floor.rooms, floor.sites)),
    )


def _pool(room: Room, levers: Levers, now: float) -> PoolState:
    load = room.load
    needed_streams = load.needed_streams(now)
    return PoolState(
        lanes={lane.name: _lane(lane, now) for lane in room.lanes},
        platforms=tuple(site.name for site in room.sites),
        in_service=tuple(room.sites[index].name for index in room.failover.in_service),
        places=room.places,
        streams=room.streams,
        in_flight=room.in_flight,
        arrival_rps=load.arrival_rps(now),
        generation_s=load.generation_s(now),
        needed_streams=needed_streams,
        load_ratio=needed_streams / room.streams if room.streams else 0.0,
        retired=room.retired,
        pinned=levers.pinned(room.name),
        roles={site.name: Role(room.failover.phase(index).value, room.failover.hold_until(index)) for index, site in enumerate(room.sites)},
    )


def _lane(lane: Lane, now: float) -> LaneState:
    oldest = lane.oldest()
    waited_s = 0.0 if oldest is None or oldest.ticket is None else oldest.ticket.waited_s + now - oldest.since_at
    return LaneState(lane.waiting, waited_s, lane.max_wait_s)


def _platform(site: Site, levers: Levers) -> PlatformState:
    return PlatformState(tuple(site.backends), site.name in levers.drained, site.health.refused_until() or None)


def _backend(backend: Backend) -> BackendState:
    condition = backend.health.condition()
    return BackendState(
        platform=backend.site.name,
        in_flight=backend.slots.in_flight,
        max_streams=backend.max_streams,
        cap=backend.cap,
        state=condition.state,
        why=condition.why,
        until_at=condition.until_at,
        cap_override=backend.cap_override,
    )
