"""What exactly came back? A client on one raw socket: sends any bytes, reads only when asked, leaves in any manner."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import TracebackType

RECEIVE_BYTES = 65536


class WireError(Exception):
    """The other side broke HTTP's framing."""


@dataclass(frozen=True)
class Head:
    """A response head. `headers`: names in lower case, in order."""

    status: int
    headers: list[tuple[str, str]]
    raw: bytes

    def header(self, name: str) -> str | None:
        """The first value of a header, or None."""
        return next((value for key, value in self.headers if key == name.lower()), None)


@dataclass(frozen=True)
class Response:
    """A response. `whole` is False if the connection ended before the body did."""

    head: Head
    body: bytes
    whole: bool
    interim: list[Head] = field(default_factory=list)  # the 1xx before it

    @property
    def status(self) -> int:
        return self.head.status

    def header(self, name: str) -> str | None:
        """The first value of a header, or None."""
        return self.head.header(name)


class RawClient:
    """One connection. Every read has a deadline of `timeout_s` and raises TimeoutError past it."""

    def __init__(self, sock: socket.socket, timeout_s: float) -> None:
        self.sock = sock
        self.timeout_s = timeout_s
        self.received = bytearray()  # all that ever came
        self.ended: str | None = None  # "fin" or "reset" once the other side ended it
        self._at = 0  # what of `received` has been consumed
        self._left_of_body: int | None = None  # None: until close, -1: chunked

    @classmethod
    async def connect(
        cls, port: int, host: str = "127.0.0.1", *, timeout_s: float = 10.0, rcvbuf_bytes: int | None = None, from_host: str | None = None
    ) -> RawClient:
        """Connects. A small `rcvbuf_bytes` (set before connecting) makes a slow reader felt. `from_host`: our address. Raises OSError."""
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        sock.setblocking(False)
        if rcvbuf_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf_bytes)
        if from_host is not None:
            sock.bind((from_host, 0))
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.get_running_loop().sock_connect(sock, (host, port))
        except BaseException:
            sock.close()
            raise
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(sock, timeout_s)

    async def __aenter__(self) -> RawClient:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    async def send(self, data: bytes) -> None:
        """Sends all of it. Raises OSError if the other side is gone."""
        async with asyncio.timeout(self.timeout_s):
            await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def send_sliced(self, data: bytes, size: int = 1, gap_s: float = 0.0) -> None:
        """Sends `size` bytes per write, giving the loop (and the other side, if it lives here) a turn between them."""
        for at in range(0, len(data), size):
            await self.send(data[at : at + size])
            await asyncio.sleep(gap_s)

    async def ask(self, data: bytes) -> Response:
        """Sends a request and reads its response."""
        await self.send(data)
        return await self.response()

    async def head(self) -> Head:
        """The next response head, interim ones included. Raises EOFError if the connection ends instead, WireError if malformed."""
        end = await self._find(b"\r\n\r\n")
        raw = bytes(self.received[self._at : end + 4])
        self._at = end + 4
        lines = raw[:-4].decode("latin-1").split("\r\n")
        version, _, rest = lines[0].partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
            raise WireError(f"not a status line: {lines[0]!r}")
        headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines[1:])]
        head = Head(int(rest[:3]), headers, raw)
        length = head.header("content-length")
        if head.status in (204, 304) or head.status < 200:
            self._left_of_body = 0
        elif (head.header("transfer-encoding") or "").lower() == "chunked":
            if length is not None:
                raise WireError("both framings")
            self._left_of_body = -1
        else:
            self._left_of_body = None if length is None else int(length)
        return head

    async def body_piece(self) -> bytes:
        """The next bytes of the body without framing; b"" at its proper end. Raises EOFError if the connection ends before it."""
        if self._left_of_body == -1:
            line_end = await self._find(b"\r\n")
            size = int(bytes(self.received[self._at : line_end]).split(b";")[0], 16)
            self._at = line_end + 2
            data = await self._exactly(size + 2)
            if data[-2:] != b"\r\n":
                raise WireError("a chunk without its end")
            if size == 0:
                self._left_of_body = 0
            return data[:-2]
        if self._left_of_body == 0:
            return b""
        if self._at == len(self.received) and not await self._more():
            if self._left_of_body is None and self.ended == "fin":
                self._left_of_body = 0
                return b""
            raise EOFError(self.ended)
        size = len(self.received) - self._at
        if self._left_of_body is not None:
            size = min(size, self._left_of_body)
            self._left_of_body -= size
        return await self._exactly(size)

    async def body(self) -> tuple[bytes, bool]:
        """The rest of the body, and whether it ended properly."""
        pieces: list[bytes] = []
        try:
            while piece := await self.body_piece():
                pieces.append(piece)
        except EOFError:
            return b"".join(pieces), False
        return b"".join(pieces), True

    async def response(self) -> Response:
        """The next final response with its whole body."""
        interim: list[Head] = []
        while (head := await self.head()).status < 200:
            interim.append(head)
        body, whole = await self.body()
        return Response(head, body, whole, interim)

    async def events(self) -> AsyncIterator[bytes]:
        """The body's events, each with its blank line (LF or CRLF); raises EOFError, after the last whole one, if it is cut."""
        pending = b""
        while piece := await self.body_piece():
            pending += piece
            while True:
                ends = [at + len(mark) for mark in (b"\n\n", b"\r\n\r\n") if (at := pending.find(mark)) >= 0]
                if not ends:
                    break
                end = min(ends)
                yield pending[:end]
                pending = pending[end:]
        if pending:
            yield pending

    async def rest(self) -> bytes:
        """All raw bytes until the other side ends the connection; `ended` then tells how."""
        while await self._more():
            pass
        data = bytes(self.received[self._at :])
        self._at = len(self.received)
        return data

    async def until_closed(self) -> str:
        """Waits for the end of the connection, dropping what still comes: "fin" or "reset"."""
        await self.rest()
        assert self.ended is not None
        return self.ended

    def half_close(self) -> None:
        """Says that nothing more will be sent, and reads on."""
        self.sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Leaves with RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def close(self) -> None:
        """Leaves: with FIN, or as the kernel does with unread bytes, with RST."""
        self.sock.close()

    async def _more(self) -> bool:
        if self.ended is not None:
            return False
        try:
            async with asyncio.timeout(self.timeout_s):
                data = await asyncio.get_running_loop().sock_recv(self.sock, RECEIVE_BYTES)
        except ConnectionError:
            self.ended = "reset"
            return False
        if not data:
            self.ended = "fin"
            return False
        self.received += data
        return True

    async def _find(self, mark: bytes) -> int:
        looked = self._at
        while (found := self.received.find(mark, looked)) < 0:
            looked = max(self._at, len(self.received) - len(mark) + 1)
            if not await self._more():
                raise EOFError(self.ended)
        return found

    async def _exactly(self, size: int) -> bytes:
        while len(self.received) < self._at + size:
            if not await self._more():
                raise EOFError(self.ended)
        data = bytes(self.received[self._at : self._at + size])
        self._at += size
        return data
