"""Which keys does a JSON object have at its top, all of them, and where in the bytes does each value stand?

The usual decoders keep one of two equal keys; which one, they do not agree on. Here both are seen, however they are spelt, and a
value can be replaced where it stands, with every other byte left as it was.
"""

from __future__ import annotations

import codecs
import re

import msgspec

SMALL_BYTES = 64 * 1024
_SLICE_BYTES = 512 * 1024
MEMBERS_MAX = 4096  # at the top of one object; no API has a tenth of that, and each costs memory

_CROWDED_BYTES = len(b'"":0,') * MEMBERS_MAX  # with fewer there is no room for more members

_utf8 = codecs.getincrementaldecoder("utf-8")
_BEFORE_VALUE = re.compile(rb'[ \t\r\n]*[{,][ \t\r\n]*"[^"\\]*(?:\\.[^"\\]*)*"[ \t\r\n]*:[ \t\r\n]*', re.DOTALL)


class Key:
    """One key as it was met. Two of the same text are two keys, so that a dict holds both."""

    __slots__ = ()
    text: str


class _Met(Key, msgspec.Struct, eq=False, gc=False):
    kind: type[Key]
    text: str


Members = dict[Key, msgspec.Raw]
_decode = msgspec.json.Decoder(Members, dec_hook=_Met).decode  # each key becomes `_Met(Key, text)` without a step in Python


class _Counter:
    """A decoder that stops at too many members. Decoding is one synchronous step."""

    __slots__ = ("_decode", "_left")

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder(Members, dec_hook=self._key).decode
        self._left = 0

    def decode(self, body: bytes) -> Members:
        self._left = MEMBERS_MAX
        return self._decode(body)

    def _key(self, kind: type[Key], text: str) -> Key:
        self._left -= 1
        if self._left < 0:
            raise ValueError("too many keys")
        return _Met(kind, text)


_counter = _Counter()


def members(body: bytes) -> Members:
    """All members at the top of the object in `body`, in order, keys unescaped, values as they are spelt.

    Raises ValueError if `body` is not exactly one JSON object in UTF-8, is nested too deeply, or has more than `MEMBERS_MAX`.
    """
    try:
        if not body.isascii():  # what is only skipped is not checked below
            if len(body) <= SMALL_BYTES:
                body.decode()
            else:
                _check(body)
        if len(body) < _CROWDED_BYTES:
            return _decode(body)
        return (_counter if len(body) <= SMALL_BYTES else _Counter()).decode(body)  # large ones are read in another thread
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ValueError("not a JSON object") from error


def _check(body: bytes) -> None:
    """Is it UTF-8? In slices: it is asked in another thread, and no step of that may be long. Raises ValueError."""
    decoder = _utf8()
    for start in range(0, len(body), _SLICE_BYTES):
        decoder.decode(body[start : start + _SLICE_BYTES])
    decoder.decode(b"", True)


def value_span(body: bytes, found: Members, key: str) -> tuple[int, int] | None:
    """Where does the value of the first member called `key` begin and end? None: there is none. `found` is `members(body)`."""
    at = 0
    for each, value in found.items():
        before = _BEFORE_VALUE.match(body, at)
        if before is None:  # cannot be, in what `members` has read
            raise ValueError("these are not the members of this body")
        at = before.end() + len(memoryview(value))
        if each.text == key:
            return before.end(), at
    return None


def replace_priority(body: bytes, found: Members, number: int | None) -> bytes:
    """`body` with this number as the top member `priority`, whatever stood there; None: with no such member."""
    at, kept = 0, b""
    for each, value in found.items():
        before = _BEFORE_VALUE.match(body, at)
        if before is None:  # cannot be, in what `members` has read
            raise ValueError("these are not the members of this body")
        start, at = at, before.end() + len(memoryview(value))
        if each.text != "priority":
            kept += body[start:at] if kept or not start else b"{" + body[start:at].lstrip(b" \t\r\n")[1:]
    if not found:
        at = body.index(b"{") + 1
    if number is not None:
        kept += b'%b"priority":%d' % (b"," if kept else b"{", number)
    return (kept or b"{") + body[at:]


def replace_model(body: bytes, found: Members, name: str) -> bytes:
    """`body` with this model asked for: only that value changes. Where the object has none it is put first."""
    value = msgspec.json.encode(name)
    span = value_span(body, found, "model")
    if span is not None:
        return body[: span[0]] + value + body[span[1] :]
    start = body.index(b"{") + 1
    return b'%b"model":%b%b%b' % (body[:start], value, b"," if found else b"", body[start:])
