"""What does the dispatcher's snapshot look like from outside? As gauges, as readiness, and as the document of /debug/state.

The only place that knows its fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from policies.dispatcher.state import State
from policies.health import HealthState
from proxy.telemetry import catalogue
from proxy.telemetry.exposition import header, sample
from proxy.telemetry.labels import LEVERS
from proxy.telemetry.metric import Metric

__all__ = ["Check", "State", "checks", "document", "gauges", "instant"]

Values = Iterable[tuple[Sequence[str], float]]


def gauges(state: State) -> Iterator[str]:
    """The lines of every gauge that the snapshot holds."""
    for metric, values in _readings(state):
        yield header(metric)
        for labels, value in values:
            yield sample(metric, labels, value)


def _readings(state: State) -> Iterator[tuple[Metric, Values]]:
    pools, backends = state.pools.items(), state.backends.items()
    lanes = [((name, lane), seen) for name, pool in pools for lane, seen in pool.lanes.items()]
    yield catalogue.QUEUE_WAITING, ((labels, lane.waiting) for labels, lane in lanes)
    yield catalogue.QUEUE_OLDEST, ((labels, lane.oldest_s) for labels, lane in lanes)
    yield catalogue.QUEUE_MAX_WAIT, ((labels, lane.max_wait_s) for labels, lane in lanes)
    yield catalogue.QUEUE_PLACES, (((name,), pool.places) for name, pool in pools)
    yield catalogue.QUEUE_BYTES, [((), state.waiting_bytes)]
    yield catalogue.RETRIES_IN_FLIGHT, [((), state.retries)]
    yield catalogue.ARRIVAL_RATE, (((name,), pool.arrival_rps) for name, pool in pools)
    yield catalogue.GENERATION_S, (((name,), pool.generation_s) for name, pool in pools)
    yield catalogue.NEEDED_STREAMS, (((name,), pool.needed_streams) for name, pool in pools)
    yield catalogue.LOAD, (((name,), pool.load_ratio) for name, pool in pools)
    yield catalogue.IN_SERVICE, (((name, each), int(each in pool.in_service)) for name, pool in pools for each in pool.platforms)
    yield catalogue.STREAMS, (((name, backend.platform), backend.in_flight) for name, backend in backends)
    yield catalogue.MAX_STREAMS, (((name, backend.platform), backend.max_streams) for name, backend in backends)
    yield catalogue.USABLE_STREAMS, (((name, backend.platform), backend.cap) for name, backend in backends)
    refused = [((name,), int(platform.refuses_until_at is not None)) for name, platform in state.platforms.items()]
    yield catalogue.REFUSES_US, refused
    yield catalogue.LEVERS, [((lever,), sum(pulled.lever == lever for pulled in state.levers)) for lever in LEVERS]
    yield catalogue.PINNED, (((name, each), int(each == pool.pinned)) for name, pool in pools for each in pool.platforms)
    yield catalogue.CAP_OVERRIDE, (((name, backend.platform), backend.cap_override or 0) for name, backend in backends)
    yield catalogue.BACKEND_STATE, (((name, backend.platform), int(backend.state)) for name, backend in backends)


class Check(NamedTuple):
    """One thing that is looked at for readiness. `fault`: what is wrong, empty if nothing is; `needed`: not ready while it is wrong."""

    name: str
    fault: str = ""
    needed: bool = True


def checks(state: State) -> list[Check]:
    """May this Fairlane be sent requests? Not while it drains, nor while no pool has anyone to serve it; one pool alone may be down."""
    pools = [
        Check(f"pool {name}", "" if pool.in_service else "no platform in service", needed=False)
        for name, pool in state.pools.items()
        if not pool.retired
    ]
    nobody = all(check.fault for check in pools)
    return [Check("accepting", "draining" if state.closed else ""), Check("backends", "no pool is in service" if nobody else ""), *pools]


_UNDO = {"drain": "undrain", "pin": "unpin", "cap": "uncap"}


def document(state: State, *, version: str, uptime_s: float, wall: float, recent: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The snapshot for people: states by name, and instants as dates (`until`, null if it is not known) beside what remains of them.

    `recent`: what happened lately, to be shown beside it.
    """
    shown: dict[str, Any] = msgspec.to_builtins(state)
    at = shown.pop("at")
    for backend in shown["backends"].values():
        backend["state"] = HealthState(backend["state"]).name.lower()
        _date(backend, "until", at, wall)
    for role in (role for pool in shown["pools"].values() for role in pool["roles"].values()):
        _date(role, "until", at, wall)
    for platform in shown["platforms"].values():
        _date(platform, "refuses_until", at, wall)
    for lever in shown["levers"]:
        since_s = at - lever.pop("since_at")
        lever |= {"since": instant(wall - since_s), "since_s": round(since_s, 3), "undo": f"POST /-/{_UNDO[lever['lever']]}/{lever['on']}"}
    draining = shown.pop("closed")
    head = {"version": version, "time": instant(wall), "uptime_s": round(uptime_s, 3), "draining": draining}
    return {**head, **shown, **(recent or {})}


def _date(shown: dict[str, Any], name: str, at: float, wall: float) -> None:
    until_at = shown.pop(f"{name}_at")
    shown[name] = None if until_at is None else instant(wall + until_at - at)
    shown[f"{name}_s"] = None if until_at is None else round(until_at - at, 3)


def instant(wall: float) -> str:
    """Seconds since 1970 as a date."""
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
