"""What was asked on the command line? Each spelling becomes a value, or a ValueError that names the option and the remedy."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from lab.bench.demand import TOKENS_MAX, Arrivals, Asked, Demand, Lane, Lengths, Load, loads_of
from lab.bench.drift import Condition, condition, steps_of
from lab.bench.figures import Price, Slo
from lab.bench.forms import BY_PATH, CHAT, FORMS, Form
from lab.bench.ranking import WEIGHTS
from lab.bench.target import TRUST, Trust
from proxy.settings.pools import PROFILES as FILE_PROFILES
from proxy.settings.values import duration

T = TypeVar("T")
LADDER = (1, 4, 8, 16, 32, 64)
NAMED_URL = re.compile(r"(?:([A-Za-z0-9][A-Za-z0-9._-]{0,62})=)?(https?://.+)")
PROFILES = {name: Slo(float(duration(ttft)), float(duration(tpot))) for name, (ttft, tpot) in FILE_PROFILES.items()}


@dataclass(frozen=True)
class Platform:
    """One target and what belongs to it."""

    name: str
    url: str
    key: str = ""
    model: str = ""
    price: Price | None = None


@dataclass(frozen=True)
class Options:
    """A run, complete. `find_max` replaces the ladder."""

    platforms: tuple[Platform, ...]
    demand: Demand
    loads: tuple[Load, ...]
    rounds: int
    duration_s: float
    slo: Slo | None = None
    find_max: bool = False
    weights: dict[str, float] = field(default_factory=lambda: WEIGHTS["realtime"])
    weights_name: str = "realtime"
    floor: int = 20
    timeout_s: float = 120.0
    trust: Trust = TRUST
    left_out: dict[str, int] = field(default_factory=dict)  # of a trace, by endpoint
    baseline: dict[str, Any] | None = None
    conditions: tuple[Condition, ...] = ()
    html: Path | None = None
    json: bool = False


def seconds(option: str, text: str) -> float:
    """A duration above 0."""
    try:
        value = float(duration(text))
    except ValueError as problem:
        raise ValueError(f"{option}: {text!r} {problem}") from None
    if value <= 0:
        raise ValueError(f"{option}: {text!r} must be above 0")
    return value


def lengths(option: str, text: str) -> Lengths:
    """`256`, `128,2048` (alike often), `128:0.8,2048:0.2` (by weight), or `lognormal:200,cv=1`."""
    kind, _, rest = text.partition(":")
    if kind == "lognormal":
        mean, _, cv = rest.partition(",cv=")
        return Lengths(mean=_number(option, mean, 1, TOKENS_MAX), cv=_number(option, cv or "1", 0, 10), spelt=text)
    choices = []
    for part in text.split(","):
        tokens, _, weight = part.partition(":")
        count = _number(option, tokens, 1, TOKENS_MAX)
        if count != int(count):
            raise ValueError(f"{option}: {tokens!r} must be a whole number of tokens")
        choices.append((int(count), _number(option, weight or "1", 0, 1e9)))
    if not sum(weight for _, weight in choices):
        raise ValueError(f"{option}: the weights in {text!r} add up to nothing")
    return Lengths(choices=tuple(choices), spelt=text)


def arrivals(text: str) -> Arrivals:
    """`poisson`, `gamma:cv=2` or `constant`."""
    if text == "poisson":
        return Arrivals(1.0, text)
    if text == "constant":
        return Arrivals(0.0, text)
    if text.startswith("gamma:cv="):
        cv = _number("--arrivals", text.removeprefix("gamma:cv="), 0, 20)
        if cv > 0:
            return Arrivals(cv, text)
    raise ValueError(f"--arrivals: {text!r} must be poisson, gamma:cv=2 or constant")


def lanes(texts: Sequence[str], with_shares: bool = True) -> tuple[Lane, ...]:
    """Each `NAME=KEY:SHARE`, with any number as share; they are scaled to 1. A trace brings its own: `NAME=KEY`."""
    found = []
    for text in texts:
        name, equals, rest = text.partition("=")
        key, _, share = rest.rpartition(":") if with_shares or ":" in rest else (rest, "", "1")
        if not name or not equals or (with_shares and ":" not in rest):
            raise ValueError(f"--lane: one of them must be {'NAME=KEY:SHARE, such as fast=sk-1:0.2' if with_shares else 'NAME=KEY'}")
        found.append(Lane(name, key, _number("--lane", share, 0, 1e9)))
    total = sum(lane.share for lane in found)
    if found and not total:
        raise ValueError("--lane: the shares add up to nothing")
    if len({lane.name for lane in found}) < len(found):
        raise ValueError("--lane: each needs a name of its own")
    return tuple(replace(lane, share=lane.share / total) for lane in found)


def slo(text: str) -> Slo:
    """`ttft=1s,tpot=150ms`, either of them alone, or a profile of the file: voice, chat, code, writing."""
    if text in PROFILES:
        return PROFILES[text]
    targets: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name not in ("ttft", "tpot") or name in targets:
            raise ValueError(f"--slo: {text!r} must be such as ttft=1s,tpot=150ms, or one of {', '.join(PROFILES)}")
        targets[name] = seconds("--slo", value)
    return Slo(targets.get("ttft"), targets.get("tpot"))


def weights(text: str) -> dict[str, float]:
    """`realtime`, `batch`, or `latency=0.5,throughput=0.3,cost=0.2`."""
    if text in WEIGHTS:
        return WEIGHTS[text]
    found = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name not in ("latency", "throughput", "cost"):
            raise ValueError(f"--weights: {text!r} must be realtime, batch, or latency=0.5,throughput=0.3,cost=0.2")
        found[name] = _number("--weights", value, 0, 1e9)
    return found


def numbers(option: str, text: str, low: float = 1e-6) -> tuple[float, ...]:
    """`1,2,4`: a ladder."""
    return tuple(_number(option, part, low, 1e6) for part in text.split(","))


def platforms(
    urls: Sequence[str], keys: Sequence[str], models: Sequence[str], per_hour: Sequence[str], per_million: Sequence[str]
) -> tuple[Platform, ...]:
    """Each URL with what is its own. Options are given once for all, once for each URL in order, or as NAME=VALUE."""
    found = []
    for url in urls:
        match = NAMED_URL.fullmatch(url)
        if match is None:
            raise ValueError(f"--url: {url!r} must be such as http://127.0.0.1:8000, or NAME=http://127.0.0.1:8000")
        found.append(Platform(match[1] or re.sub(r"^https?://|/.*$", "", match[2]), match[2]))
    names = [platform.name for platform in found]
    if len(set(names)) < len(names):
        raise ValueError("--url: two platforms have one name; give them names: --url a=http://... --url b=http://...")
    keyed = _by_name("--key", keys, names, lambda text: text)
    named = _by_name("--model", models, names, lambda text: text)
    hourly = _by_name("--price-per-hour", per_hour, names, _per_hour)
    by_million = _by_name("--price-per-million", per_million, names, _per_million)
    both = set(hourly) & set(by_million)
    if both:
        raise ValueError(f"{', '.join(sorted(both))}: has --price-per-hour and --price-per-million; say which of them by NAME=PRICE")
    return tuple(
        replace(p, key=keyed.get(p.name, ""), model=named.get(p.name, ""), price=hourly.get(p.name) or by_million.get(p.name))
        for p in found
    )


def trace(path: Path, by_name: Sequence[Lane], default: Lengths, form: Form = CHAT) -> tuple[tuple[Asked, ...], dict[str, int]]:
    """The arrivals that `server.trace` recorded, in order of time; and how many were left out, by endpoint, which we do not speak.

    A line without a `path` asks `form`. Raises ValueError with the line's number.
    """
    known = {lane.name: lane for lane in by_name}
    found = []
    left_out: dict[str, int] = {}
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        raise ValueError(f"--trace: cannot read {path}: {getattr(problem, 'strerror', None) or problem}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            asks = BY_PATH.get(entry["path"]) if "path" in entry else form
            if asks is None:
                left_out[entry["path"]] = left_out.get(entry["path"], 0) + 1
                continue
            at_s, lane = float(entry["t"] if "t" in entry else entry["at"]), entry.get("lane")
            streamed = bool(entry.get("stream", entry.get("streamed", True)))
            output = int(
                entry.get("output_tokens") or entry.get("max_tokens") or (default.choices[0][0] if default.choices else default.mean)
            )
            prompt = int(entry.get("input_tokens") or entry["prompt_tokens"])
            found.append(Asked(at_s, known.get(lane), max(1, prompt), max(1, output), streamed, asks))
        except (ValueError, TypeError, KeyError, AttributeError) as problem:
            raise ValueError(f"{path}:{number}: is not an arrival ({problem!r}); it needs t (seconds) and prompt_tokens") from None
        if known and lane not in known:
            raise ValueError(f"{path}:{number}: lane {lane!r} has no key; add --lane {lane}=KEY")
    if not found:
        others = f" at {', '.join(FORMS)}; others: {', '.join(left_out)}" if left_out else ""
        raise ValueError(f"--trace: {path} holds no arrival{others}")
    found.sort(key=lambda asked: asked.at_s or 0.0)
    first_s = found[0].at_s or 0.0
    return tuple(replace(asked, at_s=(asked.at_s or 0.0) - first_s) for asked in found), left_out


def baseline(path: Path) -> dict[str, Any]:
    """An earlier report. Raises ValueError."""
    try:
        report: dict[str, Any] = json.loads(path.read_text())
        list(steps_of(report))
    except OSError as problem:
        raise ValueError(f"--baseline: cannot read {path}: {problem.strerror}") from None
    except ValueError as problem:
        raise ValueError(f"--baseline: {path}: {problem}") from None
    return report


def conditions(texts: Sequence[str], earlier: dict[str, Any] | None) -> tuple[Condition, ...]:
    """What fails the run. Raises ValueError where a comparison has nothing to compare with."""
    try:
        found = tuple(condition(text) for text in texts)
    except ValueError as problem:
        raise ValueError(f"--fail-if: {problem}") from None
    if earlier is None and any(wanted.relative for wanted in found):
        raise ValueError("--fail-if: 1.2x of what? Give the earlier report: --baseline FILE")
    if earlier is not None and not found:
        raise ValueError("--baseline: say what fails the run, such as --fail-if 'ttft.p95 > 1.2x'")
    return found


def loads(rate: str | None, concurrency: str | None) -> tuple[Load, ...]:
    """The ladder; the usual one where nothing is said."""
    rates = numbers("--rate", rate) if rate else ()
    streams = numbers("--concurrency", concurrency, 1) if concurrency else ()
    if any(count != int(count) for count in streams):
        raise ValueError(f"--concurrency: {concurrency!r} must be whole numbers, such as 1,4,8,16")
    if not rates and not streams:
        streams = LADDER
    return loads_of(rates, [int(count) for count in streams])


def _number(option: str, text: str, low: float, high: float) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{option}: {text!r} must be a number") from None
    if not low <= value <= high:
        raise ValueError(f"{option}: {text!r} must be from {low:g} to {high:g}")
    return value


def _per_hour(text: str) -> Price:
    return Price(per_hour=_number("--price-per-hour", text, 0, 1e6))


def _per_million(text: str) -> Price:
    parts = text.split(",")
    if len(parts) != 2:
        raise ValueError(f"--price-per-million: {text!r} must be INPUT,OUTPUT, such as 0.5,1.5")
    return Price(per_million=(_number("--price-per-million", parts[0], 0, 1e6), _number("--price-per-million", parts[1], 0, 1e6)))


def _by_name(option: str, values: Sequence[str], names: Sequence[str], read: Callable[[str], T]) -> dict[str, T]:
    split = [value.partition("=") for value in values]
    if values and all(equals and name in names for name, equals, _ in split):
        return {name: read(value) for name, _, value in split}
    if len(values) == 1:
        return {name: read(values[0]) for name in names}
    if values and len(values) != len(names):
        raise ValueError(f"{option}: give it once, once for each --url in their order, or as NAME=VALUE ({', '.join(names)})")
    return {name: read(value) for name, value in zip(names, values, strict=False)}
