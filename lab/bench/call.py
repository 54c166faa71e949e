"""What became of one request? Its instants as the client saw them, its tokens, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass

from lab.bench.forms import CHAT, Form

OK = "ok"
REFUSALS = ("rate_limited", "quota_exhausted", "queue_full", "queue_timeout", "displaced", "no_backend", "draining")


@dataclass(slots=True, eq=False)
class Call:
    """Instants in seconds, monotonic. `outcome` is None while it runs, then `ok`, a reason of refusal, or what failed."""

    lane: str
    prompt_tokens_asked: int
    output_tokens_asked: int
    stream: bool
    intended_at: float
    started_at: float = 0.0  # the client took it up: what it is late by is its own fault
    sent_at: float = 0.0  # connected, and all bytes handed to the socket
    first_token_at: float | None = None
    last_token_at: float | None = None
    longest_gap_s: float = 0.0  # between two tokens
    ended_at: float = 0.0
    outcome: str | None = None
    refused: bool = False  # told to come back, as opposed to failed
    detail: str = ""
    prompt_tokens: int = 0
    output_tokens: int = 0
    counted_by_usage: bool = False  # False: events were counted
    queue_s: float | None = None  # as Fairlane says it
    form: Form = CHAT

    @property
    def ok(self) -> bool:
        return self.outcome == OK

    @property
    def late_s(self) -> float:
        """How late did the client take it up?"""
        return self.started_at - self.intended_at

    @property
    def ttft_s(self) -> float | None:
        """From the intended start: what the client or its connections cost is part of what a user waits."""
        return None if self.first_token_at is None else self.first_token_at - self.intended_at

    @property
    def tpot_s(self) -> float | None:
        """(last token - first token) / (output tokens - 1); None for an answer of one token."""
        if self.first_token_at is None or self.last_token_at is None or self.output_tokens < 2:
            return None
        return (self.last_token_at - self.first_token_at) / (self.output_tokens - 1)

    @property
    def e2e_s(self) -> float:
        return self.ended_at - self.intended_at
