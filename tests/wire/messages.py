"""Which bytes does everybody send? The notation of the catalogue of cases: J, JS, A, EVIL, NEXT, EV."""

from __future__ import annotations

from collections.abc import Mapping

J = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
JS = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}'

# The head of a chat request up to its framing fields, which the case adds.
A = b"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer sk-A\r\nContent-Type: application/json\r\n"
EVIL = b"GET /canary HTTP/1.1\r\nHost: t\r\n\r\n"
NEXT = b"GET /v1/models HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer sk-A\r\nConnection: close\r\n\r\n"

# The head of an event stream: chunks or close-delimited bytes follow.
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"


def ev(text: str) -> bytes:
    """EV(x): one chat event carrying one token."""
    return b'data: {"choices":[{"index":0,"delta":{"content":"' + text.encode() + b'"}}]}\n\n'


def post(
    body: bytes = J,
    *,
    path: str = "/v1/chat/completions",
    key: str | None = "sk-A",
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """One whole POST with Content-Length framing; `key` None sends no credential."""
    lines = [f"POST {path} HTTP/1.1", "Host: t", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    if key is not None:
        lines.append(f"Authorization: Bearer {key}")
    lines.extend(f"{name}: {value}" for name, value in (headers or {}).items())
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
