"""Is this event the known one with another text in it? Most of a stream is, and then there is nothing else to read in it.

What stands before the text is the same bytes in all of a stream. What stands behind it is compared by a regular expression: ids and
numbers may be any, the rest stands byte for byte. An engine ends its events alike in all its streams: an expression is made once and
found again. What brings news with every event (counts, errors, how it ends) is never known: such an event is decoded each time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

LEARNT_MAX_BYTES = 4096  # a longer event is not learnt
ENDINGS_MAX = 64  # expressions that are kept, of all backends together

Matches = Callable[[bytes, int, int], object]

_TEXT = rb'[^"\r\n]*[^"\r\n\\]'  # not empty, and what follows is the quote that ends it
_ID = rb'[^"\\\r\n]*+'
_NUMBER = rb"[0-9]++(?:\.[0-9]++)?"
_VARIES = re.compile(rb'("(?:id|item_id|obfuscation)": ?")' + _ID + rb'(?=")|(?<=[:\[, ])' + _NUMBER + rb"(?=[,\]}])")
_NEWS = re.compile(rb'"(?:usage|error|finish_reason|stop_reason)"(?! ?: ?null\b)|"(?:sequence_number|input_tokens|output_tokens)"')
_LINE = re.compile(_TEXT + rb'("[^\r\n]*\})\n\n')
_endings: dict[bytes, Matches] = {}


class KnownEvent(NamedTuple):
    """An event with a token: `data` is one more if it starts with `before`, and its rest `matches`."""

    before: bytes  # up to the text
    before_bytes: int
    matches: Matches  # the text, what stands behind it and the blank line: from here to there in these bytes?

    def repeated_by(self, data: bytes) -> bool:
        """Is this, all of it, one more such event?"""
        return data.startswith(self.before) and self.matches(data, self.before_bytes, len(data)) is not None

    def resembles(self, data: bytes) -> bool:
        """Is it at least a token with no news behind it? Some engines put other things there each time."""
        if not data.startswith(self.before):
            return False
        found = _LINE.fullmatch(data, self.before_bytes)
        return found is not None and b'"type"' not in found[1] and not _NEWS.search(found[1])


NOTHING_KNOWN = KnownEvent(b"\n", 1, lambda data, start, stop: None)  # repeated by nothing: an event does not begin with a blank line


def learn(event: bytes, start: int, stop: int) -> KnownEvent | None:
    """How to know this one (without its blank line) again, whose text is `event[start:stop]`. None: it may bring news each time."""
    before, after = event[:start], event[stop:]
    if len(event) > LEARNT_MAX_BYTES or _NEWS.search(before) or _NEWS.search(after):
        return None
    ending = _abstract(after)
    matches = _endings.get(ending)
    if matches is None:
        if len(_endings) >= ENDINGS_MAX:
            del _endings[next(iter(_endings))]
        matches = _endings[ending] = re.compile(_TEXT + ending + rb"\n\n").fullmatch
    return KnownEvent(before, len(before), matches)


def _abstract(part: bytes) -> bytes:
    """The expression for these bytes, with any ids and numbers."""
    pieces: list[bytes] = []
    at = 0
    for found in _VARIES.finditer(part):
        opening = found[1] or b""
        pieces += re.escape(part[at : found.start()] + opening), _ID if opening else _NUMBER
        at = found.end()
    return b"".join([*pieces, re.escape(part[at:])])
