"""How do settings become what runs? What the decisions need of them is translated by `proxy.translation`; the rest is here."""

from __future__ import annotations

import asyncio
import resource
import ssl
from collections.abc import Iterable, Mapping, Sequence

from policies.dispatcher import Dispatcher
from policies.routing import Router
from policies.tokens import TokenEstimate
from proxy import translation
from proxy.edition import Backend, Edition, Pool
from proxy.endpoints import Api
from proxy.http1.client import KeptConnections
from proxy.http1.exchange import Limits
from proxy.http1.heads import UpstreamHeads
from proxy.http1.outbox import Outbox
from proxy.identity import Identities, Identity
from proxy.intake import Reception
from proxy.prober import Probe
from proxy.settings import keys as of_keys
from proxy.settings import platforms as of_platforms
from proxy.settings import pools as of_pools
from proxy.settings.root import Settings
from proxy.smoke import SmokeTest
from proxy.telemetry.inventory import Inventory
from proxy.telemetry.spend import Price

SMOKE_FIRST_TOKEN_S = 30.0  # or the platform's startup: what a probe is given too
_OWN_DESCRIPTORS = 64  # listeners, logs, the admin port, probes


def dispatcher(settings: Settings, now: float, seed: int) -> Dispatcher:
    """The decisions of this file."""
    return Dispatcher(translation.plan(settings), now, seed)


def token_estimate() -> TokenEstimate:
    """What prompts are measured by; it learns over reloads."""
    return TokenEstimate()


def edition(
    settings: Settings, loop: asyncio.AbstractEventLoop, outbox: Outbox, tokens: TokenEstimate, before: Edition | None = None
) -> Edition:
    """The file as the server runs it. Backends that did not change keep their connections `before`."""
    router = translation.router(settings)
    return Edition(
        plan=translation.plan(settings),
        reception=reception(settings, router, tokens),
        router=router,
        pools={name: _pool(name, pool, settings.lanes) for name, pool in settings.pools.items()},
        backends=backends(settings, loop, outbox, before),
        limits=Limits(
            body_bytes=settings.server.max_body_bytes,
            connections=_caller_connections(),
            connections_per_address=settings.server.connections_per_address,
        ),
        models=models_served(settings),
        expose=settings.server.expose,
        trusted_proxies=settings.server.trusted_proxies,
    )


def _caller_connections() -> int:
    """How many callers may be connected? Each may need a second descriptor towards a backend, and some are needed for the rest."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1_000_000 if descriptors == resource.RLIM_INFINITY else max(8, (descriptors - _OWN_DESCRIPTORS) // 2)


def reception(settings: Settings, router: Router, tokens: TokenEstimate) -> Reception:
    """Who reads what comes in."""
    lanes = list(settings.lanes)
    return Reception(
        identities=_identities(settings, lanes),
        lanes=lanes,
        max_body_bytes=settings.server.max_body_bytes,
        needs_text=router.needs_text,
        splits=router.splits,
        tokens=tokens,
    )


def identities_by_name(settings: Settings) -> dict[str, Identity]:
    """Everybody who may call, by the name that logs and limits know; `anonymous` for those without a key."""
    lanes = list(settings.lanes)
    found = {key.name: _identity(key.name, key, lanes) for key in settings.keys}
    if settings.anonymous is not None:
        found.setdefault("anonymous", _identity("anonymous", settings.anonymous, lanes))
    return found


def inventory(settings: Settings) -> Inventory:
    """The file as the metrics need it."""
    prices = {}
    for name, platform in settings.platforms.items():
        cost = platform.cost
        if cost is not None:
            prices[name] = Price(cost.per_hour or 0.0, cost.input_per_million or 0.0, cost.output_per_million or 0.0)
    return Inventory(
        translation.plan(settings),
        {name: pool.slo.tpot_s for name, pool in settings.pools.items() if pool.slo.tpot_s is not None},
        prices,
        {name: frozenset(pool.standby) for name, pool in settings.pools.items()},
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


def models_served(settings: Settings) -> Mapping[str, Sequence[str]]:
    """The names a caller may ask for, with the pools each leads to: those the routes spell out, else the pools' names."""
    spelt: dict[str, list[str]] = {}
    for route in settings.routes:
        for name in route.when.model or ():
            if not set(name) & set("*?["):
                spelt.setdefault(name, []).extend(pool for pool, _ in route.targets)
    return spelt or {name: [name] for name in settings.pools}


def _pool(name: str, pool: of_pools.Pool, lanes: Iterable[str]) -> Pool:
    timeouts = pool.timeouts
    fields = [f"x-fairlane-lane: {lane}\r\nx-fairlane-pool: {name}\r\n".encode() for lane in lanes]
    times = (timeouts.connect_s, timeouts.first_token_s, timeouts.idle_s, timeouts.total_s)
    return Pool(name, pool.model, *times, fields, continues=pool.continues, hedges=pool.hedge is not None)


def _identities(settings: Settings, lanes: list[str]) -> Identities:
    keys = [(key.digest, _identity(key.name, key, lanes)) for key in settings.keys]
    return Identities(keys, _identity("anonymous", settings.anonymous, lanes) if settings.anonymous is not None else None)


def _identity(name: str, caller: of_keys.Caller, lanes: list[str]) -> Identity:
    pools = frozenset(caller.pools) if caller.pools is not None else None
    return Identity(name, lanes.index(caller.lane), caller.traffic, pools, caller.models)


def backends(settings: Settings, loop: asyncio.AbstractEventLoop, outbox: Outbox, before: Edition | None = None) -> Mapping[str, Backend]:
    """Every backend of the file, by name. Those that did not change keep their connections `before`."""
    built = {}
    for platform_name, platform in settings.platforms.items():
        tls = _tls(platform)
        for name, backend in platform.backends.items():
            address = translation.address(platform, backend)
            old = before.backends.get(name) if before is not None else None
            if old is not None and old.address == address and tls is None:
                connections = old.connections
            else:
                secured = tls if backend.url.scheme == "https" else None
                connections = KeptConnections(backend.url.host, backend.url.port, secured, loop, outbox)
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
                platform.priority,
                platform.continues == "flags",
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
