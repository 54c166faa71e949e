"""What does the head of a backend's answer say? Read once, field by field: where the answer ends, what it is, and what of it goes on.

Its framing is checked as a caller's is (RFC 9112 6): a head that two parties may read in two ways is none. Hop-by-hop fields end
here, with everything `Connection` names; the backend's cookies and what only we may say never come back.
"""

from __future__ import annotations

from collections.abc import Sequence

from proxy.http1.framing import DIGITS
from proxy.http1.heads import HOP_BY_HOP, nominated, status_line

Fields = Sequence[tuple[bytes, bytes]]

_DROPPED_NAMES = HOP_BY_HOP | {b"set-cookie", b"set-cookie2", b"x-request-id", b"server-timing"}
_MEMO_MAX = 4096

_PASSES, _DROPPED, _LENGTH, _CODING, _CONNECTION, _TYPE, _ENCODING, _CACHING, _BUFFERING = range(1, 10)
_DECIDING = {
    b"content-length": _LENGTH,
    b"transfer-encoding": _CODING,
    b"connection": _CONNECTION,
    b"content-type": _TYPE,
    b"content-encoding": _ENCODING,
    b"cache-control": _CACHING,
    b"x-accel-buffering": _BUFFERING,
}
_meanings: dict[bytes, int] = {}  # by name as it was spelt; backends choose the names, so it is bounded


class AnswerHead:
    """A head that was read. `fields` as they came; `lines`: the status line and the fields that the caller gets, names as they came."""

    __slots__ = ("chunked", "content_length", "encoded", "fields", "lines", "status", "stream_lines", "streams")

    def __init__(self, status: int, fields: Fields) -> None:
        self.status = status
        self.fields = fields
        self.content_length: int | None = None
        self.chunked = False
        self.streams = False  # an event stream
        self.encoded = False  # compressed, or otherwise not to be read
        self.lines = b""
        self.stream_lines = b"cache-control: no-cache, no-transform\r\nx-accel-buffering: no\r\n"  # added to a stream, where missing

    @classmethod
    def read(cls, status: int, fields: Fields) -> AnswerHead | None:
        """The head with these fields; None: its framing is ambiguous, do not trust it."""
        head = cls(status, fields)
        lines = [status_line(status)]
        cached = buffered = False
        dropped: frozenset[bytes] = frozenset()
        for name, value in fields:
            meaning = _meanings.get(name) or _learn(name)
            if meaning == _LENGTH:
                if head.content_length is not None or not DIGITS.fullmatch(value):
                    return None
                head.content_length = int(value)
                continue
            if meaning == _CODING:
                if head.chunked or value.lower() != b"chunked":
                    return None
                head.chunked = True
                continue
            if meaning == _CONNECTION:
                if value.lower() not in (b"keep-alive", b"close"):
                    dropped = nominated([(n.lower(), v) for n, v in fields])
                continue
            if meaning == _DROPPED:
                continue
            if meaning == _TYPE:
                head.streams = value.lower().startswith(b"text/event-stream")
            elif meaning == _ENCODING:
                head.encoded = value.lower() not in (b"", b"identity")
            elif meaning == _CACHING:
                cached = True
            elif meaning == _BUFFERING:
                buffered = True
            lines.append(b"%b: %b\r\n" % (name, value))
        if head.chunked and head.content_length is not None:
            return None
        if status in (204, 304):
            head.content_length, head.chunked = 0, False
        if dropped:
            lines[1:] = [line for line in lines[1:] if line.partition(b":")[0].lower() not in dropped]
        head.lines = b"".join(lines)
        if cached or buffered:
            head.stream_lines = (b"" if cached else b"cache-control: no-cache, no-transform\r\n") + (
                b"" if buffered else b"x-accel-buffering: no\r\n"
            )
        return head


def _learn(name: bytes) -> int:
    lower = name.lower()
    meaning = _DECIDING.get(lower) or (_DROPPED if lower in _DROPPED_NAMES or lower.startswith(b"x-fairlane-") else _PASSES)
    if len(_meanings) < _MEMO_MAX:
        _meanings[name] = meaning
    return meaning
