"""Which label values can occur? Closed sets, so that every series exists from the start and none comes from a caller."""

from __future__ import annotations

from collections.abc import Mapping

from policies.model import Outcome

NO_STATUS = 0  # nothing was sent

# Statuses that Fairlane answers itself (contract, section 5) keep their number; a backend's others become their hundred.
OWN_STATUSES = frozenset({NO_STATUS, 200, 400, 401, 403, 404, 405, 408, 413, 414, 415, 417, 429, 431, 500, 501, 502, 503, 504})

# How requests end that never reached a pool, with the statuses each is answered with.
WITHOUT_POOL: Mapping[Outcome, tuple[int, ...]] = {
    Outcome.OK: (200,),
    Outcome.MALFORMED: (400,),
    Outcome.UNAUTHENTICATED: (401,),
    Outcome.FORBIDDEN: (403,),
    Outcome.NOT_FOUND: (404,),
    Outcome.METHOD_NOT_ALLOWED: (405,),
    Outcome.UNSUPPORTED: (415, 417, 501),
    Outcome.CLIENT_TIMEOUT: (408,),
    Outcome.TOO_LARGE: (413, 414, 431),
    Outcome.RATE_LIMITED: (429,),
    Outcome.QUOTA_EXHAUSTED: (429,),
    Outcome.DRAINING: (503,),
    Outcome.CLIENT_GONE: (NO_STATUS,),
    Outcome.INTERNAL: (500,),
}

# How requests end in a pool. Past the head of an answer the status stays what the backend sent, whatever happens then.
IN_POOL: Mapping[Outcome, tuple[int, ...]] = {
    Outcome.OK: (200,),
    Outcome.NOT_FOUND: (404,),
    Outcome.QUEUE_FULL: (429,),
    Outcome.QUEUE_TIMEOUT: (429,),
    Outcome.DISPLACED: (429,),
    Outcome.NO_BACKEND: (503,),
    Outcome.DRAINING: (503, 200),
    Outcome.UPSTREAM_CONNECT: (502,),
    Outcome.UPSTREAM_RESET: (502,),
    Outcome.UPSTREAM_PROTOCOL: (502,),
    Outcome.UPSTREAM_AUTH: (502,),
    Outcome.UPSTREAM_STATUS: (*sorted(status for status in OWN_STATUSES if status >= 400), 499, 599),
    Outcome.FIRST_TOKEN_TIMEOUT: (504,),
    Outcome.TOTAL_TIMEOUT: (504, 200),
    Outcome.TRUNCATED: (200,),
    Outcome.IDLE_TIMEOUT: (200,),
    Outcome.WRITE_TIMEOUT: (200,),
    Outcome.CLIENT_GONE: (NO_STATUS, 200),
    Outcome.CANCELLED: (503, 200),
    Outcome.INTERNAL: (500, 200),
}

# How one attempt can end.
ATTEMPT = (
    Outcome.OK,
    Outcome.UPSTREAM_CONNECT,
    Outcome.UPSTREAM_RESET,
    Outcome.UPSTREAM_PROTOCOL,
    Outcome.UPSTREAM_AUTH,
    Outcome.UPSTREAM_STATUS,
    Outcome.FIRST_TOKEN_TIMEOUT,
    Outcome.TOTAL_TIMEOUT,
    Outcome.TRUNCATED,
    Outcome.IDLE_TIMEOUT,
    Outcome.WRITE_TIMEOUT,
    Outcome.CLIENT_GONE,
    Outcome.CANCELLED,
    Outcome.DRAINING,
    Outcome.INTERNAL,
)

DISPATCHED = "dispatched"
WAIT_ENDINGS = (DISPATCHED, "queue_timeout", "displaced", "client_gone", "cancelled", "draining")

RETRY_OK = "ok"
RETRY_FAILED = "failed"
RETRY_DENIED = "denied"  # the attempts or the wait ran out, or no other backend was there
RETRY_RESULTS = (RETRY_OK, RETRY_FAILED, RETRY_DENIED)

# What became of a second attempt beside the first: it spoke first, the first did, neither did, the caller left; or it was due and not sent.
HEDGE_RESULTS = HEDGE_WON, HEDGE_LOST, HEDGE_FAILED, HEDGE_CANCELLED, HEDGE_DENIED = ("won", "lost", "failed", "cancelled", "denied")

# What became of the rest of a stream that broke: said by another backend, broken again, the caller left; or no backend was there in time.
CONTINUATION_RESULTS = CONTINUATION_OK, CONTINUATION_FAILED, CONTINUATION_CANCELLED, CONTINUATION_DENIED = (
    "ok",
    "failed",
    "cancelled",
    "denied",
)

# Prompt length in tokens, by its upper edge; the last class has none.
PROMPT_EDGES_TOKENS = (512, 2048, 8192)
PROMPT_CLASSES = ("1-512", "513-2048", "2049-8192", "8193+")

# Which promise a request missed: first token late, tokens slow, or no whole answer at all.
SLO_TTFT = "ttft"
SLO_TPOT = "tpot"
SLO_UNANSWERED = "unanswered"
SLO_MISSES = (SLO_TTFT, SLO_TPOT, SLO_UNANSWERED)

# What a caller was waiting for when it left; `intake`: it had not sent its request to the end.
DISCONNECT_PHASES = ("intake", "queued", "first_token", "streaming", "unary")

# What an operator can pull, and must take back.
LEVERS = ("drain", "pin", "cap")

# Fairlane's own work: reading the request, choosing its backend, handing it over and setting up the relay.
OVERHEAD_PHASES = ("intake", "dispatch", "relay")

# Why another platform serves a pool: what became of the one before, or that it is back.
RECOVERED = "recovered"
OTHER = "other"
FAILOVER_REASONS = ("ejected", "drained", "refused", "slow", "reconfigured", "pinned", "unpinned", RECOVERED, OTHER)

SMOKE_RESULTS = SMOKE_PASSED, SMOKE_FAILED = ("ok", "failed")


def code(status: int) -> str:
    """The `code` label of a status: itself where Fairlane answers with it, else its hundred."""
    return str(status) if status in OWN_STATUSES else f"{status // 100}xx"
