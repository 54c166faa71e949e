"""`fairlane explain`: what would happen to this request? The file's own reception, routes and decisions, asked with nothing else there.

The order of the backends is the dispatcher's: the request is dispatched, that backend is drained, and it is asked again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from policies.continuation import may_continue
from policies.dispatcher import Dispatcher
from policies.hedging import may_hedge
from policies.model import Ending, Lease, Outcome, Request, Ticket, Verdict
from proxy import translation, wiring
from proxy.continuation import forbids
from proxy.endpoints import Kind, classify
from proxy.errors import response
from proxy.identity import Identity
from proxy.intake import Admitted, Reading, Refused
from proxy.settings.loader import load
from proxy.settings.pools import Pool
from proxy.settings.problems import SettingsError, did_you_mean
from proxy.settings.root import Settings


@dataclass(frozen=True, kw_only=True)
class Headers:
    """What the request's head would say."""

    path: str = "/v1/chat/completions"
    lane: str | None = None
    traffic: str | None = None
    task: str | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """What would happen. `refused`: the outcome, if it goes nowhere; `status` what the caller would get then."""

    key: str
    lane: str
    traffic: str
    model: str | None
    prompt_tokens: int
    max_tokens: int | None
    refused: str | None = None
    status: int | None = None
    pool: str | None = None
    rule: int | None = None  # index in `routes`
    why: str | None = None
    backends: tuple[str, ...] = ()  # in the order in which they would be asked
    platforms: tuple[str, ...] = ()
    asked_model: str | None = None  # of the platform; None: as the caller wrote it
    places: int | None = None
    max_wait_s: float | None = None
    attempts: int | None = None
    first_token_s: float | None = None  # a streamed answer's, per attempt
    total_s: float | None = None
    hedged: str | None = None  # when a second attempt would run beside the first; None: never
    continued: bool = False  # another backend would say the rest of a stream that breaks
    not_continued: str | None = None  # why not, where the pool asks for it


def run(file: Path, request: Path, key: str, headers: Headers, environ: Mapping[str, str], as_json: bool) -> int:
    """Prints the explanation. 0: done; 1: the file is wrong; 2: no such key, lane or request."""
    try:
        settings = load(file, environ).settings
        body = request.read_bytes()
        found = explain(settings, body, key, headers)
    except SettingsError as error:
        for problem in error.problems:
            print(problem, file=sys.stderr)
        return 1
    except (OSError, LookupError) as error:
        print(f"explain: {error.args[0] if isinstance(error, LookupError) else error}", file=sys.stderr)
        return 2
    print(json.dumps(asdict(found)) if as_json else told(found))
    return 0


def explain(settings: Settings, body: bytes, key: str, headers: Headers) -> Explanation:
    """The explanation. LookupError: no such key, lane or path."""
    lanes = list(settings.lanes)
    identity = _identity(settings, key)
    if headers.lane is not None and headers.lane not in lanes:
        raise LookupError(f"--lane: names no lane of this file{did_you_mean(headers.lane, lanes)}")
    endpoint = classify(headers.path.encode())
    if endpoint is None or endpoint.kind is Kind.CATALOGUE:
        raise LookupError("--path: must be one that is routed, such as /v1/chat/completions")
    wished = lanes.index(headers.lane) if headers.lane is not None else 0
    admitted = Admitted(
        endpoint, endpoint.api, identity, "explained", max(identity.lane, wished), headers.traffic or identity.traffic, headers.task,
        b"application/json", 0, None, "",
    )  # fmt: skip
    router = translation.router(settings)
    reading = wiring.reception(settings, router, wiring.token_estimate()).read(body, admitted, admitted.request_id)
    if isinstance(reading, Refused):
        status, _, _ = reading.response(admitted.request_id)
        return Explanation(
            identity.name, lanes[admitted.lane], admitted.traffic, None, 0, None, reading.outcome.value, status, why=reading.detail
        )
    request = reading.request
    seen = Explanation(identity.name, lanes[request.lane], request.traffic, request.model, request.prompt_tokens, request.max_tokens)
    choice = router.choose(request)
    if choice is None or not identity.may_use_pool(choice.pool):
        outcome = Outcome.NOT_FOUND if choice is None else Outcome.FORBIDDEN
        status, _, _ = response(outcome, endpoint.api, None, request.id)
        why = "no rule matches" if choice is None else f"rule {choice.rule_index} leads to pool {choice.pool}, which this key may not use"
        return _with(seen, refused=outcome.value, status=status, why=why)
    return _dispatched(settings, seen, reading, choice.pool, choice.rule_index, choice.why)


