"""What is in the whole file? The frozen settings that the server is built from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BeforeValidator, model_validator

from proxy.settings.keys import Anonymous, Key, distinct
from proxy.settings.lanes import Lane, default_lanes, with_defaults
from proxy.settings.platforms import Platform
from proxy.settings.pools import Pool
from proxy.settings.routes import Route, reachable
from proxy.settings.section import KEY, Section, filled, refuse, setting
from proxy.settings.server import Server
from proxy.settings.values import Kind, Name


def _named(platforms: Any) -> Any:
    """Backends of a list get their platform's name and their number."""
    if not isinstance(platforms, Mapping):
        return platforms
    return {
        name: {**body, "backends": {f"{name}-{number}": backend for number, backend in enumerate(body["backends"], 1)}}
        if isinstance(body, Mapping) and isinstance(body.get("backends"), list | tuple)
        else body
        for name, body in platforms.items()
    }


def _distinct(platforms: Mapping[str, Platform]) -> Mapping[str, Platform]:
    """Backends and platforms, if each name means one thing: metrics and levers know them by name alone."""
    problems = []
    owners: dict[str, str] = {}
    for name, platform in platforms.items():
        for backend in platform.backends:
            if backend in owners:
                problems.append(
                    ((name, "backends", backend, KEY), f'is also a backend of platform "{owners[backend]}"; give one of them another name')
                )
            elif backend in platforms and (backend != name or len(platform.backends) > 1):
                problems.append(((name, "backends", backend, KEY), "is also the name of a platform; give one of them another name"))
            owners.setdefault(backend, name)
    refuse(*problems)
    return platforms


class Settings(Section):
    """Everything the server is built from."""

    later: ClassVar[frozenset[str]] = frozenset({"redis"})

    server: Server = setting("ports, limits, and how the server ends", Server(), shown="{}")
    lanes: Annotated[Mapping[Name, Lane], AfterValidator(with_defaults), Kind("mapping of names")] = setting(
        "priority classes; the first is served first", default_lanes(), shown="{fast: {max_wait: 4s}, slow: {max_wait: 20s, share: 10%}}"
    )
    keys: Annotated[tuple[Key, ...], AfterValidator(distinct), Kind("list")] = setting("who may call", (), shown="[]")
    anonymous: Anonymous | None = setting("callers without a key", None, shown="refused")
    platforms: Annotated[
        Mapping[Name, Platform],
        AfterValidator(_distinct),
        BeforeValidator(_named, json_schema_input_type=Mapping[Name, Platform]),
        Kind("mapping of names"),
    ] = setting("backends that fail together, by name", min_length=1)
    pools: Annotated[Mapping[Name, Pool], Kind("mapping of names")] = setting(
        "requests that wait together, by name; on a backend they share, an earlier pool goes first", min_length=1
    )
    routes: Annotated[tuple[Route, ...], AfterValidator(reachable), Kind("list")] = setting(
        "which pool a request goes to: first match wins, none is 404", (), shown="everything to the only pool"
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if not self.routes and len(self.pools) == 1:
            filled(self, {"routes": (Route(pool=next(iter(self.pools))),)})
        return self
