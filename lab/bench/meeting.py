"""Does the target serve us, which model, and how does it count? Asked before anything is measured."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec

from lab.bench.call import Call
from lab.bench.demand import Lane
from lab.bench.prompts import Calibration, Prompts, calibrated
from lab.bench.target import Floor, Refused, Target, Unreachable

TRIES = 5
PAUSE_S = 1.0
FEW_WORDS, MANY_WORDS = 20, 220
ASK_TIMEOUT_S = 120.0


async def meet(target: Target, prompts: Prompts, lanes: tuple[Lane, ...] = ()) -> Calibration:
    """Finds the model and calibrates prompts; every lane's key is tried. Raises Unreachable or Refused."""
    await target.resolve()
    if not target.model:
        target.model = await _first_model(target, lanes)
    for lane in lanes:
        await _ask(target, prompts.text(FEW_WORDS), lane.key, f", lane {lane.name}")
    key = lanes[0].key if lanes else target.key
    few = await _ask(target, prompts.text(FEW_WORDS), key)
    many = await _ask(target, prompts.text(MANY_WORDS), key)
    if not (few.counted_by_usage and many.counted_by_usage):
        return Calibration()
    return calibrated((FEW_WORDS, few.prompt_tokens), (MANY_WORDS, many.prompt_tokens))


async def floor_of(target: Target, connections: int) -> list[Floor]:
    """So many bare connections, one after another."""
    return [await target.floor() for _ in range(connections)]


async def _first_model(target: Target, lanes: tuple[Lane, ...]) -> str:
    target.key = target.key or (lanes[0].key if lanes else "")
    status, body = await target.get("/models")
    try:
        listed: Any = msgspec.json.decode(body)
        return str(listed["data"][0]["id"])
    except (msgspec.DecodeError, LookupError, TypeError):
        said = body[:200].decode("utf-8", "replace").strip()
        raise Refused(f"{target.url}: GET /v1/models answered {status} and names no model ({said}); name one with --model") from None


async def _ask(target: Target, text: str, key: str, which: str = "") -> Call:
    """One short request that must succeed. Waits a little for a target that is busy or starting."""
    for attempt in range(TRIES):
        if attempt:
            await asyncio.sleep(PAUSE_S)
        call = Call("", 0, 1, True, time.monotonic(), form=target.form)
        await target.perform(call, target.request(target.form, text, 1, key=key), ASK_TIMEOUT_S)
        if call.ok:
            return call
        if call.outcome in ("http_400", "http_422") and target.ignore_eos:
            target.ignore_eos = False  # not every API knows the field; answers may then be shorter than asked
            continue
        if not call.refused and call.outcome not in ("connect", "reset", "timeout", "http_503", "http_502", "http_500", "http_504"):
            break
    said = f"{target.url}{which}: {call.outcome} {call.detail}".rstrip()
    if call.outcome in ("connect", "tls", "reset", "timeout", "protocol"):
        raise Unreachable(said if call.outcome in ("connect", "tls") else f"{said}; is it running?")
    remedy = "; is the key right? (--key)" if call.outcome in ("http_401", "http_403", "unauthenticated", "forbidden") else ""
    raise Refused(f"{said}{remedy}")
