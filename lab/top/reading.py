"""What does a running Fairlane say of itself, and how fast does it go? Its state, and what its counters did between two looks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

import aiohttp

from lab.demo.metrics import Metrics, parse

WITHIN = aiohttp.ClientTimeout(total=5.0)
ANSWERED = "ok"
NOT_REFUSED = frozenset({"ok", "client_gone", "cancelled"})
_READ = ("fairlane_requests_total{", "fairlane_ttft_seconds_bucket{", "fairlane_tokens_total{")


class Unreachable(Exception):
    """Nobody answers there, or somebody else does. The message says what to do."""


@dataclass(frozen=True)
class Look:
    """Everything at one instant of the process's own clock."""

    state: Mapping[str, Any]
    metrics: Metrics

    @property
    def uptime_s(self) -> float:
        return float(self.state["uptime_s"])


@dataclass(frozen=True)
class LaneRates:
    """One lane of one pool, between two looks. None: not known, or nothing happened."""

    answered_rps: float | None = None
    refused_rps: float | None = None
    ttft_p95_s: float | None = None


async def take(session: aiohttp.ClientSession, url: str) -> Look:
    """One look. Raises Unreachable."""
    try:
        state_text, metrics_text = await asyncio.gather(_text(session, f"{url}/debug/state"), _text(session, f"{url}/metrics"))
        state = json.loads(state_text)
        if not isinstance(state, dict) or "pools" not in state:
            raise ValueError
    except (aiohttp.ClientError, TimeoutError, OSError):
        raise Unreachable(f"nobody answers at {url}; --url names the admin port (server.admin of the file) of a running Fairlane") from None
    except ValueError:
        raise Unreachable(f"what answers at {url} is no admin port of Fairlane; --url names it (server.admin of the file)") from None
    return Look(state, parse("".join(f"{line}\n" for line in metrics_text.splitlines() if line.startswith(_READ))))


async def _text(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(url, timeout=WITHIN) as answer:
        if answer.status != 200:
            raise ValueError(f"status {answer.status}")
        return await answer.text()


def rates(before: Look | None, after: Look, pool: str, lane: str) -> LaneRates:
    """What this lane did since `before`. A restart in between is no rate at all."""
    if before is None or after.uptime_s <= before.uptime_s:
        return LaneRates()
    passed_s = after.uptime_s - before.uptime_s
    answered = refused = 0.0
    for labels, value in after.metrics.series("fairlane_requests_total", pool=pool, lane=lane):
        risen = value - before.metrics.sum("fairlane_requests_total", **labels)
        if labels["outcome"] == ANSWERED:
            answered += risen
        elif labels["outcome"] not in NOT_REFUSED:
            refused += risen
    return LaneRates(answered / passed_s, refused / passed_s, _ttft_p95_s(before, after, pool, lane))


def _ttft_p95_s(before: Look, after: Look, pool: str, lane: str) -> float | None:
    """As Prometheus interpolates it between the boundaries."""
    name = "fairlane_ttft_seconds_bucket"
    buckets = [
        (inf if labels["le"] == "+Inf" else float(labels["le"]), value - before.metrics.sum(name, **labels))
        for labels, value in after.metrics.series(name, pool=pool, lane=lane)
    ]
    buckets.sort()
    wanted = 0.95 * (buckets[-1][1] if buckets else 0.0)
    if wanted <= 0:
        return None
    edge_before = total_before = 0.0
    for edge, total in buckets:
        if total >= wanted:
            share = (wanted - total_before) / (total - total_before)
            return edge_before if edge == inf else edge_before + (edge - edge_before) * share
        edge_before, total_before = edge, total
    return None


def document(before: Look | None, after: Look) -> dict[str, Any]:
    """The state with the rates in it: what `--json` prints."""
    shown: dict[str, Any] = json.loads(json.dumps(after.state))
    for pool, seen in shown["pools"].items():
        for lane, said in seen["lanes"].items():
            said |= {key: None if value is None else round(value, 4) for key, value in vars(rates(before, after, pool, lane)).items()}
    return shown
