"""Is this head unambiguous? Checks above the parser, on the fields that request smuggling lives on (RFC 9112 6, 9110 8.6).

llhttp in strict mode already refuses most of it; what stands here holds even if the parser changes its mind.
"""

from __future__ import annotations

import re
from typing import Any, Protocol

from proxy.http1.faults import CallerFault

DIGITS = re.compile(rb"[0-9]{1,18}")
_TARGET = re.compile(rb"/[\x21\x22\x24-\x7e]*")
_HOST = re.compile(rb"(?:[A-Za-z0-9._~-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
_CREDENTIALS = (b"authorization", b"x-api-key", b"api-key")
_ONCE = frozenset([b"host", b"content-length", b"transfer-encoding", b"content-type", b"expect", *_CREDENTIALS])
_METHODS = {m.encode(): m for m in ("GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH")}


class MalformedHead(Exception):
    """The head is not one that two parties must read alike."""

    def __init__(self, fault: CallerFault, why: str) -> None:
        super().__init__(why)
        self.fault = fault


class Head:
    """A request's head. Names are in lower case, values as they came."""

    __slots__ = ("chunked", "content_length", "expects_continue", "frames", "headers", "keep_alive", "method", "named", "target", "version")

    def __init__(self, method: str, target: bytes, version: str, headers: list[tuple[bytes, bytes]]) -> None:
        self.method = method
        self.target = target
        self.version = version
        self.headers = headers
        self.named = dict(headers)  # of a field that is there twice, the last
        self.frames: dict[Any, bytes] = {}  # of the heads that backends were sent for it: `heads.UpstreamHeads` keeps them here
        self.content_length: int | None = None
        self.chunked = False
        self.keep_alive = version == "1.1"
        self.expects_continue = False

    @classmethod
    def unknown(cls, target: bytes) -> Head:
        """For a request whose head never became one."""
        head = cls("", target[:200], "1.1", [])
        head.keep_alive = False
        return head


class HeadLimits(Protocol):
    """How large may a head be? Name, colon, blank, value and line end count."""

    @property
    def fields(self) -> int: ...
    @property
    def field_bytes(self) -> int: ...
    @property
    def head_bytes(self) -> int: ...


def head_of(method: bytes, target: bytes, version: str, fields: list[tuple[bytes, bytes]], limits: HeadLimits, fed_bytes: int) -> Head:
    """The head of a request, or MalformedHead. `fed_bytes`: no more than this it came in; small ones need not be measured."""
    if version != "1.1" and version != "1.0":
        raise MalformedHead(CallerFault.MALFORMED, "version")
    if not _TARGET.fullmatch(target):
        raise MalformedHead(CallerFault.MALFORMED, "target")
    if fed_bytes > limits.field_bytes or len(fields) > limits.fields:
        _measure(fields, limits)
    head = Head(_METHODS.get(method) or method.decode("latin-1"), target, version, fields)
    named = head.named
    if len(named) < len(fields):
        _refuse_doubles(fields)
    host = named.get(b"host")
    if host is None:
        if version == "1.1":
            raise MalformedHead(CallerFault.MALFORMED, "no host")
    elif not _HOST.fullmatch(host):
        raise MalformedHead(CallerFault.MALFORMED, "host")
    length = named.get(b"content-length")
    if length is not None:
        if not DIGITS.fullmatch(length):
            raise MalformedHead(CallerFault.MALFORMED, "content-length")
        head.content_length = int(length)
    coding = named.get(b"transfer-encoding")
    if coding is not None:
        if coding.lower() != b"chunked" or version == "1.0" or length is not None:
            raise MalformedHead(CallerFault.MALFORMED, "transfer-encoding")
        head.chunked = True
    if b"expect" in named:
        if named[b"expect"].lower() != b"100-continue":
            raise MalformedHead(CallerFault.EXPECTATION, "expect")
        head.expects_continue = version == "1.1"
    if b"connection" in named:
        tokens = {token.strip() for name, value in fields if name == b"connection" for token in value.lower().split(b",")}
        head.keep_alive = b"close" not in tokens and (head.keep_alive or b"keep-alive" in tokens)
    return head


def _measure(fields: list[tuple[bytes, bytes]], limits: HeadLimits) -> None:
    sizes = [len(name) + len(value) + 4 for name, value in fields]
    if len(fields) > limits.fields or max(sizes, default=0) > limits.field_bytes or sum(sizes) > limits.head_bytes:
        raise MalformedHead(CallerFault.HEAD_TOO_LARGE, "fields")


def _refuse_doubles(fields: list[tuple[bytes, bytes]]) -> None:
    """Some field is there twice: no harm, unless two readers may each take another one."""
    seen = set()
    for name, _ in fields:
        if name in seen and (name in _ONCE or name.startswith(b"x-fairlane-")):
            raise MalformedHead(CallerFault.MALFORMED, "field twice")
        seen.add(name)
