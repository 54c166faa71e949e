"""How many tokens is this prompt, without a tokenizer?

Model: tokens = f x (ASCII bytes / 4 + other characters / 1.7), with one factor f per model, 1 until learnt. f is the ratio of two decayed
sums, tokens that engines reported over tokens that the bare formula gave, so that a prompt counts by its length: short prompts, most of
which is the chat template, hardly move it. Assumes that a model's traffic is of a kind; a sudden change of language is learnt within
some tens of requests. Source: policies.md 5; 4 bytes per token is OpenAI's rule of thumb for English, 1.7 characters fits CJK text.
"""

from __future__ import annotations

from math import ceil

BYTES_PER_TOKEN = 4.0
CHARACTERS_PER_TOKEN = 1.7  # outside ASCII
DECAY_RATIO = 0.98  # of what earlier prompts count, per prompt: the last 50 count
PRIOR_TOKENS = 1000.0  # as if so many tokens had been seen at f = 1: the first report alone does not decide
FACTOR_MAX = 4.0  # and 1 / FACTOR_MAX: what a caller sends or an engine reports cannot bend it further
MODELS_MAX = 1024  # names may come from callers; the one learnt first is forgotten first


class _Sums:
    """What one model's prompts have come to, decayed: tokens as the engines counted them, and as the bare formula did."""

    __slots__ = ("computed", "factor", "reported")

    def __init__(self) -> None:
        self.reported = self.computed = PRIOR_TOKENS
        self.factor = 1.0  # the one over the other, kept as one value: estimates are made in other threads too


class TokenEstimate:
    """Estimates per model name, learnt from the engines' `usage`."""

    def __init__(self) -> None:
        self._sums: dict[str | None, _Sums] = {}

    def estimate(self, model: str | None, ascii_bytes: int, other_chars: int) -> int:
        """How many tokens, rounded up, has a prompt of so many ASCII bytes and so many other characters?"""
        computed = ascii_bytes / BYTES_PER_TOKEN + other_chars / CHARACTERS_PER_TOKEN
        sums = self._sums.get(model)
        return ceil(computed if sums is None else sums.factor * computed)

    def learn(self, model: str | None, ascii_bytes: int, other_chars: int, prompt_tokens: float) -> None:
        """The engine counted `prompt_tokens` for such a prompt. Not for prompts with images, whose tokens are not in the text."""
        computed = ascii_bytes / BYTES_PER_TOKEN + other_chars / CHARACTERS_PER_TOKEN
        if prompt_tokens <= 0 or not computed:
            return
        # Bounded per prompt: one absurd report must not outweigh the fifty around it. So f, which is their mean, keeps to the same bounds.
        if prompt_tokens > computed * FACTOR_MAX:
            prompt_tokens = computed * FACTOR_MAX
        elif prompt_tokens < computed / FACTOR_MAX:
            prompt_tokens = computed / FACTOR_MAX
        sums = self._sums.get(model)
        if sums is None:
            sums = self._begin(model)
        sums.reported = reported = DECAY_RATIO * sums.reported + prompt_tokens
        sums.computed = computed = DECAY_RATIO * sums.computed + computed
        sums.factor = reported / computed

    def _begin(self, model: str | None) -> _Sums:
        if len(self._sums) >= MODELS_MAX:
            del self._sums[next(iter(self._sums))]
        sums = self._sums[model] = _Sums()
        return sums
