"""How do settings become what runs? The only file that knows both the settings and the parameters of the policies."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable, Mapping

from policies.dispatcher import Dispatcher
from policies.model import BackendPlan, LanePlan, PlacesPlan, Plan, PlatformPlan, PoolPlan, Request
from policies.routing import Condition, Route, Router, condition
from policies.tokens import TokenEstimate
from proxy.edition import Backend, Edition, Pool
from proxy.endpoints import Api
from proxy.http1.client import KeptConnections
from proxy.http1.exchange import Limits
from proxy.http1.heads import UpstreamHeads
from proxy.identity import Identities, Identity
from proxy.intake import Reception
from proxy.prober import Probe
from proxy.settings import keys as of_keys
from proxy.settings import platforms as of_platforms
from proxy.settings import pools as of_pools
from proxy.settings import routes as of_routes
from proxy.settings.root import Settings
from proxy.smoke import SmokeTest
from proxy.telemetry.spend import Price
from proxy.telemetry.telemetry import Inventory

SMOKE_FIRST_TOKEN_S = 30.0  # or the platform's startup: what a probe is given too


def plan(settings: Settings) -> Plan:
    """The file as the decisions need it."""
    return Plan(
        lanes=tuple(LanePlan(name, lane.max_wait_s, lane.share, lane.reserve) for name, lane in settings.lanes.items()),
        platforms=tuple(_platform_plan(name, platform) for name, platform in settings.platforms.items()),
        pools=tuple(_pool_plan(name, pool) for name, pool in settings.pools.items()),
    )


def dispatcher(settings: Settings, now: float, seed: int) -> Dispatcher:
    """The decisions of this file."""
    return Dispatcher(plan(settings), now, seed)


def token_estimate() -> TokenEstimate:
    """What prompts are measured by; it learns over reloads."""
    return TokenEstimate()


def edition(settings: Settings, loop: asyncio.AbstractEventLoop, tokens: TokenEstimate, before: Edition | None = None) -> Edition:
    """The file as the server runs it. Backends that did not change keep their connections `before`."""
    router = Router([Route(_conditions(route.when, settings), route.pool, _split(route)) for route in settings.routes])
    lanes = list(settings.lanes)
    return Edition(
        plan=plan(settings),
        reception=Reception(
            identities=_identities(settings, lanes),
            lanes=lanes,
            max_body_bytes=settings.server.max_body_bytes,
            needs_text=router.needs_text,
            tokens=tokens,
        ),
        router=router,
        lanes=plan(settings).lanes,
        pools={name: _pool(name, pool, lanes) for name, pool in settings.pools.items()},
        backends=backends(settings, loop, before),
        limits=Limits(body_bytes=settings.server.max_body_bytes),
        models=models_served(settings),
        expose=settings.server.expose,
        trusted_proxies=settings.server.trusted_proxies,
    )


def inventory(settings: Settings) -> Inventory:
    """The file as the metrics need it."""
    prices = {}
    for name, platform in settings.platforms.items():
        cost = platform.cost
        if cost is not None:
            prices[name] = Price(cost.per_hour or 0.0, cost.input_per_million or 0.0, cost.output_per_million or 0.0)
    return Inventory(
        plan(settings), {name: pool.slo.tpot_s for name, pool in settings.pools.items() if pool.slo.tpot_s is not None}, prices
    )


def probes(settings: Settings) -> Mapping[str, Probe]:
    """What the prober asks of each backend, by backend."""
    asked = {}
    for platform in settings.platforms.values():
        if platform.probe == "none":
            continue
        tls = _tls(platform)
        for name, backend in platform.backends.items():
            root = str(backend.url).removesuffix("/v1")
            if platform.probe == "health":
                asked[name] = Probe(f"{root}/health", (), tls, absent_is_alive=True)
            else:
                asked[name] = Probe(f"{root}/v1/models", tuple(_own_fields(platform, messages=False)), tls, absent_is_alive=False)
    return asked


def smoke_tests(settings: Settings) -> Mapping[str, SmokeTest]:
    """What a smoke test asks of each platform: every model that its pools may ask of it."""
    tests = {}
    for name, platform in settings.platforms.items():
        ours = [pool.model for pool in settings.pools.values() if name in pool.platforms]
        named = [model for model in ours if model is not None] or list(platform.models or ())
        models = dict.fromkeys((platform.models or {}).get(model, model) for model in named)
        api = Api.ANTHROPIC if platform.auth == "x-api-key" else Api.OPENAI
        deadline_s = max(SMOKE_FIRST_TOKEN_S, platform.startup_s)
        tests[name] = SmokeTest(name, tuple(platform.backends), tuple(models), api, deadline_s, platform.smoke_s)
    return tests


def models_served(settings: Settings) -> tuple[str, ...]:
    """The names a caller may ask for: those the routes spell out, else the pools' names (contract, section 4)."""
    spelt = [name for route in settings.routes for name in route.when.model or () if not set(name) & set("*?[")]
    return tuple(dict.fromkeys(spelt)) or tuple(settings.pools)


