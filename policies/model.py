"""Which words do the decisions speak? The values that pass between the policies and their hosts.

Everything here is a frozen value, save `Ticket` and `Lease`, which are the two receipts a host holds: a ticket for one
request's passage, a lease for one slot. Durations end in `_s`, instants (seconds, monotonic) in `_at`, shares in `_ratio`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple


class Outcome(enum.StrEnum):
    """How a request, or one attempt of it, ended. Metric label, log field, simulator tally, key of the HTTP table."""

    OK = "ok"
    MALFORMED = "malformed"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    UNSUPPORTED = "unsupported"  # 415, 417, 501: well-formed, and nothing we do
    CLIENT_TIMEOUT = "client_timeout"
    TOO_LARGE = "too_large"
    RATE_LIMITED = "rate_limited"
    QUOTA_EXHAUSTED = "quota_exhausted"
    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    DISPLACED = "displaced"
    NO_BACKEND = "no_backend"
    DRAINING = "draining"
    UPSTREAM_CONNECT = "upstream_connect"
    UPSTREAM_RESET = "upstream_reset"
    UPSTREAM_PROTOCOL = "upstream_protocol"
    UPSTREAM_AUTH = "upstream_auth"
    UPSTREAM_STATUS = "upstream_status"
    FIRST_TOKEN_TIMEOUT = "first_token_timeout"
    TOTAL_TIMEOUT = "total_timeout"
    TRUNCATED = "truncated"
    IDLE_TIMEOUT = "idle_timeout"
    WRITE_TIMEOUT = "write_timeout"  # the caller stopped reading
    CLIENT_GONE = "client_gone"
    CANCELLED = "cancelled"  # by an operator
    INTERNAL = "internal"


class Verdict(enum.Enum):
    """What an attempt says about the backend that made it (policies.md 7)."""

    OK = "ok"
    FAILED = "failed"
    BUSY = "busy"  # 429, 529, 503 with Retry-After or a queue-full body: rest, not failure
    REFUSES_US = "refuses_us"  # 401, 402, 403 on our credential; 404 on a model name the file chose
    NEUTRAL = "neutral"  # other 4xx, caller gone, caller's own deadline


class Standing(enum.IntEnum):
    """What a backend is good for, and a platform (the best of its backends): which platform serves hangs on this alone."""

    OUT = 0  # ejected, drained, refuses us, or probing without a success yet
    RECOVERING = 1  # probing, and a probe has succeeded
    AVAILABLE = 2  # healthy; busy or starting does not change it


class Ending(NamedTuple):
    """How one attempt ended, as the host reports it with the lease."""

    verdict: Verdict
    outcome: Outcome
    retry_after_s: float | None = None  # with BUSY: what the backend asked for
    maybe_starting: bool = False  # connection refused, or 503: not a failure before a backend's first success
    why: str = ""  # one word for the log: "refused", "reset", "status 500", ...


class Request(NamedTuple):
    """One request as the decisions see it. No header, no prompt (save `text`, where a route asks for it)."""

    id: str
    tenant: str
    lane: int  # index into Plan.lanes; 0 is served first
    traffic: str = "interactive"  # or "batch"
    path: str = "/v1/chat/completions"
    model: str | None = None
    prompt_tokens: int = 0  # estimate
    max_tokens: int | None = None
    turns: int = 0
    tools: bool = False
    json: bool = False
    images: bool = False
    task: str | None = None
    text: str = ""
    streamed: bool = False
    body_bytes: int = 0
    conversation: int = 0  # hash of tenant and first messages: keeps a conversation on one side of a split


@dataclass(frozen=True, slots=True)
class LanePlan:
    """One lane of the file. Order in `Plan.lanes` is precedence."""

    name: str
    max_wait_s: float = 4.0
    share: Fraction = Fraction(0)  # of dispatches, guaranteed while it waits
    reserve: int = 0  # lanes below this one dispatch only while more than this many slots are free


@dataclass(frozen=True, slots=True)
class BackendPlan:
    """One endpoint with its cap. `address` is opaque here: when it changes under a name, it is another backend."""

    name: str
    max_streams: int
    weight: float = 1.0
    address: str = ""


@dataclass(frozen=True, slots=True)
class PlatformPlan:
    """Backends that fail together."""

    name: str
    backends: tuple[BackendPlan, ...]
    models: frozenset[str] | None = None  # our names that it serves; None: all
    startup_s: float = 60.0  # how long loading a model may take
    smoke: bool = False  # it must pass smoke generations before requests go back to it
    continues: bool = True  # its backends go on with an answer that another has begun


@dataclass(frozen=True, slots=True)
class PlacesPlan:
    """How many may wait: `fixed`, else ceil(buffer x streams), at least 1, and with a demand at least 1.2 x demand - streams."""

    fixed: int | None = None
    buffer: Fraction = Fraction(1, 5)
    demand_streams: Fraction | None = None  # rps x generation time


@dataclass(frozen=True, slots=True)
class Hedge:
    """When is a first token late enough for a second attempt beside the first? Past a percentile of those before it, or after so long."""

    percent: int | None = None
    after_s: float | None = None


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """Requests that wait together, and the platforms that serve them: primary first, then the standbys in order."""

    name: str
    platforms: tuple[str, ...]
    places: PlacesPlan = field(default_factory=PlacesPlan)
    max_wait_s: float | None = None  # wins over the lanes'
    model: str | None = None  # the model asked of the platform; None: the caller's
    attempts: int = 2
    retry_after_send: bool = True
    slo_ttft_s: float | None = None
    hold_s: float = 300.0
    ramp_s: float = 120.0
    overflow: bool = False  # the standby also takes what would wait too long
    warm: Fraction = Fraction(0)  # of the dispatches of lower lanes and batch: run on platforms out of service, to know that they work
    hedge: Hedge | None = None  # None: one attempt at a time
    continues: bool = False  # a stream that breaks may be continued by another backend


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole file, as the decisions need it."""

    lanes: tuple[LanePlan, ...]
    platforms: tuple[PlatformPlan, ...]
    pools: tuple[PoolPlan, ...]  # order is precedence on shared backends
    waiting_bytes_max: int = 256 * 1024 * 1024


