"""How shall the engine fail, and which requests does it hit? The bodies of `POST /_fault`."""

from __future__ import annotations

import random
from typing import Annotated, Literal

import msgspec

Kind = Literal["none", "status", "refuse", "hang", "reset", "cut", "stall", "error_in_stream", "slow", "garbage"]
REFUSE_DEFAULT_S = 30.0  # a closed port cannot be told to open again, so it does by itself


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One way to fail. Fields that its kind does not use are ignored.

    status           answers `code`, with Retry-After if `retry_after` (seconds) is set
    refuse           closes the listening socket for `seconds` (30), ends idle connections and resets requests on others; with
                     `times` or `share`, which a closed socket cannot keep, resets those requests at once
    hang             reads and never answers
    reset            resets the connection before the head
    cut              after `after` tokens: `by` reset, early_end (FIN in mid-body) or clean_end (well-framed, without finish reason)
    stall            after `after` tokens: nothing more, connection open
    error_in_stream  after `after` tokens: an error event, then the end; an answer that is not streamed has status 500
    slow             takes `factor` times as long, at every point
    garbage          answers bytes that are not HTTP
    none             works
    """

    fault: Kind
    code: Annotated[int, msgspec.Meta(ge=200, le=599)] = 503
    retry_after: Annotated[float, msgspec.Meta(ge=0)] | None = None
    after: Annotated[int, msgspec.Meta(ge=0)] = 2  # tokens
    by: Literal["reset", "early_end", "clean_end"] = "reset"
    factor: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    seconds: Annotated[float, msgspec.Meta(gt=0)] | None = None  # works again after so long
    times: Annotated[int, msgspec.Meta(ge=1)] | None = None  # hits the next so many requests only
    share: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None  # hits this part of the requests, drawn by the engine's seed
    on: Literal["requests", "health", "all"] = "requests"  # what is hit: the API, /health, or both

    @property
    def closes_port(self) -> bool:
        """Is the listening socket to be closed?"""
        return self.fault == "refuse" and self.times is None and self.share is None

    @property
    def in_mid_answer(self) -> bool:
        """Does it show only once tokens have gone out?"""
        return self.fault in ("cut", "stall", "error_in_stream")


NONE = Fault(fault="none")


class Faults:
    """The fault in force. Instants in seconds, monotonic."""

    def __init__(self, rng: random.Random) -> None:
        self.current = NONE
        self._rng = rng
        self._left: int | None = None
        self._until_at: float | None = None

    def set(self, fault: Fault, now: float) -> None:
        """From now on it fails like this."""
        self.current = fault
        self._left = fault.times
        seconds = REFUSE_DEFAULT_S if fault.closes_port and fault.seconds is None else fault.seconds
        self._until_at = None if seconds is None else now + seconds

    def until_at(self) -> float | None:
        """When does it end by itself?"""
        return self._until_at

    def hit(self, what: Literal["requests", "health"], now: float) -> Fault:
        """Which fault hits this request? Counts it if any does."""
        if self._until_at is not None and now >= self._until_at:
            self.set(NONE, now)
        fault = self.current
        if fault.fault == "none" or fault.on not in (what, "all"):
            return NONE
        if fault.share is not None and self._rng.random() >= fault.share:
            return NONE
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                self.set(NONE, now)
        return fault