def _platform_plan(name: str, platform: of_platforms.Platform) -> PlatformPlan:
    return PlatformPlan(
        name,
        tuple(
            BackendPlan(backend_name, platform.cap_streams(backend_name), backend.weight, _address(platform, backend))
            for backend_name, backend in platform.backends.items()
        ),
        frozenset(platform.models) if platform.models is not None else None,
        platform.startup_s,
        platform.smoke_s is not None,
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
    )


def _pool(name: str, pool: of_pools.Pool, lanes: Iterable[str]) -> Pool:
    timeouts = pool.timeouts
    fields = [f"x-fairlane-lane: {lane}\r\nx-fairlane-pool: {name}\r\n".encode() for lane in lanes]
    return Pool(name, pool.model, timeouts.connect_s, timeouts.first_token_s, timeouts.idle_s, timeouts.total_s, fields)


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


def _identities(settings: Settings, lanes: list[str]) -> Identities:
    keys = [(key.digest, _identity(key.name, key, lanes)) for key in settings.keys]
    return Identities(keys, _identity("anonymous", settings.anonymous, lanes) if settings.anonymous is not None else None)


def _identity(name: str, caller: of_keys.Caller, lanes: list[str]) -> Identity:
    pools = frozenset(caller.pools) if caller.pools is not None else None
    return Identity(name, lanes.index(caller.lane), caller.traffic, pools, caller.models)


def backends(settings: Settings, loop: asyncio.AbstractEventLoop, before: Edition | None = None) -> Mapping[str, Backend]:
    """Every backend of the file, by name. Those that did not change keep their connections `before`."""
    built = {}
    for platform_name, platform in settings.platforms.items():
        tls = _tls(platform)
        for name, backend in platform.backends.items():
            address = _address(platform, backend)
            old = before.backends.get(name) if before is not None else None
            if old is not None and old.address == address and tls is None:
                connections = old.connections
            else:
                connections = KeptConnections(backend.url.host, backend.url.port, tls if backend.url.scheme == "https" else None, loop)
            built[name] = Backend(
                name,
                platform_name,
                loop,
                connections,
                _heads(platform, backend, messages=False),
                _heads(platform, backend, messages=True),
                platform.credential is not None,
                address,
                platform.models,
            )
    return built


def _heads(platform: of_platforms.Platform, backend: of_platforms.Backend, *, messages: bool) -> UpstreamHeads:
    url, own = backend.url, _own_fields(platform, messages=messages)
    default_port = 443 if url.scheme == "https" else 80
    host = f"[{url.host}]" if ":" in url.host else url.host
    return UpstreamHeads(host if url.port == default_port else f"{host}:{url.port}", url.path, own, replaces_v1=url.path.endswith("/v1"))


def _own_fields(platform: of_platforms.Platform, *, messages: bool) -> list[tuple[str, str]]:
    """The platform's own header fields, its credential among them."""
    own = [(name, value.get_secret_value()) for name, value in platform.headers.items()]
    credential, auth = platform.credential, platform.auth or ("x-api-key" if messages else "bearer")
    if credential is not None and auth == "bearer":
        own.append(("authorization", f"Bearer {credential.get_secret_value()}"))
    elif credential is not None and auth == "x-api-key":
        own.append(("x-api-key", credential.get_secret_value()))
    return own


def _tls(platform: of_platforms.Platform) -> ssl.SSLContext | None:
    if not any(backend.url.scheme == "https" for backend in platform.backends.values()):
        return None
    context = ssl.create_default_context(cafile=str(platform.tls.ca) if platform.tls.ca else None)
    if platform.tls.cert is not None and platform.tls.key is not None:
        context.load_cert_chain(platform.tls.cert, platform.tls.key)
    return context


def _address(platform: of_platforms.Platform, backend: of_platforms.Backend) -> str:
    return f"{backend.url} {platform.tls.ca or ''} {platform.tls.cert or ''}"