class Refusal(NamedTuple):
    """The request ends here. `retry_after_s`: whole seconds 1..60, already jittered; None where waiting cannot help."""

    outcome: Outcome
    retry_after_s: int | None = None


class Lease:
    """The right to one slot of one backend: granted once, given back once, by whoever owns it."""

    __slots__ = (
        "backend",
        "epoch",
        "first_token_at",
        "granted_at",
        "live",
        "number",
        "platform",
        "pool",
        "probe",
        "probe_until_at",
        "slotless",
    )

    def __init__(
        self, number: int, pool: str, platform: str, backend: str, granted_at: float, epoch: int, *, probe: bool, slotless: bool
    ) -> None:
        self.number = number
        self.pool = pool
        self.platform = platform
        self.backend = backend
        self.granted_at = granted_at
        self.epoch = epoch  # of the backend's health: a late result of an earlier epoch is ignored
        self.probe = probe  # this request tests an ejected backend: it is the only one there
        self.probe_until_at = 0.0  # of a probe: its backend may take that long to its first token, whatever the request itself may wait
        self.slotless = slotless  # counting tokens takes no generation slot
        self.first_token_at: float | None = None  # set by the backend's health when its first token is reported
        self.live = True


class Ticket:
    """One request's passage through the decisions, over all its attempts.

    `answer` is None while it waits, then a `Lease` or a `Refusal`. `host` is whatever the host hangs on it (a future, a
    simulated caller); no policy looks at it.
    """

    __slots__ = ("answer", "arrived_at", "attempts", "host", "last_ending", "pool", "request", "seat", "slotless", "tried", "waited_s")

    def __init__(self, request: Request, pool: str, arrived_at: float, *, slotless: bool = False, host: Any = None) -> None:
        self.request = request
        self.pool = pool
        self.arrived_at = arrived_at
        self.slotless = slotless
        self.host = host
        self.answer: Lease | Refusal | None = None
        self.tried: frozenset[str] = frozenset()  # backends this request has failed on
        self.attempts = 0  # leases granted so far
        self.waited_s = 0.0  # over all its waits that have ended
        self.last_ending: Ending | None = None  # of the attempt before: what a retry that runs out ends with
        self.seat: Any = None  # where it waits; the queue's own bookkeeping
