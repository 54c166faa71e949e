"""When has a backend certainly not read what was sent to it? A kept connection that ends before any byte of an answer, on real sockets.

The backend is a blocking socket of the test's own, so that its end can be put before or after our request, without chance.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvloop

from proxy.http1.answer_head import AnswerHead
from proxy.http1.client import ENDS_AFTER_CHUNKS_S, BackendConnection, KeptConnections
from proxy.http1.faults import BackendFault
from proxy.http1.outbox import Outbox

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\ncontent-length: 2\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
RESET = struct.pack("ii", 1, 0)


class Told:
    """What came of a request."""

    def __init__(self) -> None:
        self.over = asyncio.get_running_loop().create_future()

    def head(self, head: AnswerHead, length_bytes: int | None) -> None: ...

    def whole(self, head: AnswerHead, body: bytes) -> None:
        self.head(head, len(body))
        if body:
            self.data(body)
        self.end()

    def chunk(self, chunk: bytes, start: int) -> None:
        self.data(chunk[start:-2])

    def data(self, piece: bytes) -> None: ...

    def end(self) -> None:
        self.over.set_result("answered")

    def lost(self, fault: BackendFault) -> None:
        self.over.set_result(fault)


@asynccontextmanager
async def kept(again: bool = True) -> AsyncIterator[tuple[KeptConnections, BackendConnection, socket.socket]]:
    """A connection that has answered once (unless it is a new one) and is about to be used again, and the backend's end of it."""
    listener = socket.create_server(("127.0.0.1", 0))
    loop = asyncio.get_running_loop()
    connections = KeptConnections("127.0.0.1", listener.getsockname()[1], None, loop, Outbox(loop))
    connection = await connections.connect(5.0)
    backend, _ = listener.accept()
    backend.settimeout(5.0)
    try:
        if again:
            told = Told()
            send(connection, told)
            assert backend.recv(65536).endswith(b"{}")
            backend.sendall(ANSWER)
            assert await told.over == "answered"
            taken = connections.take()
            assert taken is connection
        yield connections, connection, backend
    finally:
        connection.transport.abort()
        connections.close()
        backend.close()
        listener.close()
        await asyncio.sleep(0)


def send(connection: BackendConnection, told: Told) -> None:
    """Send a small request, and have it leave now: the backend's end is read without the loop."""
    connection.send(told, HEAD, b"{}")
    connection.kept.outbox.flush()


async def lost(connection: BackendConnection, body: bytes = b"{}") -> object:
    """Send, and wait for what comes of it."""
    told = Told()
    connection.send(told, HEAD, body)
    async with asyncio.timeout(5):
        return await told.over


LOOPS = pytest.mark.parametrize("loop", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])


def run(loop: object, story: object) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:  # type: ignore[arg-type]
        runner.run(story)  # type: ignore[arg-type]


@LOOPS
@pytest.mark.parametrize("size", [2, 4_000_000], ids=["small", "large"])
def test_f14_a_backend_that_had_closed_before_our_request_left_has_not_read_it(loop: object, size: int) -> None:
    async def story() -> None:
        async with kept() as (_, connection, backend):
            backend.close()  # its end is in our kernel, and the loop has not seen it
            assert await lost(connection, b"x" * size) is BackendFault.STALE

    run(loop, story())


@LOOPS
@pytest.mark.parametrize("by_reset", [False, True], ids=["fin", "rst"])
def test_f14_a_backend_that_read_our_request_and_then_closed_may_have_acted_on_it(loop: object, by_reset: bool) -> None:
    async def story() -> None:
        async with kept() as (_, connection, backend):
            told = Told()
            send(connection, told)
            assert backend.recv(65536).endswith(b"{}")
            if by_reset:
                backend.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            backend.close()
            async with asyncio.timeout(5):
                assert await told.over is BackendFault.RESET

    run(loop, story())


@LOOPS
def test_f14_a_reset_without_an_end_proves_nothing(loop: object) -> None:
    """Closed with our request unread in its kernel: that looks like a reset by a backend that had read it."""

    async def story() -> None:
        async with kept() as (_, connection, backend):
            told = Told()
            send(connection, told)
            assert backend.recv(1, socket.MSG_PEEK)
            backend.close()
            async with asyncio.timeout(5):
                assert await told.over is BackendFault.RESET

    run(loop, story())


@LOOPS
def test_f14_a_new_connection_is_never_replaced(loop: object) -> None:
    async def story() -> None:
        async with kept(again=False) as (_, connection, backend):
            backend.close()
            assert await lost(connection) is BackendFault.RESET

    run(loop, story())


STREAM = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"


@pytest.mark.parametrize("read", [True, False])
def test_a_backend_that_closes_after_streams_is_learnt_at_the_first_and_for_a_minute_not_used_again_after_one(read: bool) -> None:
    async def run() -> None:
        async with kept() as (connections, connection, backend):
            told = Told()
            send(connection, told)
            assert backend.recv(65536).endswith(b"{}")
            backend.sendall(STREAM)
            assert await told.over == "answered"
            assert not connections.ends_after_chunks and connections.take() is connection
            told = Told()
            send(connection, told)  # at that moment its end is on its way
            if read:
                backend.recv(65536)
            backend.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            backend.close()
            assert await told.over is BackendFault.STALE
            assert connections.ends_after_chunks
        for learnt in (True, False):
            async with kept() as (connections, connection, backend):
                connections.note_end_after_chunks()
                if not learnt:
                    connections.ends_after_chunks_until -= ENDS_AFTER_CHUNKS_S  # as if a minute had passed
                told = Told()
                send(connection, told)
                assert backend.recv(65536).endswith(b"{}")
                backend.sendall(STREAM)
                assert await told.over == "answered"
                assert connections.take() is (None if learnt else connection)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def test_an_idle_connection_that_closes_after_a_stream_is_learnt_from_and_one_that_closes_later_is_not() -> None:
    async def run() -> None:
        for late in (False, True):
            async with kept() as (connections, connection, backend):
                told = Told()
                send(connection, told)
                backend.recv(65536)
                backend.sendall(STREAM)
                assert await told.over == "answered"
                if late:
                    connection.idle_until -= 1.0  # as if it had rested for a second
                backend.close()
                while not connection.transport.is_closing():
                    await asyncio.sleep(0)
                await asyncio.sleep(0.01)
                assert connections.ends_after_chunks is not late

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
