"""How many streams, places, instances, and what does it cost? Little's law, and what follows from it, each number with its formula.

Decimal arithmetic: 1.1 requests a second of 50 s are 55 streams and not 56.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import ceil, inf, isinf, log
from typing import Any

from lab.planner.erlang import erlang_c, lane_waits_s, wait_quantile_s
from policies.capacity import places
from policies.model import PlacesPlan

LOAD_TARGET = Fraction(9, 10)  # beyond it a queue hardly drains (policies.md 1)
WARM_LOW, WARM_HIGH = Fraction(3, 10), Fraction(1, 2)
HOURS_A_MONTH = 730


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What is expected. What is None was not said."""

    rps: Decimal
    generation_s: Decimal
    lanes: Mapping[str, float] | None = None  # requests per second, first served first; None: one lane of all
    streams: int | None = None  # that there are; None: what the load target asks for
    streams_per_instance: int | None = None
    off_peak_rps: Decimal | None = None
    output_tokens: Decimal | None = None
    tokens_per_second: Decimal | None = None  # of one instance
    price_per_hour: Decimal | None = None  # of one instance


@dataclass(frozen=True, slots=True)
class Line:
    """One number of the plan."""

    key: str
    value: Any
    formula: str


def plan(demand: Demand) -> list[Line]:
    """The plan, number by number."""
    load = Fraction(demand.rps) * Fraction(demand.generation_s)
    streams = ceil(load)
    extra = places(PlacesPlan(), streams)
    target = ceil(load / LOAD_TARGET)
    rps, time_s = f"{demand.rps.normalize():f}", f"{demand.generation_s.normalize():f}"
    lines = [
        Line("streams", streams, f"Little's law: {rps}/s x {time_s} s, rounded up"),
        Line("places", extra, f"20 % of {streams} streams, rounded up, at least 1: who waits in Fairlane, not in an engine"),
        Line("capacity", streams + extra, f"{streams} + {extra}: requests in all before one is refused"),
        Line("streams_at_90", target, f"{_short(load)} / 0.9: at 100 % load a queue never drains, 90 % leaves room"),
    ]
    by_streams = _instances(demand, streams, target, lines)
    by_tokens = _by_tokens(demand, lines)
    _warm(demand, lines)
    _cost(demand, max(filter(None, (by_streams, by_tokens)), default=None), lines)
    _waits(demand, demand.streams or target, load, lines)
    return lines


def _instances(demand: Demand, streams: int, target: int, lines: list[Line]) -> int | None:
    each = demand.streams_per_instance
    if each is None:
        return None
    lines.append(Line("instances", ceil(streams / each), f"{streams} streams / {each} per instance, rounded up: loaded to 100 %"))
    lines.append(Line("instances_at_90", ceil(target / each), f"{target} streams / {each}, rounded up: with room to drain a queue"))
    return ceil(target / each)


def _by_tokens(demand: Demand, lines: list[Line]) -> int | None:
    if demand.output_tokens is None or demand.tokens_per_second is None:
        return None
    needed = Fraction(demand.rps) * Fraction(demand.output_tokens)
    count = ceil(needed / Fraction(demand.tokens_per_second))
    asked = f"{demand.rps:f}/s x {demand.output_tokens:f} output tokens"
    formula = f"{asked} / {demand.tokens_per_second:f} tokens per second of an instance, rounded up"
    lines.append(Line("instances_by_tokens", count, formula))
    return count


def _warm(demand: Demand, lines: list[Line]) -> None:
    if demand.off_peak_rps is None:
        return
    load = Fraction(demand.off_peak_rps) * Fraction(demand.generation_s)
    low, high = ceil(WARM_LOW * load), ceil(WARM_HIGH * load)
    formula = f"30 % to 50 % of the off-peak hours' peak, {demand.off_peak_rps:f}/s x {demand.generation_s:f} s = {_short(load)} streams"
    lines.append(Line("warm_streams", {"low": low, "high": high}, formula))
    each = demand.streams_per_instance
    if each is not None:
        instances = {"low": ceil(low / each), "high": ceil(high / each)}
        lines.append(Line("warm_instances", instances, f"the same / {each} streams per instance, rounded up"))


def _cost(demand: Demand, instances: int | None, lines: list[Line]) -> None:
    price = demand.price_per_hour
    if price is None:
        return
    if demand.tokens_per_second is not None:
        value = price / 3600 / demand.tokens_per_second * 10_000
        formula = f"{price:f} per hour / 3600 / {demand.tokens_per_second:f} tokens per second x 10,000, at full use"
        lines.append(Line("cost_per_10000_tokens", float(value), formula))
    if instances is not None:
        formula = f"{instances} instances x {price:f} per hour x {HOURS_A_MONTH} hours"
        lines.append(Line("cost_per_month", float(instances * price * HOURS_A_MONTH), formula))


def _waits(demand: Demand, streams: int, load: Fraction, lines: list[Line]) -> None:
    lanes = demand.lanes or {"all": float(demand.rps)}
    rates, time_s = list(lanes.values()), float(demand.generation_s)
    rps = sum(rates)
    lines.append(Line("load", rps * time_s / streams, f"{rps:g}/s x {time_s:g} s / {streams} streams"))
    lines.append(Line("waiting_ratio", erlang_c(streams, rps * time_s), f"Erlang C: who finds all {streams} streams taken"))
    means = dict(zip(lanes, lane_waits_s(streams, rates, time_s), strict=True))
    waits = {name: {"mean": _known(mean), "p95": None} for name, mean in means.items()}
    # Above the first lane nobody stands: those of it who wait do so exponentially, at the rate its own arrivals leave.
    first = next(iter(lanes))
    waits[first]["p95"] = _known(_first_p95_s(streams, rates[0], rps, time_s))
    how = "Cobham, lanes in strict order, exponential times" if len(lanes) > 1 else "C / (c / S - lambda), exponential times"
    lines.append(Line("queue_wait_s", waits, how))


def _first_p95_s(streams: int, own_rps: float, rps: float, time_s: float) -> float:
    if own_rps == rps:
        return wait_quantile_s(streams, rps, time_s, 0.95)
    waits, spare_rps = erlang_c(streams, rps * time_s), streams / time_s - own_rps
    return inf if spare_rps <= 0 else max(0.0, log(waits / 0.05) / spare_rps) if waits else 0.0


def _known(seconds: float) -> float | None:
    """None where the queue grows without end."""
    return None if isinf(seconds) else seconds


def _short(load: Fraction) -> str:
    return f"{float(load):g}"
