"""Which requests wait together, and who serves them? `pools:` of the file."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, ClassVar, Literal, Self

from pydantic import model_validator

from proxy.settings.platforms import Load
from proxy.settings.section import Section, filled, refuse, rivals, setting
from proxy.settings.values import Flag, Kind, Lateness, Names, Seconds, Share, Timeout, Whole

BATCH_ATTEMPTS = 3  # a batch has time for one more
FIRST_TOKEN_TARGETS = 10  # first_token is this many times the SLO's TTFT
FIRST_TOKEN_S_MIN = 5.0


class Slo(Section):
    """Targets for streamed answers."""

    ttft_s: Timeout | None = setting("request received to first token, waiting included", None, shown="no target")
    tpot_s: Timeout | None = setting("seconds per output token after the first", None, shown="no target")


class Queue(Section):
    """How many may wait, and how long."""

    places: Whole | None = setting("how many may wait; 0: never wait", None, shown="from buffer and demand", ge=0, le=1_000_000)
    buffer: Share = setting("places as a share of the pool's streams, rounded up, at least 1", Fraction(1, 5), shown="20%")
    max_wait_s: Seconds | None = setting("instead of the lanes'", None, shown="each lane's own")

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        refuse(*rivals(self, "places", "buffer"))
        return self


class Timeouts(Section):
    """How long each phase of an attempt or request may take."""

    connect_s: Timeout = setting("connection and TLS, per attempt", 3.0, shown="3s")
    first_token_s: Timeout = setting(
        "streamed answers: sent to first token, per attempt", 60.0, shown="10 x the SLO's TTFT, at least 5s; 60s without one"
    )
    idle_s: Timeout = setting("streamed answers: between two pieces", 60.0, shown="60s")
    total_s: Timeout = setting("being served, from the first dispatch on; waiting has its own limit, max_wait", 900.0, shown="15m")


class Retries(Section):
    """What may be tried again before the first token."""

    attempts: Whole = setting("attempts in all; 1: never again", 2, shown="2; 3 with profile batch", ge=1, le=10)
    after_send: Flag = setting("also after the request was fully sent, where a generation may be paid for twice", True)


class Hedging(Section):
    """A second attempt beside the first, for streamed requests of the first lane, onto an idle backend. Never more than 5 % of attempts."""

    after: Lateness = setting("when a first token is late: past this percentile of the pool's latest ones, or this long after its dispatch")

    @model_validator(mode="before")
    @classmethod
    def _written(cls, written: object) -> object:
        if not isinstance(written, Mapping):
            raise ValueError("must say when: {after: p95}, or {after: 800ms}; leave it out for one attempt at a time")
        return written


class Failback(Section):
    """How the primary comes back."""

    hold_s: Seconds = setting("how long it must be healthy first", 300.0, shown="300s")
    ramp_s: Seconds = setting("then it takes 10 % to 100 % of the requests over this long", 120.0, shown="120s")


# TTFT and TPOT that callers of each kind expect.
PROFILES = {
    "voice": ("300ms", "100ms"),
    "chat": ("1s", "150ms"),
    "code": ("500ms", "80ms"),
    "writing": ("2s", "200ms"),
}


class Pool(Section):
    """Requests that wait together, and the platforms that serve them."""

    later: ClassVar[frozenset[str]] = frozenset({"affinity", "preempt", "share", "spill", "yields"})

    primary: Names = setting("the platform in service; of several, in order")
    standby: Names = setting("platforms that take over, in order", (), shown="none")
    model: str | None = setting("the model asked of the platforms, by our name", None, shown="the caller's", min_length=1)
    profile: Annotated[Literal["voice", "chat", "code", "writing", "batch"] | None, Kind("voice, chat, code, writing or batch")] = setting(
        "TTFT and TPOT by kind of work: voice 300ms, 100ms; chat 1s, 150ms; code 500ms, 80ms; writing 2s, 200ms; batch none",
        None,
        shown="no targets",
    )
    slo: Slo = setting("targets of one's own instead", Slo(), shown="the profile's")
    demand: Load | None = setting("the load expected: checked against the caps, and used for places", None, shown="unknown")
    queue: Queue = setting("how many may wait, and how long", Queue(), shown="{buffer: 20%}")
    timeouts: Timeouts = setting("how long each phase may take", Timeouts(), shown="{}")
    retries: Retries = setting("what may be tried again before the first token", Retries(), shown="{}")
    hedge: Hedging | None = setting(
        "when the first token is late, also ask an idle backend and take whichever speaks first", None, shown="one attempt at a time"
    )
    continues: Flag = setting(
        "true: when a stream of plain text breaks, another backend says the rest, if nothing about the request forbids it",
        False,
        alias="continue",
    )
    overflow: Annotated[Literal["standby"] | None, Kind("standby")] = setting(
        "standby: also sends there what would wait too long", None, shown="the standby only takes over"
    )
    warm: Share = setting(
        "which part of the requests of lower lanes and of batch the standby serves while it stands by, so that it is known to work",
        Fraction(0),
        shown="0%",
    )
    failback: Failback = setting("how the primary comes back", Failback(), shown="{hold: 300s, ramp: 120s}")

    @model_validator(mode="after")
    def _whole(self) -> Self:
        problems = rivals(self, "profile", "slo")
        if self.overflow and not self.standby:
            problems.append((("overflow",), "needs a standby to send to"))
        if self.hedge is not None and self.retries.attempts < 2:
            problems.append((("hedge",), "needs retries.attempts of at least 2: the second attempt is one"))
        if self.hedge is not None and not self.retries.after_send:
            problems.append((("hedge",), "may pay for a generation twice, which retries.after_send: false forbids"))
        if self.continues and self.retries.attempts < 2:
            problems.append((("continue",), "needs retries.attempts of at least 2: the rest is one"))
        if self.warm and len(self.primary + self.standby) < 2:
            problems.append((("warm",), "needs a standby to keep warm"))
        refuse(*problems)
        if self.profile in PROFILES:
            ttft, tpot = PROFILES[self.profile]
            filled(self, {"slo": Slo.model_validate({"ttft": ttft, "tpot": tpot})})
        if self.slo.ttft_s is not None and "first_token_s" not in self.timeouts.model_fields_set:
            first_token_s = max(FIRST_TOKEN_S_MIN, FIRST_TOKEN_TARGETS * self.slo.ttft_s)
            filled(self, {"timeouts": self.timeouts.model_copy(update={"first_token_s": first_token_s})})
        if self.profile == "batch" and "attempts" not in self.retries.model_fields_set:
            filled(self, {"retries": self.retries.model_copy(update={"attempts": BATCH_ATTEMPTS})})
        return self

    @property
    def platforms(self) -> tuple[str, ...]:
        """Primary, then standby, in the order in which they are considered."""
        return self.primary + self.standby
