"""What does the file say to the decisions? Settings in, the parameters of the policies out; nothing is opened, asked or started.

The server (`proxy.wiring`) and the simulator read the file through this module, so both decide by the same plan and the same routes.
"""

from __future__ import annotations

from collections.abc import Callable

from policies.model import BackendPlan, Hedge, LanePlan, PlacesPlan, Plan, PlatformPlan, PoolPlan, Request
from policies.routing import Condition, Route, Router, condition
from proxy.settings import platforms as of_platforms
from proxy.settings import pools as of_pools
from proxy.settings import routes as of_routes
from proxy.settings.root import Settings


def plan(settings: Settings) -> Plan:
    """The file as the decisions need it."""
    return Plan(
        lanes=tuple(LanePlan(name, lane.max_wait_s, lane.share, lane.reserve) for name, lane in settings.lanes.items()),
        platforms=tuple(_platform_plan(name, platform) for name, platform in settings.platforms.items()),
        pools=tuple(_pool_plan(name, pool) for name, pool in settings.pools.items()),
    )


def router(settings: Settings) -> Router:
    """The file's routes, compiled."""
    return Router([Route(_conditions(route.when, settings), route.pool, _split(route)) for route in settings.routes])


def address(platform: of_platforms.Platform, backend: of_platforms.Backend) -> str:
    """What makes a backend this one and no other: under another address the same name is a new backend."""
    return f"{backend.url} {platform.tls.ca or ''} {platform.tls.cert or ''}"


def _platform_plan(name: str, platform: of_platforms.Platform) -> PlatformPlan:
    return PlatformPlan(
        name,
        tuple(
            BackendPlan(backend_name, platform.cap_streams(backend_name), backend.weight, address(platform, backend))
            for backend_name, backend in platform.backends.items()
        ),
        frozenset(platform.models) if platform.models is not None else None,
        platform.startup_s,
        platform.smoke_s is not None,
        platform.continues != "none",
    )


def _pool_plan(name: str, pool: of_pools.Pool) -> PoolPlan:
    return PoolPlan(
        name,
        pool.platforms,
        PlacesPlan(pool.queue.places, pool.queue.buffer, pool.demand.streams if pool.demand is not None else None),
        pool.queue.max_wait_s,
        pool.model,
        pool.retries.attempts,
        pool.retries.after_send,
        pool.slo.ttft_s,
        pool.failback.hold_s,
        pool.failback.ramp_s,
        pool.overflow is not None,
        pool.warm,
        Hedge(*pool.hedge.after) if pool.hedge is not None else None,
        pool.continues,
    )


def _conditions(when: of_routes.When, settings: Settings) -> list[Condition]:
    compiled = []
    lanes = list(settings.lanes)
    for kind, value in when.conditions:
        if kind == "lane":
            # Lanes are numbers to the policies; several lanes in one condition are one rule that any of them meets.
            numbers = frozenset(lanes.index(name) for name in when.lane or ())
            compiled.append(Condition("lane", ", ".join(when.lane or ()), _in_lanes(numbers)))
        else:
            compiled.append(condition(kind, value))  # type: ignore[arg-type]
    return compiled


def _in_lanes(numbers: frozenset[int]) -> Callable[[Request], bool]:
    return lambda request: request.lane in numbers


def _split(route: of_routes.Route) -> tuple[tuple[str, int], ...]:
    return route.targets if route.split is not None else ()
