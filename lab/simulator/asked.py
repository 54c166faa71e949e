"""What was asked for on the command line? The options of `fairlane simulate`, read and checked, before any file is opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from lab.engine.model import Latency
from lab.simulator.draws import Spread, number, options, time_spread, token_spread
from lab.simulator.workload import Sizes
from proxy.settings.values import duration, share

T = TypeVar("T")
REQUESTS = 100_000  # where nothing says how long
GENERATION_TIME = "exponential:8s"
WARM_UP = "10%"  # of the run: a system that begins empty looks better than it is (policies.md 13)
ENGINE_KEYS = ("slots", "ttft", "tpot", "prefill_rate", "load_factor", "prefill_slowdown")
ENGINE_PROMPT, ENGINE_OUTPUT = "512", "lognormal:256,cv=1"


class UsageError(ValueError):
    """An option is wrong; the message names it."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The options as they were typed."""

    arrivals: str | None = None
    trace: Path | None = None
    generation_time: str | None = None
    backend_ttft: str | None = None
    prompt_tokens: str | None = None
    output_tokens: str | None = None
    patience: str | None = None
    events: Path | None = None
    jobs: int = 0
    deadline: str | None = None
    replicas: int = 1
    requests: int | None = None
    duration: str | None = None
    warm_up: str | None = None
    seed: int = 0
    runs: int = 1

    def check(self) -> None:
        """UsageError: options that are wrong together."""
        if self.replicas != 1:
            raise UsageError("--replicas: several replicas are not available yet; leave it out to simulate one")
        if self.arrivals and self.trace:
            raise UsageError("--trace: cannot stand beside --arrivals; keep one of them")
        if not (self.arrivals or self.trace or self.jobs):
            raise UsageError("--arrivals: say who calls, such as --arrivals fast=3,slow=6, or --trace FILE, or --jobs N")
        if self.deadline and not self.jobs:
            raise UsageError("--deadline: is that of a batch; say how many --jobs it has")
        if self.runs < 1:
            raise UsageError("--runs: must be at least 1")

    def sizes(self) -> tuple[Sizes, Latency | None, int | None]:
        """How large requests are; the engine's model and its slots, if that says how long they take."""
        text = self.generation_time or GENERATION_TIME
        name = text.partition(":")[0]
        prompt, output = self.prompt_tokens, self.output_tokens
        if name != "engine":
            spread = _read("--generation-time", time_spread, text)
            return Sizes(spread, _tokens("--prompt-tokens", prompt), _tokens("--output-tokens", output)), None, None
        latency, slots = _read("--generation-time", engine, text)
        sizes = Sizes(None, _tokens("--prompt-tokens", prompt or ENGINE_PROMPT), _tokens("--output-tokens", output or ENGINE_OUTPUT))
        return sizes, latency, slots

    def leaving(self) -> tuple[float | None, bool]:
        """How long is a caller's patience, and does the server see it leave?"""
        if self.patience is None:
            return None, False
        name, _, how = self.patience.partition(",")
        if how not in ("", "seen", "unseen"):
            raise UsageError("--patience: must be a duration, such as 5s, or 5s,seen where the server sees callers leave")
        return _read("--patience", _seconds, name), how == "seen"

    def length(self) -> tuple[int | None, float | None]:
        """How many requests, or seconds, at most?"""
        duration_s = None if self.duration is None else _read("--duration", _seconds, self.duration)
        if self.requests is None and duration_s is None and not self.trace and not self.jobs:
            return REQUESTS, None
        return self.requests, duration_s

    def deadline_s(self) -> float | None:
        """When must the batch be done?"""
        return None if self.deadline is None else _read("--deadline", _seconds, self.deadline)

    def backend_ttft_spread(self) -> Spread | None:
        """Grant to first token, where the model does not say."""
        return None if self.backend_ttft is None else _read("--backend-ttft", time_spread, self.backend_ttft)

    def warming(self) -> tuple[float, float]:
        """What is not counted: a share of the run, or seconds. A run with events, a trace or a batch is counted whole, unless asked."""
        text = self.warm_up or ("0%" if self.events or self.trace or self.jobs else WARM_UP)
        if text.endswith("%"):
            return float(_read("--warm-up", share, text)), 0.0
        return 0.0, _read("--warm-up", _seconds, text)


def engine(text: str) -> tuple[Latency, int | None]:
    """Reads `engine` or `engine:slots=8,ttft=80ms,tpot=20ms,...`: the model of `fairlane engine`; slots default to each backend's cap."""
    _, given = options(text, ENGINE_KEYS)
    if "" in given:
        raise ValueError(f'"{given[""]}" must be KEY=VALUE, such as ttft=80ms')
    usual = Latency()
    slots = int(number(given["slots"])) if "slots" in given else None
    if slots is not None and slots < 1:
        raise ValueError("slots must be at least 1")
    latency = Latency(
        slots=slots or usual.slots,
        ttft_s=_seconds(given["ttft"]) if "ttft" in given else usual.ttft_s,
        tpot_s=_seconds(given["tpot"]) if "tpot" in given else usual.tpot_s,
        prefill_rate=max(1.0, number(given["prefill_rate"])) if "prefill_rate" in given else usual.prefill_rate,
        load_factor=max(1.0, number(given["load_factor"])) if "load_factor" in given else usual.load_factor,
        prefill_slowdown=number(given["prefill_slowdown"]) if "prefill_slowdown" in given else usual.prefill_slowdown,
    )
    return latency, slots


def _seconds(text: str) -> float:
    return float(duration(text))


def _tokens(option: str, text: str | None) -> Spread | None:
    return None if text is None else _read(option, token_spread, text)


def _read(option: str, read: Callable[[str], T], text: str) -> T:
    try:
        return read(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None
