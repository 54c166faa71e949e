"""Does every name in the file lead somewhere? Lanes, keys, pools, platforms and models that are named but not there.

Names are checked on the plain content, so that a file with other problems hears of these too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from proxy.settings.problems import did_you_mean
from proxy.settings.root import Settings
from proxy.settings.routes import is_glob
from proxy.settings.section import KEY, Steps

Finding = tuple[Steps, str]
DEFAULT_LANES = ("fast", "slow")
LOAD_MAX = Fraction(9, 10)  # above it a queue hardly drains


def contradictions(content: Any) -> Iterator[Finding]:
    """Every name that leads nowhere, with the one that was probably meant; and parts that make no whole."""
    if not isinstance(content, Mapping):
        return
    lanes = list(_mapping(content, "lanes")) or list(DEFAULT_LANES)
    platforms, pools = _mapping(content, "platforms"), _mapping(content, "pools")
    keys = [name for key in _items(content, "keys") for name in [_mapping_or_empty(key).get("name")] if isinstance(name, str)]
    callers: list[tuple[Steps, Any]] = [(("keys", index), key) for index, key in enumerate(_items(content, "keys"))]
    for steps, caller in [*callers, (("anonymous",), content.get("anonymous"))]:
        yield from _strangers(caller, steps, "lane", "lane", lanes)
        yield from _strangers(caller, steps, "pools", "pool", pools)
    for name, pool in pools.items():
        for role in ("primary", "standby"):
            yield from _strangers(pool, ("pools", name), role, "platform", platforms)
        yield from _standing_in_for_itself(_mapping_or_empty(pool), name)
        yield from _unserved(_mapping_or_empty(pool), name, platforms)
        yield from _never_continued(_mapping_or_empty(pool), name, platforms)
    if not content.get("keys", ()) and "anonymous" not in content:
        yield ("keys",), "nobody could call: give keys, or `anonymous: {lane: ...}` for callers without one"
    if not content.get("routes", ()) and len(pools) > 1:
        yield ("routes",), "are required with several pools: say which requests go to which, the last rule with a pool alone"
    for index, route in enumerate(_items(content, "routes")):
        steps = ("routes", index)
        yield from _strangers(route, steps, "pool", "pool", pools)
        yield from _strangers(route, steps, "split", "pool", pools)
        yield from _unserved_by_route(_mapping_or_empty(route), steps, pools, platforms)
        when = _mapping_or_empty(route).get("when")
        yield from _strangers(when, (*steps, "when"), "lane", "lane", lanes)
        yield from _strangers(when, (*steps, "when"), "key", "key", keys)


def _strangers(section: Any, steps: Steps, key: str, kind: str, known: Any) -> Iterator[Finding]:
    """Names under a section's key, single, listed or keys of a mapping, that are not known."""
    named = _mapping_or_empty(section).get(key)
    pairs: list[tuple[Steps, Any]]
    if isinstance(named, str):
        pairs = [((*steps, key), named)]
    elif isinstance(named, tuple):
        pairs = [((*steps, key, index), name) for index, name in enumerate(named)]
    elif isinstance(named, Mapping):
        pairs = [((*steps, key, name, KEY), name) for name in named]
    else:
        pairs = []
    for place, name in pairs:
        if isinstance(name, str) and name not in known:
            yield place, f"names no {kind} of this file{did_you_mean(name, known)}"


def _standing_in_for_itself(pool: Mapping[str, Any], name: str) -> Iterator[Finding]:
    primaries = _listed(pool.get("primary"))
    for index, platform in enumerate(_listed(pool.get("standby"))):
        if platform in primaries:
            yield ("pools", name, "standby", index), "is also the primary; a platform cannot stand in for itself, name another"


def _never_continued(pool: Mapping[str, Any], name: str, platforms: Mapping[str, Any]) -> Iterator[Finding]:
    known = [_mapping_or_empty(platforms[platform]) for platform in _platforms_of(pool) if platform in platforms]
    if pool.get("continue") in (True, "true") and known and all(platform.get("continues") == "none" for platform in known):
        yield ("pools", name, "continue"), "needs a platform that does: all of this pool say continues: none"


def _unserved(pool: Mapping[str, Any], name: str, platforms: Mapping[str, Any]) -> Iterator[Finding]:
    """A pool's model that one of its platforms does not serve: requests would never go there."""
    model = pool.get("model")
    if not isinstance(model, str):
        return
    for platform in _platforms_of(pool):
        served = _mapping_or_empty(platforms.get(platform)).get("models")
        if isinstance(served, Mapping) and model not in served:
            message = f"is not among platforms.{platform}.models, so that platform would never serve this pool"
            yield ("pools", name, "model"), message + did_you_mean(model, served)


