"""What do tests of the simulator share? Small worlds: one pool of so many streams, exponential times of 8 s."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from lab.simulator.draws import Spread
from lab.simulator.host import Host
from lab.simulator.report import Document, document
from lab.simulator.run import host
from lab.simulator.scenario import PoolFacts, Scenario
from lab.simulator.workload import Arrivals, Sizes, Tenants, by_rate, until
from policies.model import BackendPlan, LanePlan, PlacesPlan, Plan, PlatformPlan, PoolPlan

LANES = ("fast", "slow")
FOREVER_S = 1e9


def platform(name: str, **caps: int) -> PlatformPlan:
    return PlatformPlan(name, tuple(BackendPlan(backend, cap) for backend, cap in caps.items()))


def plan(
    streams: int = 80,
    places: int = 1_000_000,
    share: Fraction = Fraction(0),
    max_wait_s: float = FOREVER_S,
    platforms: tuple[PlatformPlan, ...] = (),
    **pool: Any,
) -> Plan:
    served = platforms or (platform("own", gpu=streams),)
    lanes = (LanePlan("fast", max_wait_s), LanePlan("slow", max_wait_s, share))
    return Plan(lanes, served, (PoolPlan("chat", tuple(each.name for each in served), PlacesPlan(fixed=places), **pool),))


def scenario(world: Plan, requests: int, seed: int = 0, **more: Any) -> Scenario:
    facts = {"chat": PoolFacts(total_s=FOREVER_S)}
    return Scenario(world, lambda request: "chat", facts, seed=seed, **{"warm_up_requests": requests // 10, **more})


def prepared(
    world: Plan,
    rates: Mapping[str, float],
    requests: int,
    seed: int = 0,
    service: Spread | None = None,
    gap: str = "exponential",
    **more: Any,
) -> Host:
    sizes = Sizes(service or Spread("exponential", 8.0))
    callers = by_rate(Arrivals(rates, gap), sizes, LANES, Tenants(), seed, told_apart=False)
    return Host(scenario(world, requests, seed, **more), until(callers, requests, None))


def simulated(
    world: Plan, rates: Mapping[str, float], requests: int, seed: int = 0, service: Spread | None = None, **more: Any
) -> Document:
    """The result of one run."""
    sizes = Sizes(service or Spread("exponential", 8.0))
    callers = until(by_rate(Arrivals(rates), sizes, LANES, Tenants(), seed, told_apart=False), requests, None)
    return document(host(scenario(world, requests, seed, **more), callers), "test", seed)


def share_of(lane: Mapping[str, Any], *reasons: str) -> float:
    """Which part of a lane's requests was refused for these reasons (all of them, if none is named)?"""
    refused = lane["refused"]
    return float(sum(count for reason, count in refused.items() if not reasons or reason in reasons) / lane["offered"])


__all__ = ["plan", "platform", "prepared", "replace", "scenario", "share_of", "simulated"]
