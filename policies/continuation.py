"""May another backend say the rest of a stream that broke?

A pool asks for it, and it is done once: the cut is the request's first failure, the model is known by name, so that the other backend has
the same, and the request asks for plain text. What else forbids it shows only in the body and in what was said (`proxy.continuation`):
several answers, tools, a grammar, logprobs, reasoning. A ceiling on tokens shrinks by what was said; where none is left, there is no rest.

Continuing is no retry: nothing is generated twice, and nothing is said twice. It costs the prompt once more.
"""

from __future__ import annotations

from policies.model import Ending, Outcome, Request, Verdict

CUTS = frozenset({Outcome.TRUNCATED, Outcome.IDLE_TIMEOUT})  # the backend's doing, with the stream under way
WAIT_S = 10.0  # for a slot: a caller who reads sees silence meanwhile, and SDKs and proxies give up on it after 30 s to 60 s


def may_continue(ending: Ending, request: Request, model: str | None, before: Ending | None, *, attempts: int, allowed: int) -> bool:
    """May it be continued elsewhere? `before`: how an attempt before this one ended; `allowed`: attempts in all."""
    if ending.verdict is not Verdict.FAILED or ending.outcome not in CUTS:
        return False
    plain = request.streamed and not (request.tools or request.json or request.images)
    return plain and model is not None and before is None and attempts < allowed


def tokens_left(limit: int | None, said: int) -> int | None:
    """How many tokens may the rest have? None: no ceiling; 0: none is left."""
    return None if limit is None else max(0, limit - said)