def _unserved_by_route(route: Mapping[str, Any], steps: Steps, pools: Mapping[str, Any], platforms: Mapping[str, Any]) -> Iterator[Finding]:
    """A model that a rule asks for, and that no platform of its pool serves where the pool names none itself."""
    target = route.get("pool")
    pool = _mapping_or_empty(pools.get(target)) if isinstance(target, str) else {}
    served = [_mapping_or_empty(platforms.get(platform)).get("models") for platform in _platforms_of(pool)]
    if "model" in pool or not served or not all(isinstance(models, Mapping) for models in served):
        return
    known = list(dict.fromkeys(name for models in served for name in models or ()))
    wanted = _mapping_or_empty(route.get("when")).get("model")
    for index, name in enumerate(_listed(wanted)):
        if isinstance(name, str) and not is_glob(name) and name not in known:
            yield (*steps, "when", "model", index), f"is served by no platform of this pool{did_you_mean(name, known)}"


def _platforms_of(pool: Mapping[str, Any]) -> list[str]:
    return [name for role in ("primary", "standby") for name in _listed(pool.get(role)) if isinstance(name, str)]


def warnings(settings: Settings) -> Iterator[Finding]:
    """What can be served and is probably not what was meant."""
    yield from _caps_below_demand(settings)
    yield from _same_url_twice(settings)
    yield from _idle_parts(settings)
    yield from _unasked_models(settings)
    yield from _nobody_beside(settings)
    yield from _hedges_too_late(settings)


def _nobody_beside(settings: Settings) -> Iterator[Finding]:
    """Options that need a second backend, where there is one."""
    for name, pool in settings.pools.items():
        if sum(len(settings.platforms[platform].backends) for platform in pool.platforms) > 1:
            continue
        for key, wanted in (("hedge", pool.hedge), ("continue", pool.continues)):
            if wanted:
                yield (("pools", name, key), "can do nothing: this pool has one backend, and it takes another; add one, or leave this out")


def _hedges_too_late(settings: Settings) -> Iterator[Finding]:
    """A second attempt that would begin when the first has been given up."""
    for name, pool in settings.pools.items():
        after_s = pool.hedge.after.after_s if pool.hedge is not None else None
        first_token_s = pool.timeouts.first_token_s
        if after_s is not None and after_s >= first_token_s:
            yield (
                ("pools", name, "hedge", "after"),
                f"can do nothing: an attempt is given up after {first_token_s:g}s without a first token; "
                "ask sooner, or raise timeouts.first_token",
            )


def _caps_below_demand(settings: Settings) -> Iterator[Finding]:
    for name, pool in settings.pools.items():
        if pool.demand is None:
            continue
        needed = pool.demand.streams
        for platform in pool.platforms:
            streams = sum(settings.platforms[platform].cap_streams(backend) for backend in settings.platforms[platform].backends)
            if streams * LOAD_MAX < needed:
                wanted = -(-needed // LOAD_MAX)
                yield (
                    ("pools", name, "demand"),
                    (
                        f'needs {float(needed):g} streams on average, and platform "{platform}" carries {streams}: '
                        f"give its backends a max_streams of {wanted} in all, so that at most 90% is in use, or expect less"
                    ),
                )


def _same_url_twice(settings: Settings) -> Iterator[Finding]:
    seen: dict[str, str] = {}
    for name, platform in settings.platforms.items():
        for backend, body in platform.backends.items():
            first = seen.setdefault(str(body.url), backend)
            if first != backend:
                yield (
                    ("platforms", name, "backends", backend, "url"),
                    f'is also the URL of backend "{first}": together they may exceed what it carries',
                )


def _idle_parts(settings: Settings) -> Iterator[Finding]:
    used = {platform for pool in settings.pools.values() for platform in pool.platforms}
    for name in settings.platforms:
        if name not in used:
            yield ("platforms", name), "serves no pool; name it as primary or standby of one, or remove it"
    routed = {pool for route in settings.routes for pool, _ in route.targets}
    for name in settings.pools:
        if name not in routed:
            yield ("pools", name), "is reached by no route; add one, or remove the pool"


def _unasked_models(settings: Settings) -> Iterator[Finding]:
    """Models in a key or a route that look like a misspelling of one the file knows."""
    known = {name for platform in settings.platforms.values() for name in platform.models or ()} | set(settings.pools)
    known |= {pool.model for pool in settings.pools.values() if pool.model is not None}
    routed = {name for route in settings.routes for name in route.when.model or () if not is_glob(name)}
    known |= routed
    callers: list[tuple[Steps, Any]] = [(("keys", index), key) for index, key in enumerate(settings.keys)]
    for steps, caller in [*callers, (("anonymous",), settings.anonymous)]:
        for index, name in enumerate((caller and caller.models) or ()):
            if not is_glob(name) and name not in known:
                yield (*steps, "models", index), f"is a model that nothing in this file names{did_you_mean(name, known)}"


def _mapping_or_empty(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _mapping(content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    return _mapping_or_empty(content.get(key))


def _items(content: Mapping[str, Any], key: str) -> Sequence[Any]:
    items = content.get(key)
    return items if isinstance(items, tuple) else ()


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, tuple) else () if value is None else (value,)