def _dispatched(settings: Settings, seen: Explanation, reading: Reading, pool: str, rule: int, why: str) -> Explanation:
    of_pool = settings.pools[pool]
    dispatcher = Dispatcher(translation.plan(settings), 0.0)
    order = _order(dispatcher, reading.request, pool, slotless=reading.endpoint.slotless)
    state = Dispatcher(translation.plan(settings), 0.0).snapshot(0.0).pools[pool]
    found = _with(
        seen,
        pool=pool,
        rule=rule,
        why=why,
        backends=tuple(lease.backend for lease in order),
        platforms=tuple(dict.fromkeys(lease.platform for lease in order)),
        asked_model=_model(settings, order, of_pool.model or reading.request.model),
        places=state.places,
        max_wait_s=state.lanes[seen.lane].max_wait_s,
        attempts=of_pool.retries.attempts,
        first_token_s=of_pool.timeouts.first_token_s,
        total_s=of_pool.timeouts.total_s,
        hedged=_hedged(of_pool, order, reading.request),
        **_continued(settings, of_pool, order, reading),
    )
    if order:
        return found
    status, _, _ = response(Outcome.NOT_FOUND, reading.endpoint.api, None, reading.request.id)
    return _with(found, refused=Outcome.NOT_FOUND.value, status=status, why=f"{why}; no platform of pool {pool} serves this model")


def _order(dispatcher: Dispatcher, request: Request, pool: str, *, slotless: bool) -> list[Lease]:
    over = Ending(Verdict.NEUTRAL, Outcome.OK)
    order: list[Lease] = []
    while True:
        ticket = Ticket(request, pool, 0.0, slotless=slotless)
        dispatcher.arrive(ticket, 0.0)
        lease = ticket.answer
        if not isinstance(lease, Lease):
            return order
        order.append(lease)
        dispatcher.give_back(lease, over, 0.0)
        dispatcher.drain(lease.backend, 0.0)


def _hedged(pool: Pool, order: list[Lease], request: Request) -> str | None:
    if pool.hedge is None or not order or not may_hedge(request, order[0], 1, pool.retries.attempts):
        return None
    percent, after_s = pool.hedge.after
    return f"p{percent} of the first tokens before it" if after_s is None else f"{after_s:g} s"


def _continued(settings: Settings, pool: Pool, order: list[Lease], reading: Reading) -> dict[str, Any]:
    """Would a stream that breaks be continued, as far as the file and the request say?"""
    if not pool.continues or not order:
        return {}
    cut = Ending(Verdict.FAILED, Outcome.TRUNCATED)
    request = reading.request
    able = [lease for lease in order[1:] if settings.platforms[lease.platform].continues != "none"]
    field = forbids(reading)
    why = None
    if not request.streamed:
        why = "it asks for no stream"
    elif field:
        why = "only chat completions are" if field == "path" else f"its field {field} may make the answer more than plain text"
    elif not may_continue(cut, request, pool.model or request.model, None, attempts=1, allowed=pool.retries.attempts):
        why = "it has images, or names no model"
    elif not able:
        why = "there is no other backend that continues"
    return {"continued": why is None, "not_continued": why}


def _model(settings: Settings, order: list[Lease], name: str | None) -> str | None:
    models = settings.platforms[order[0].platform].models if order else None
    return name if models is None or name is None else models.get(name, name)


def _identity(settings: Settings, key: str) -> Identity:
    known = wiring.identities_by_name(settings)
    if key not in known:
        raise LookupError(f"--key: names no key of this file{did_you_mean(key, known)}")
    return known[key]


def _with(found: Explanation, **more: Any) -> Explanation:
    return Explanation(**{**asdict(found), **more})


def told(found: Explanation) -> str:
    """The explanation in lines."""
    size = f"about {found.prompt_tokens} prompt tokens, " + (
        "no limit on the answer" if found.max_tokens is None else f"at most {found.max_tokens} more"
    )
    lines = [
        f"key       {found.key}",
        f"lane      {found.lane} ({found.traffic})",
        f"request   model {found.model or '(none)'}, {size}",
    ]
    if found.pool is not None:
        lines.append(f"pool      {found.pool}")
        lines.append(f"rule      routes[{found.rule}]: {found.why}")
    if found.refused is not None:
        reason = f": {found.why}" if found.pool is None and found.why else ""
        return "\n".join([*lines, f"refused   {found.status} {found.refused}{reason}"])
    lines.append(f"backends  {', '.join(found.backends)}   (platforms {', '.join(found.platforms)}; nothing else running)")
    lines.append(f"as model  {found.asked_model or '(none)'}")
    lines.append(f"waits     at most {found.max_wait_s:g} s, in one of {found.places} places; {found.attempts} attempts")
    lines.append(f"then      first token within {found.first_token_s:g} s of each attempt (streamed), all within {found.total_s:g} s")
    if found.hedged is not None:
        lines.append(f"late      after {found.hedged} it is asked of an idle backend as well")
    if found.continued:
        lines.append("broken    a stream that breaks is continued by another backend")
    elif found.not_continued is not None:
        lines.append(f"broken    a stream that breaks is not continued: {found.not_continued}")
    return "\n".join(lines)
