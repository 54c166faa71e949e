"""Which bytes are the head of a message? The head that a backend gets, which fields of a caller's never pass, and answers of our own.

Hop-by-hop fields end here (RFC 9110 7.6.1), with everything `Connection` names; the caller's credential, cookies and
our own control fields never go upstream. What of a backend's head comes back is `answer_head`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from http import HTTPStatus

from proxy.http1.framing import Head

Fields = Sequence[tuple[bytes, bytes]]

HOP_BY_HOP = frozenset(
    [
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authorization",
        b"proxy-authenticate",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    ]
)
_OURS_UPSTREAM = HOP_BY_HOP | {
    b"host",
    b"content-length",
    b"expect",
    b"authorization",
    b"x-api-key",
    b"api-key",
    b"cookie",
    b"accept-encoding",
    b"x-request-id",
}
_ABOUT_THE_CALLER = frozenset([b"forwarded", b"x-real-ip", b"true-client-ip"])
_MEMO_MAX = 4096
_FRAMES_MAX = 64  # that one caller's head keeps, one per backend
_HEAD = b"%bx-request-id: %b\r\ncontent-length: %d\r\n\r\n"

REASONS = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


_DROPPED, _PASSES, _IF_TRUSTED = range(3)


def _treatment(name: bytes) -> int:
    if name in _OURS_UPSTREAM or b"_" in name or name.startswith(b"x-fairlane-"):
        return _DROPPED
    if name in _ABOUT_THE_CALLER or name.startswith(b"x-forwarded-"):
        return _IF_TRUSTED  # where the caller is: believed from trusted proxies only
    return _PASSES


def nominated(fields: Fields) -> frozenset[bytes]:
    """Which fields does `Connection` name, to be dropped with it?"""
    names = [token.strip().lower() for name, value in fields if name == b"connection" for token in value.split(b",")]
    return frozenset(names)


class UpstreamHeads:
    """What head does one backend get? All that does not depend on the request is joined once.

    `prefix` stands before the caller's path; if `replaces_v1`, it takes the place of the path's leading `/v1`.
    `own_fields` are the platform's: credential and `headers`.
    """

    def __init__(self, host: str, prefix: str, own_fields: Iterable[tuple[str, str]], *, replaces_v1: bool) -> None:
        own = [(name.lower().encode(), name.encode(), value.encode("latin-1")) for name, value in own_fields]
        self._own_names = frozenset(lower for lower, _, _ in own)
        self._prefix = prefix.rstrip("/").encode()
        self._replaces_v1 = replaces_v1
        fixed = [b" HTTP/1.1\r\nhost: ", host.encode("idna"), b"\r\naccept-encoding: identity\r\n"]
        fixed += [name + b": " + value + b"\r\n" for _, name, value in own]
        self._fixed = b"".join(fixed)
        self._treatments: dict[bytes, int] = {}

    def build(self, method: bytes, target: bytes, fields: Fields, body_bytes: int, request_id: bytes, *, trusted: bool) -> bytes:
        """The head for one request. `fields` are the caller's, names in lower case; `trusted`: its forwarding fields count."""
        return _HEAD % (self._frame(method, target, fields, trusted), request_id, body_bytes)

    def build_for(self, head: Head, body_bytes: int, request_id: bytes, *, trusted: bool) -> bytes:
        """The same for a caller's head; what does not change while it comes again and again is joined once."""
        key = (self, trusted)
        frame = head.frames.get(key)
        if frame is None:
            if len(head.frames) >= _FRAMES_MAX:
                head.frames.clear()
            frame = head.frames[key] = self._frame(head.method.encode(), head.target, head.headers, trusted)
        return _HEAD % (frame, request_id, body_bytes)

    def _frame(self, method: bytes, target: bytes, fields: Fields, trusted: bool) -> bytes:
        """All of a head but the request's id and length, which stand last."""
        path = self._prefix + (target[3:] if self._replaces_v1 else target)
        parts = [method, b" ", path, self._fixed]
        dropped: frozenset[bytes] = frozenset()
        treatments = self._treatments
        for name, value in fields:
            treatment = treatments.get(name)
            if treatment is None:
                treatment = self._learn(name)
            if treatment == _PASSES or (treatment == _IF_TRUSTED and trusted):
                parts += (name, b": ", value, b"\r\n")
            elif name == b"connection" and value.lower() not in (b"keep-alive", b"close"):
                dropped = nominated(fields)
        if dropped:
            kept = [(name, value) for name, value in fields if name != b"connection" and name not in dropped]
            return self._frame(method, target, kept, trusted)
        return b"".join(parts)

    def _learn(self, name: bytes) -> int:
        treatment = _DROPPED if name in self._own_names else _treatment(name)
        if len(self._treatments) < _MEMO_MAX:  # callers choose the names: what we remember of them is bounded
            self._treatments[name] = treatment
        return treatment


def status_line(status: int) -> bytes:
    """The first line of an answer."""
    return REASONS.get(status) or b"HTTP/1.1 %d Status\r\n" % status


def response(status: int, fields: Iterable[tuple[bytes, bytes]], body: bytes, *, keep_alive: bool, to_head: bool = False) -> bytes:
    """A whole answer of our own. `to_head`: the request was a HEAD, whose answer has no body."""
    parts = [status_line(status)]
    parts += [name + b": " + value + b"\r\n" for name, value in fields]
    parts.append(b"content-length: %d\r\n%s\r\n" % (len(body), b"" if keep_alive else b"connection: close\r\n"))
    if not to_head:
        parts.append(body)
    return b"".join(parts)
