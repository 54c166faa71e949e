"""Is this the head that came before? Then what was concluded from it holds again.

An SDK sends the same bytes with each request of a connection, save the digits of `Content-Length`; so does an engine with its answers
(within a second, where it tells the time). What llhttp and our own checks accepted once they would accept again: a head that is the
same byte for byte is not read a second time. Anything else is.
"""

from __future__ import annotations

import re
from typing import Any, Generic, Protocol, TypeVar


class Measured(Protocol):
    """A head that was read."""

    @property
    def content_length(self) -> int | None: ...


H = TypeVar("H", bound=Measured)

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,18})[ \t]*\r\n", re.IGNORECASE)
_DIGITS_MAX = 18
_END = b"\r\n\r\n"


class KnownHead(Generic[H]):
    """One head: its bytes around the length, and what came of it. `context` is what else was concluded."""

    __slots__ = ("_after", "_after_bytes", "_before", "_before_bytes", "_length_bytes", "context", "head")

    def __init__(self, before: bytes, after: bytes, head: H, context: Any) -> None:
        self._before = before
        self._after = after
        self._before_bytes = len(before)
        self._after_bytes = len(after)
        self._length_bytes = _DIGITS_MAX + len(after)  # within so many the length ends, and what stands behind it
        self.head = head
        self.context = context

    @classmethod
    def learn(cls, data: bytes, head: H, context: Any = None) -> KnownHead[H] | None:
        """The head at the beginning of `data`, which was read as `head`; None if all of it is not there, or no length in it."""
        stop = data.find(_END)
        if stop < 0:
            return None
        length = _LENGTH.search(data, 0, stop + 2)
        if length is None or int(length[1]) != head.content_length:
            return None
        return cls(data[: length.start(1)], data[length.end(1) : stop + len(_END)], head, context)

    def whole(self, data: bytes) -> bytes | None:
        """The body, if `data` is this head with all of its body and nothing behind it."""
        if not data.startswith(self._before):
            return None
        start = self._before_bytes
        stop = data.find(self._after, start, start + self._length_bytes)
        if stop < 0:
            return None
        body = data[stop + self._after_bytes :]
        return body if data[start:stop] == b"%d" % len(body) else None

    def begun(self, data: bytes) -> tuple[int, bytes] | None:
        """If `data` is this head with some of its body: how long will that be, and what of it is there?"""
        if not data.startswith(self._before):
            return None
        start = self._before_bytes
        stop = data.find(self._after, start, start + self._length_bytes)
        digits = data[start:stop] if stop > start else b""
        return (int(digits), data[stop + self._after_bytes :]) if digits.isdigit() else None
