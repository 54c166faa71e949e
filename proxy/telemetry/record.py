"""What is known about one request when it has ended? Filled while its story is told, read once by the metrics and the log."""

from __future__ import annotations

import msgspec

from policies.model import Outcome


class Record(msgspec.Struct, gc=False):
    """One request. Whatever stays at its default is not known or did not happen; no prompt and no key is ever written here.

    A struct of msgspec: made in a fifth of a microsecond with all its defaults, and never tracked by the garbage collector.
    """

    received_at: float  # monotonic: the request is fully received, or what there is of it if it never was
    time_unix: float  # the same instant, seconds since 1970, for the log
    id: str = ""
    method: str = ""
    path: str = ""
    tenant: str = ""  # name of the key; empty: the caller was not identified
    lane: str = ""
    pool: str = ""  # empty: the request never reached one
    rule: str = ""  # which route matched
    model: str = ""  # asked for by the caller
    streamed: bool = False  # asked for as a stream
    attempts: int = 0  # leases granted
    hedges: int = 0  # of them, second attempts beside the first
    continued: int = 0  # of them, those that said the rest of a stream that broke
    platform: str = ""  # of the latest attempt
    backend: str = ""  # of the latest attempt
    outcome: Outcome = Outcome.INTERNAL
    status: int = 0  # sent to the caller; 0: none
    why: str = ""  # one word of the latest attempt's ending: "reset", "status 500", ...
    phase: str = ""  # what the caller is waiting for (labels.DISCONNECT_PHASES), read if it leaves
    queue_s: float = 0.0  # all waits summed
    connect_s: float | None = None  # None: a kept connection served
    first_token_at: float | None = None  # monotonic: handed to the caller
    last_token_at: float | None = None
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_source: str = ""  # "usage" or "estimated"; empty: nothing was produced, and no tokens are counted
    bytes_in: int = 0  # body received
    bytes_out: int = 0  # body sent
    retry_count: int = 0  # tries the caller's SDK says it made before (x-stainless-retry-count)
    trace_id: str = ""
    peer: str = ""  # address of the caller
    ended_at: float = 0.0  # monotonic; set by Telemetry.finish

    @property
    def ttft_s(self) -> float | None:
        """Received to first token handed over; None: there was none, or the answer is not streamed."""
        return None if self.first_token_at is None else self.first_token_at - self.received_at

    @property
    def tpot_s(self) -> float | None:
        """Mean gap between output tokens; None: fewer than two."""
        if self.first_token_at is None or self.last_token_at is None or self.tokens_out < 2:
            return None
        return (self.last_token_at - self.first_token_at) / (self.tokens_out - 1)
