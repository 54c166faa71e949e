"""What do we say, so that a prompt has the wanted length and no two are alike?

Prompts are words of four letters, which today's tokenizers take as one token each, so that length in tokens is linear in words:
`tokens = fixed + per_word x words`. Both are measured from the target's own `usage`. A prompt begins with its number, written in
words, the fastest digit first: no two share a beginning, so no engine answers from its prefix cache. The number starts at a place of
this run's own and not of the seed's, so that a second run with the same seed is not answered from the first one's cache either.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random, SystemRandom

_LINES = (
    "able area army away baby back ball band bank base bell bird blue boat body bond",
    "book born both call camp card care cars case cash city club coal cold come cool",
    "core cost dark data date days deal deep door down draw drop duty east edge face",
    "fact fair fall farm fast fear feel feet file fine fire fish five flow food foot",
)
WORDS = tuple(word for line in _LINES for word in line.split())
NUMBER_WORDS = 7  # 64^7 numbers
STOCK_WORDS = 1 << 15


@dataclass(frozen=True, slots=True)
class Calibration:
    """How do words become tokens at this target? `measured` False: it reports no usage, and a word is taken as a token."""

    fixed: float = 0.0
    per_word: float = 1.0
    measured: bool = False

    def words(self, tokens: int) -> int:
        """How many words make so many tokens? At least those of the number."""
        return max(NUMBER_WORDS, round((tokens - self.fixed) / self.per_word))


def calibrated(few: tuple[int, int], many: tuple[int, int]) -> Calibration:
    """From two prompts, each (words, tokens by usage)."""
    per_word = (many[1] - few[1]) / (many[0] - few[0])
    if per_word <= 0:
        return Calibration()
    return Calibration(few[1] - few[0] * per_word, per_word, measured=True)


class Prompts:
    """A source of prompts that differ from their first word on."""

    def __init__(self, seed: int) -> None:
        rng = Random(seed)
        self._stock = "".join(f"{word} " for word in rng.choices(WORDS, k=STOCK_WORDS))
        self._next = SystemRandom().getrandbits(40)

    def text(self, words: int) -> str:
        """The next prompt, of exactly so many words."""
        number = self._next
        self._next += 1
        head = []
        for _ in range(min(words, NUMBER_WORDS)):
            number, digit = divmod(number, len(WORDS))
            head.append(WORDS[digit])
        rest = words - len(head)
        whole, part = divmod(rest, STOCK_WORDS)
        begin = self._next % (STOCK_WORDS - part) * 5  # each word takes five characters of the stock
        return " ".join(head) + " " + self._stock * whole + self._stock[begin : begin + part * 5].rstrip()
