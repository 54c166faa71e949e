"""Where do requests go, and what does one cost in connections? A URL, the connections kept to it, and one call from end to end."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections import deque
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from lab.bench.call import Call
from lab.bench.forms import CHAT, Form
from lab.bench.wire import Exchange

KEEP_S = 3.0  # engines close idle connections at 5 s, Fairlane later
CONNECT_TIMEOUT_S = 10.0


class Unreachable(Exception):
    """Nothing answers there. The message names the place and the remedy."""


class Refused(Exception):
    """It answers, and does not serve us."""


class Floor(NamedTuple):
    """One bare connection, in seconds: before any engine has done any work."""

    connect_s: float
    tls_s: float  # 0.0 without TLS
    first_byte_s: float  # from the request's last byte


class Whole(NamedTuple):
    """An answer read to its end, for what is not measured."""

    status: int
    body: bytes


class Trust(NamedTuple):
    """Whose certificates does the client believe? `ca`: a file of authorities, instead of the system's."""

    ca: Path | None = None
    insecure: bool = False

    def context(self) -> ssl.SSLContext:
        """For a connection. Raises ValueError: the file cannot be read."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except (OSError, ssl.SSLError) as problem:
            raise ValueError(f"--ca: {self.ca} holds no certificates ({getattr(problem, 'strerror', None) or problem})") from None
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


TRUST = Trust()


class Target:
    """One platform: `NAME=URL` or `URL`. With a path that ends in /v1 or without, as a backend in the file."""

    def __init__(self, name: str, url: str, key: str = "", model: str = "", *, trust: Trust = TRUST, form: Form = CHAT) -> None:
        """`form`: in which it is met. Raises ValueError for a URL that cannot be asked, or an authority that cannot be read."""
        split = urlsplit(url)
        if split.scheme not in ("http", "https") or not split.hostname:
            raise ValueError(f"{url!r} must be a URL such as http://127.0.0.1:8000 or https://llm.example.com/v1")
        self.url = url
        self.host = split.hostname
        self.port = split.port or (443 if split.scheme == "https" else 80)
        self.name = name or f"{self.host}:{self.port}"
        self.key = key
        self.model = model
        self.form = form
        self.ignore_eos = True  # until the target refuses the field
        path = split.path.rstrip("/")
        self._path = path if path.endswith("/v1") else f"{path}/v1"
        self._authority = split.netloc.rpartition("@")[2]
        self._tls = trust.context() if split.scheme == "https" else None
        self._address: str | None = None
        self._idle: deque[Exchange] = deque()
        self._heads: dict[tuple[Form, str], bytes] = {}

    def request(self, form: Form, text: str, output_tokens: int, *, stream: bool = True, key: str | None = None) -> bytes:
        """The bytes of one request for so many tokens, with this key, or the target's own."""
        body = form.body(self.model, text, output_tokens, stream=stream, ignore_eos=self.ignore_eos)
        key = self.key if key is None else key
        head = self._heads.get((form, key))
        if head is None:
            head = self._head("POST", form.path.removeprefix("/v1"), form.credential(key)) + b"Content-Type: application/json\r\n"
            self._heads[form, key] = head
        return b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body)

    def _head(self, method: str, path: str, credential: str) -> bytes:
        line = f"{method} {self._path}{path} HTTP/1.1\r\nHost: {self._authority}\r\nUser-Agent: fairlane-bench\r\n{credential}"
        return line.encode("latin-1")

    async def resolve(self) -> None:
        """Looks the name up once, so that no request pays for it. Raises Unreachable."""
        try:
            found = await asyncio.get_running_loop().getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except OSError as problem:
            raise Unreachable(f"{self.url}: {problem.strerror or problem}; is the host's name right?") from None
        why: Exception | None = None
        for *_, address in found:
            self._address = str(address[0])
            try:
                (await self.connect(secure=False)).transport.abort()
            except (OSError, TimeoutError) as problem:
                why = problem
            else:
                return
        raise Unreachable(f"{self.url}: {_why(why)}")

    async def connect(self, secure: bool = True) -> Exchange:
        """A fresh connection; `secure` False: without TLS even where the URL has it. Raises OSError or TimeoutError."""
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            tls = self._tls if secure else None
            name = self.host if tls is not None else None
            _, exchange = await asyncio.get_running_loop().create_connection(
                Exchange, self._address or self.host, self.port, ssl=tls, server_hostname=name
            )
        return exchange

    async def perform(self, call: Call, request: bytes, timeout_s: float) -> None:
        """Makes the call and fills it in. Raises nothing but a cancellation: whatever goes wrong is its outcome."""
        call.started_at = time.monotonic()
        exchange = self._take()
        try:
            if exchange is None:
                exchange = await self.connect()
            await self._one(exchange, call, request, timeout_s)
            if exchange.stale:  # it was closed while our request was on its way: any client asks again
                exchange = await self.connect()
                call.outcome, call.detail = None, ""
                await self._one(exchange, call, request, timeout_s)
        except (OSError, TimeoutError) as problem:
            call.outcome, call.detail = "tls" if isinstance(problem, ssl.SSLError) else "connect", _why(problem)
            call.ended_at = time.monotonic()
            return
        except asyncio.CancelledError:
            if exchange is not None:
                exchange.give_up("cancelled")
            raise
        if exchange.reusable:
            exchange.idle_since = time.monotonic()
            self._idle.append(exchange)
        else:
            exchange.transport.close()

    async def _one(self, exchange: Exchange, call: Call, request: bytes, timeout_s: float) -> None:
        left_s = max(0.0, call.intended_at + timeout_s - time.monotonic())
        timer = asyncio.get_running_loop().call_later(left_s, exchange.give_up, "timeout")
        try:
            await exchange.ask(call, request)
        finally:
            timer.cancel()

    def _take(self) -> Exchange | None:
        """The connection used last, if the target still keeps it."""
        while self._idle:
            exchange = self._idle.pop()
            if exchange.reusable and not exchange.transport.is_closing():
                if time.monotonic() - exchange.idle_since < KEEP_S:
                    return exchange
                exchange.transport.close()
        return None

    def close(self) -> None:
        """Ends the connections kept."""
        while self._idle:
            self._idle.pop().transport.close()

    async def get(self, path: str) -> Whole:
        """A small GET under /v1. Raises Unreachable."""
        try:
            reader, writer = await asyncio.wait_for(self._open(), CONNECT_TIMEOUT_S)
            try:
                writer.write(self._head("GET", path, self.form.credential(self.key)) + b"Connection: close\r\n\r\n")
                data = await asyncio.wait_for(reader.read(-1), CONNECT_TIMEOUT_S)
            finally:
                writer.close()
        except (OSError, TimeoutError) as problem:
            raise Unreachable(f"{self.url}: {_why(problem)}") from None
        head, _, body = data.partition(b"\r\n\r\n")
        parts = head.split(None, 2)
        if len(parts) < 2 or not parts[0].startswith(b"HTTP/") or not parts[1].isdigit():
            raise Unreachable(f"{self.url}: what answers is not HTTP; is it {'http' if self._tls else 'https'}?")
        if b"transfer-encoding: chunked" in head.lower():
            body = _unchunked(body)
        return Whole(int(parts[1]), body)

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        name = self.host if self._tls is not None else None
        return await asyncio.open_connection(self._address or self.host, self.port, ssl=self._tls, server_hostname=name)

    async def floor(self) -> Floor:
        """One bare connection: connect, TLS, and the first byte of the answer to a request that needs no engine."""
        began_at = time.monotonic()
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(self._address or self.host, self.port)
            connected_at = secure_at = time.monotonic()
            try:
                if self._tls is not None:
                    await writer.start_tls(self._tls, server_hostname=self.host)
                    secure_at = time.monotonic()
                writer.write(self._head("GET", "/models", self.form.credential(self.key)) + b"Connection: close\r\n\r\n")
                await reader.read(1)
                first_at = time.monotonic()
            finally:
                writer.close()
        return Floor(connected_at - began_at, secure_at - connected_at, first_at - secure_at)


def _why(problem: Exception | None) -> str:
    """What went wrong with a connection, and what to look at."""
    if isinstance(problem, ssl.SSLCertVerificationError):
        return f"{problem.verify_message}; name its authority's file by --ca FILE, or do without by --insecure"
    if isinstance(problem, ssl.SSLError):
        return f"TLS failed ({problem.reason}); is it https?"
    return f"{getattr(problem, 'strerror', None) or 'no answer in time'}; is it running, is the port right?"


def _unchunked(body: bytes) -> bytes:
    out = []
    while body:
        size, _, body = body.partition(b"\r\n")
        try:
            length = int(size.partition(b";")[0], 16)
        except ValueError:
            break
        if length == 0:
            break
        out.append(body[:length])
        body = body[length + 2 :]
    return b"".join(out)
