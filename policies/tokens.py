"""How many tokens is this prompt, without a tokenizer?

Model: tokens = f x (ASCII bytes / 4 + other characters / 1.7), with one factor f per model, 1 until learnt. f is the ratio of two decayed
sums, tokens that engines reported over tokens that the bare formula gave, so that a prompt counts by its length: short prompts, most of
which is the chat template, hardly move it. Assumes that a model's traffic is of a kind; a sudden change of language is learnt within
some tens of requests. Source: policies.md 5; 4 bytes per token is OpenAI's rule of thumb for English, 1.7 characters fits CJK text.
"""

from __future__ import annotations

import math


class TokenEstimate:
    """Estimates per model name, learnt from the engines' `usage`."""

    BYTES_PER_TOKEN = 4.0
    CHARACTERS_PER_TOKEN = 1.7  # outside ASCII
    DECAY_RATIO = 0.98  # of what earlier prompts count, per prompt: the last 50 count
    PRIOR_TOKENS = 1000.0  # as if so many tokens had been seen at f = 1: the first report alone does not decide
    FACTOR_MAX = 4.0  # and 1 / FACTOR_MAX: what a caller sends or an engine reports cannot bend it further
    MODELS_MAX = 1024  # names may come from callers; the one learnt first is forgotten first

    def __init__(self) -> None:
        self._sums: dict[str | None, tuple[float, float]] = {}  # reported, by the formula
        self._factors: dict[str | None, float] = {}  # the one over the other, bounded

    def estimate(self, model: str | None, ascii_bytes: int, other_chars: int) -> int:
        """How many tokens, rounded up, has a prompt of so many ASCII bytes and so many other characters?"""
        return math.ceil(self._factors.get(model, 1.0) * (ascii_bytes / self.BYTES_PER_TOKEN + other_chars / self.CHARACTERS_PER_TOKEN))

    def learn(self, model: str | None, ascii_bytes: int, other_chars: int, prompt_tokens: int) -> None:
        """The engine counted `prompt_tokens` for such a prompt. Not for prompts with images, whose tokens are not in the text."""
        computed = ascii_bytes / self.BYTES_PER_TOKEN + other_chars / self.CHARACTERS_PER_TOKEN
        if computed <= 0.0 or prompt_tokens <= 0:
            return
        # Bounded per prompt too: one absurd report must not outweigh the fifty around it.
        reported = self._bounded(prompt_tokens / computed) * computed
        before = self._sums.get(model)
        if before is None:
            before = (self.PRIOR_TOKENS, self.PRIOR_TOKENS)
            if len(self._sums) >= self.MODELS_MAX:
                forgotten = next(iter(self._sums))
                del self._sums[forgotten], self._factors[forgotten]
        self._sums[model] = sums = (self.DECAY_RATIO * before[0] + reported, self.DECAY_RATIO * before[1] + computed)
        self._factors[model] = self._bounded(sums[0] / sums[1])

    def _bounded(self, factor: float) -> float:
        return min(self.FACTOR_MAX, max(1.0 / self.FACTOR_MAX, factor))
