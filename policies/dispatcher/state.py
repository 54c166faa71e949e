"""What is going on in there? Values for metrics, logs and the snapshot: nothing in here decides anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from policies.failover import Moved
from policies.health import HealthState


@dataclass(frozen=True, slots=True)
class Ejected:
    """A backend receives nothing until `until_at` (None: until its active probe is well again)."""

    platform: str
    backend: str
    until_at: float | None
    why: str


@dataclass(frozen=True, slots=True)
class Recovered:
    """A backend that was ejected is healthy again."""

    platform: str
    backend: str


@dataclass(frozen=True, slots=True)
class Resting:
    """A backend said it is busy, and is left alone until then."""

    platform: str
    backend: str
    until_at: float


@dataclass(frozen=True, slots=True)
class PlatformRefuses:
    """A platform refuses our own credential or model name: an operator has to look."""

    platform: str
    backend: str
    until_at: float
    why: str


Event = Moved | Ejected | Recovered | Resting | PlatformRefuses


@dataclass(frozen=True, slots=True)
class LaneState:
    """One lane of one pool. `oldest_s`: how long who arrived first has been waiting; 0.0: nobody waits."""

    waiting: int
    oldest_s: float
    max_wait_s: float


@dataclass(frozen=True, slots=True)
class LeverState:
    """One lever that an operator has pulled: `drain`, `pin` (to platform `value`) or `cap` (at `value` streams)."""

    lever: str
    on: str  # backend, platform or pool
    value: str | int | None
    holds: bool  # False: the file no longer has the name, or the pinned platform is not available
    since_at: float


@dataclass(frozen=True, slots=True)
class Role:
    """A platform in one pool: ready, out, hold (until then, and it has to prove itself) or ramp (on its way back)."""

    phase: str
    until_at: float | None = None


@dataclass(frozen=True, slots=True)
class PoolState:
    """One pool. `load_ratio`: needed streams / streams; warn above 0.9 (0.85 below 16 streams)."""

    lanes: Mapping[str, LaneState]
    platforms: tuple[str, ...]
    in_service: tuple[str, ...]
    places: int
    streams: int  # configured caps of the platform in service
    in_flight: int
    arrival_rps: float
    generation_s: float
    needed_streams: float
    load_ratio: float
    retired: bool  # no longer in the file; serves those it still holds
    pinned: str | None = None  # to this platform, by an operator
    roles: Mapping[str, Role] = field(default_factory=dict)  # by platform


@dataclass(frozen=True, slots=True)
class PlatformState:
    """One platform. `refuses_until_at`: it refuses our own credential."""

    backends: tuple[str, ...]
    drained: bool
    refuses_until_at: float | None


@dataclass(frozen=True, slots=True)
class BackendState:
    """One backend. `max_streams`: the file's, or the operator's `cap_override`; `cap`: what of it may be used now.

    `until_at`: when what `why` names ends, if that is known.
    """

    platform: str
    in_flight: int
    max_streams: int
    cap: int
    state: HealthState
    why: str
    until_at: float | None
    cap_override: int | None = None  # by an operator


@dataclass(frozen=True, slots=True)
class State:
    """Everything at `at`."""

    at: float
    pools: Mapping[str, PoolState]
    platforms: Mapping[str, PlatformState]
    backends: Mapping[str, BackendState]
    waiting: int
    waiting_bytes: int
    in_flight: int
    retries: int
    closed: bool
    levers: tuple[LeverState, ...] = ()
