"""What is simulated? Everything a run is made of, but its callers: the plan, and what the world around it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lab.engine.model import Latency
from lab.simulator.draws import Spread
from lab.simulator.incidents import Incident
from policies.model import Plan, Request


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """What the host, not the decisions, holds requests of a pool to."""

    first_token_s: float = 60.0
    idle_s: float = 60.0
    total_s: float = 900.0
    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """One file in one world. `choose`: the pool of a request, None for none (404)."""

    plan: Plan
    choose: Callable[[Request], str | None]
    pools: Mapping[str, PoolFacts]
    probed: Sequence[str] = ()  # backends that are probed actively
    latency: Latency | None = None  # the engine's model; None: the callers' own service times
    engine_slots: int | None = None  # of each backend in the model; None: as many as its cap
    backend_ttft: Spread | None = None  # without the model: grant to first token; None: at once
    patience_s: float | None = None  # to the first token
    seen_leaving: bool = False  # callers whose patience is over close their connection; else they only stop listening
    incidents: Sequence[Incident] = ()
    seed: int = 0
    warm_up_s: float = 0.0
    warm_up_requests: int = 0
    sample_every_s: float | None = None
    jobs: int = 0
    deadline_s: float | None = None
