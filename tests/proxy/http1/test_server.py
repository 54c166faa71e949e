"""Does the front door let in only what two parties must read alike, and in order?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from proxy.clock import Deadlines
from proxy.http1.exchange import Exchange, Limits
from proxy.http1.faults import CallerFault
from proxy.http1.heads import response
from proxy.http1.outbox import Outbox
from proxy.http1.server import Door
from tests.wire import EVIL, NEXT, A, J, RawClient


class Echo:
    """A service that answers each request with its method, target and body, in its own time if `held`."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, bytes, bytes]] = []
        self.faults: list[CallerFault] = []
        self.unwanted: set[bytes] = set()
        self.held = False
        self.open: list[Exchange] = []
        self.left = asyncio.Event()

    def admit(self, exchange: Exchange) -> bool:
        if exchange.head.target in self.unwanted:
            exchange.respond(response(401, [], b"", keep_alive=False))
            return False
        return True

    def begin(self, exchange: Exchange) -> None:
        self.begun.append((exchange.head.method, exchange.head.target, exchange.body))
        if self.held:
            self.open.append(exchange)
            exchange.task = asyncio.get_running_loop().create_task(self._until_left())
        else:
            self.answer(exchange)

    def answer(self, exchange: Exchange) -> None:
        exchange.respond(response(200, [], exchange.body, keep_alive=exchange.keep_alive))

    async def _until_left(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.left.set()

    def refuse(self, exchange: Exchange, fault: CallerFault) -> None:
        self.faults.append(fault)
        exchange.respond(response(fault.status, [], b"", keep_alive=False))


class Served:
    def __init__(self, echo: Echo, door: Door, port: int) -> None:
        self.echo, self.door, self.port = echo, door, port


@asynccontextmanager
async def serving(limits: Limits | None = None) -> AsyncIterator[Served]:
    loop = asyncio.get_running_loop()
    deadlines = Deadlines(loop)
    deadlines.start()
    echo = Echo()
    door = Door(echo, limits or Limits(), loop, deadlines, Outbox(loop))
    server = await loop.create_server(door.connection, "127.0.0.1", 0)
    try:
        yield Served(echo, door, server.sockets[0].getsockname()[1])
    finally:
        deadlines.stop()
        server.close()
        door.abort()
        await server.wait_closed()


POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\n"
GET = b"GET /v1/models HTTP/1.1\r\nHost: t\r\n\r\n"
LENGTH = b"Content-Length: 57\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"


def bad_requests() -> Iterator[tuple[str, bytes]]:
    """Name (the catalogue's case), and bytes that must be refused with nothing of them taken for a request."""
    smuggled = b"0\r\n\r\n" + EVIL
    yield "H01-cl-te", A + b"Content-Length: 38\r\n" + CHUNKED + smuggled
    yield "H01-te-cl", A + b"Transfer-Encoding: chunked\r\nContent-Length: 38\r\n\r\n" + smuggled
    yield "H02", A + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n21\r\n" + EVIL + b"\r\n0\r\n\r\n"
    for one, other in ((b"57", b"90"), (b"57", b"57"), (b"1", b"0")):
        yield f"H03-{one!r}-{other!r}", A + b"Content-Length: " + one + b"\r\nContent-Length: " + other + b"\r\n\r\n" + J
    for value in (b"+57", b"-57", b"5_7", b"0x39", b"57Z", b"", b"5 7", b"9" * 20, b"\xd9\xa5\xd9\xa7", b"57\x00", b"57, 57", b"57, 90"):
        yield f"H05-{value!r}", A + b"Content-Length: " + value + b"\r\n\r\n" + J
    for field in (b"Content-Length : 57", b"Content-Length\t: 57", b"Content-Length\x85: 57", b": x", b"NoColon", b"X Y: 1"):
        yield f"H06-{field!r}", A + field + b"\r\n\r\n" + J
    for coding in (
        b"xchunked",
        b"chunked, gzip",
        b"gzip, chunked",
        b"chunked, chunked",
        b",chunked",
        b"identity",
        b'"chunked"',
        b"\x0bchunked",
    ):
        yield f"H07-{coding!r}", A + LENGTH + b"Transfer-Encoding: " + coding + b"\r\n\r\n" + J
        yield f"H07-alone-{coding!r}", A + b"Transfer-Encoding: " + coding + b"\r\n\r\n" + J
    yield "H07-two-lines", A + b"Transfer-Encoding: chunked\r\n" + CHUNKED + b"0\r\n\r\n"
    yield "H08-te", A + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n"
    yield "H08-x", A + b"X-A: b\r\n\tContent-Length: 57\r\n\r\n" + J
    yield "H09-bare-lf", GET.replace(b"\r\n", b"\n")
    yield "H09-in-line", b"GET /\nHTTP/1.1\r\nHost: t\r\n\r\n"
    yield "H10-cr", POST + b"X-Abc: \rxTransfer-Encoding: chunked\r\n\r\n"
    yield "H10-nul", POST + b"X-A: v\x00alue\r\nContent-Length: 0\r\n\r\n"
    for size in (b"0x39", b"-0x0", b"+39", b"-1", b"3_9", b"", b"F" * 17, b"39G", b" 39", b"39 "):
        yield f"H11-{size!r}", A + CHUNKED + size + b"\r\n" + J + b"\r\n0\r\n\r\n"
    for line in (b"39\n", b"39\r", b"39;\n", b"39;a\nb\r\n"):
        yield f"H12-{line!r}", A + CHUNKED + line + J + b"\r\n0\r\n\r\n"
    yield "H13", A + CHUNKED + b"5\r\nhello!!\r\n0\r\n\r\n"
    for version in (b"HTTP/0.9", b"HTTP/1.2", b"HTTP/2.0", b"http/1.1", b"HTTP/01.1", b"HTTP/1.32"):
        yield f"H16-{version!r}", b"GET /v1/models " + version + b"\r\nHost: t\r\n\r\n"
    yield "H16-h2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    yield "H16-tls", bytes.fromhex("16030100c8010000c40303") + bytes(190)
    yield "H17-1.0-chunked", b"POST /v1/x HTTP/1.0\r\n" + CHUNKED + b"0\r\n\r\n"
    for target in (b"*", b"haproxy.org:80", b"admin", b"/a b", b"/v1/models#f", b"http://other.example/v1/models", b"/\x00", b"/\x80"):
        yield f"H18-{target!r}", b"GET " + target + b" HTTP/1.1\r\nHost: t\r\n\r\n"
    yield "H18-connect", b"CONNECT evil:443 HTTP/1.1\r\nHost: t\r\n\r\n"
    yield "H18-method", b"A" * 1000 + b" / HTTP/1.1\r\nHost: t\r\n\r\n"
    yield "H19-no-host", b"GET /v1/models HTTP/1.1\r\n\r\n"
    for hosts in (b"t\r\nHost: t", b"a, b", b"", b"user@t", b"t/x", b"x" * 10000):
        yield f"H19-{hosts[:20]!r}", b"GET /v1/models HTTP/1.1\r\nHost: " + hosts + b"\r\n\r\n"
    yield "auth-twice", A + b"Authorization: Bearer sk-B\r\nContent-Length: 0\r\n\r\n"
    yield "lane-twice", A + b"x-fairlane-lane: fast\r\nX-Fairlane-Lane: slow\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize(("name", "raw"), [pytest.param(n, r, id=n) for n, r in bad_requests()])
async def test_refuses_what_is_ambiguous_and_closes(name: str, raw: bytes) -> None:
    async with serving() as served, await RawClient.connect(served.port) as caller:
        await caller.send(raw + NEXT)
        answer = await caller.response()
        assert answer.status in (400, 414, 431, 501)
        await caller.until_closed()
        assert bytes(caller.received).count(b"HTTP/1.1 ") == 1, "nothing behind it is answered"
        assert served.echo.begun == []


@pytest.mark.parametrize("name", ["H01-cl-te", "H11-b'39G'", "H13", "H19-no-host"])
async def test_h28_the_verdict_does_not_depend_on_slicing(name: str) -> None:
    raw = dict(bad_requests())[name]
    async with serving() as served:
        for cut in range(1, len(raw), 7):
            async with await RawClient.connect(served.port) as caller:
                await caller.send(raw[:cut])
                await caller.send(raw[cut:])
                assert (await caller.response()).status == 400
        async with await RawClient.connect(served.port) as caller:
            try:
                await caller.send_sliced(raw)
            except OSError:
                pass  # refused before its last byte
            assert (await caller.response()).status == 400
        assert served.echo.begun == []


async def test_reads_bodies_of_both_framings_whole_and_in_slices() -> None:
    chunked = POST + CHUNKED + b"1C;ext=1\r\n" + J[:28] + b"\r\n1d\r\n" + J[28:] + b"\r\n0\r\nX-T: 1\r\n\r\n"
    async with serving() as served:
        for raw in (POST + LENGTH + b"\r\n" + J, chunked):
            for size in (1, 3, len(raw)):
                async with await RawClient.connect(served.port) as caller:
                    await caller.send_sliced(raw, size)
                    assert (await caller.response()).body == J
        assert {begun[2] for begun in served.echo.begun} == {J}


async def test_h20_an_upgrade_is_ignored_and_its_body_is_a_body() -> None:
    upgrade = b"GET /v1/models HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    async with serving() as served, await RawClient.connect(served.port) as caller:
        await caller.send(upgrade + b"Content-Length: %d\r\n\r\n" % len(EVIL) + EVIL + upgrade + b"\r\n" + GET)
        assert (await caller.response()).body == EVIL
        assert (await caller.response()).body == b""
        assert (await caller.response()).body == b""
        assert [b[1] for b in served.echo.begun] == [b"/v1/models"] * 3
        await caller.send_sliced(upgrade + b"Content-Length: %d\r\n\r\n" % len(EVIL) + EVIL)
        assert (await caller.response()).body == EVIL


async def test_l11_pipelined_requests_are_answered_in_order_one_at_a_time() -> None:
    async with serving() as served, await RawClient.connect(served.port) as caller:
        served.echo.held = True
        count = 50
        await caller.send(b"".join(POST + b"Content-Length: 2\r\n\r\n%02d" % n for n in range(count)))
        for n in range(count):
            while not served.echo.open:
                await asyncio.sleep(0)
            assert len(served.echo.open) == 1, "one in progress"
            served.echo.answer(served.echo.open.pop())
            assert (await caller.response()).body == b"%02d" % n


async def test_l11_a_thousand_pipelined_requests_are_answered_without_recursion() -> None:
    async with serving() as served, await RawClient.connect(served.port) as caller:
        await caller.send(GET * 3000)
        for _ in range(3000):
            assert (await caller.response()).status == 200


async def test_reading_stops_beyond_the_read_ahead() -> None:
    async with serving() as served, await RawClient.connect(served.port, timeout_s=2) as caller:
        served.echo.held = True
        sent = 0
        try:
            for _ in range(4000):
                await caller.send(GET + b"\r\n" * 20000)
                sent += 40000
        except TimeoutError:
            pass
        assert sent < 40_000_000, "the socket, not our memory, holds the rest"
        (connection,) = served.door.connections
        assert connection._held_bytes < 1_000_000


async def test_malformed_behind_a_good_request_is_refused_after_its_answer() -> None:
    async with serving() as served, await RawClient.connect(served.port) as caller:
        await caller.send(GET + b"BAD\r\n\r\n" + NEXT)
        assert (await caller.response()).status == 200
        assert (await caller.response()).status == 400
        await caller.until_closed()
        assert len(served.echo.begun) == 1


async def test_h22_an_unread_body_is_never_taken_for_a_request() -> None:
    async with serving() as served, await RawClient.connect(served.port) as caller:
        served.echo.unwanted.add(b"/v1/chat/completions")
        await caller.send(POST + b"Content-Length: %d\r\n\r\n" % len(EVIL) + EVIL + NEXT)
        assert (await caller.response()).status == 401
        await caller.until_closed()
        assert served.echo.begun == []


async def test_h21_100_continue_comes_once_and_only_to_who_is_admitted() -> None:
    expecting = POST + b"Expect: 100-continue\r\n" + LENGTH + b"\r\n"
    async with serving() as served:
        async with await RawClient.connect(served.port) as caller:
            await caller.send(expecting)
            assert (await caller.head()).status == 100
            await caller.send(J)
            assert (await caller.response()).body == J
        served.echo.unwanted.add(b"/v1/chat/completions")
        async with await RawClient.connect(served.port) as caller:
            await caller.send(expecting)
            assert (await caller.head()).status == 401
        async with await RawClient.connect(served.port) as caller:
            await caller.send(expecting.replace(b"100-continue", b"200-ok"))
            assert (await caller.head()).status == 417


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET /" + b"a" * 8191 + b" HTTP/1.1\r\nHost: t\r\n\r\n", 200),
        (b"GET /" + b"a" * 8192 + b" HTTP/1.1\r\nHost: t\r\n\r\n", 414),
        (GET[:-2] + b"x: " + b"a" * 8000 + b"\r\n\r\n", 200),
        (GET[:-2] + b"x: " + b"a" * 8192 + b"\r\n\r\n", 431),
        (GET[:-2] + b"x: 1\r\n" * 99 + b"\r\n", 200),
        (GET[:-2] + b"x: 1\r\n" * 100 + b"\r\n", 431),
        (GET[:-2] + (b"x: " + b"a" * 8000 + b"\r\n") * 5 + b"\r\n", 431),
        (GET[:-2] + b"x: " + b"a" * 100_000, 431),
        (b"POST /x HTTP/1.1\r\nHost: t\r\nContent-Length: 1000\r\n\r\n" + b"a" * 1000, 200),
        (b"POST /x HTTP/1.1\r\nHost: t\r\nContent-Length: 1001\r\n\r\n", 413),
        (b"POST /x HTTP/1.1\r\nHost: t\r\n" + CHUNKED + b"3e9\r\n" + b"a" * 1001 + b"\r\n0\r\n\r\n", 413),
    ],
)
@pytest.mark.parametrize("slice_bytes", [100, 1_000_000])
async def test_l04_l05_limits_hold_at_the_limit_and_one_beyond(raw: bytes, status: int, slice_bytes: int) -> None:
    async with serving(Limits(body_bytes=1000)) as served, await RawClient.connect(served.port) as caller:
        try:
            await caller.send_sliced(raw, slice_bytes)
        except OSError:
            pass
        assert (await caller.response()).status == status


async def test_l01_a_trickle_does_not_reset_the_deadline_of_the_head() -> None:
    async with serving(Limits(head_s=0.5)) as served, await RawClient.connect(served.port) as caller:
        await caller.send(b"GET /v1/models HTTP/1.1\r\nX: ")
        ended = asyncio.ensure_future(caller.response())
        while not ended.done():
            try:
                await caller.send(b"x")
            except OSError:
                break
            await asyncio.sleep(0.05)
        assert (await ended).status == 408
        assert served.echo.faults == [CallerFault.SLOW]


async def test_l02_a_body_that_stops_coming_is_given_up() -> None:
    async with serving(Limits(body_idle_s=0.3)) as served, await RawClient.connect(served.port) as caller:
        await caller.send(POST + LENGTH + b"\r\n" + J[:5])
        assert (await caller.response()).status == 408
        assert served.echo.begun == []


async def test_l03_an_idle_connection_closes_in_silence() -> None:
    async with serving(Limits(keep_alive_s=0.2)) as served, await RawClient.connect(served.port) as caller:
        assert (await caller.ask(GET)).status == 200
        assert await caller.until_closed() == "fin"


@pytest.mark.parametrize("manner", ["close", "reset", "half_close"])
async def test_c01_who_leaves_is_noticed_at_once(manner: str) -> None:
    async with serving() as served:
        served.echo.held = True
        caller = await RawClient.connect(served.port)
        await caller.send(GET)
        while not served.echo.open:
            await asyncio.sleep(0)
        getattr(caller, manner)()
        async with asyncio.timeout(1):
            await served.echo.left.wait()
        caller.close()


async def test_http_1_0_closes_unless_it_asks_to_stay() -> None:
    async with serving() as served:
        async with await RawClient.connect(served.port) as caller:
            assert (await caller.ask(b"GET /v1/models HTTP/1.0\r\n\r\n")).status == 200
            assert await caller.until_closed() == "fin"
        async with await RawClient.connect(served.port) as caller:
            for _ in range(2):
                assert (await caller.ask(b"GET /v1/models HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")).status == 200


async def test_draining_closes_idle_connections_and_each_other_after_its_answer() -> None:
    async with serving() as served:
        served.echo.held = True
        idle, busy = await RawClient.connect(served.port), await RawClient.connect(served.port)
        await busy.send(GET)
        while not served.echo.open:
            await asyncio.sleep(0)
        served.door.drain()
        served.echo.open[0].keep_alive = False
        served.echo.answer(served.echo.open[0])
        assert (await busy.response()).status == 200
        assert await busy.until_closed() == "fin"
        assert await idle.until_closed() == "fin"
        idle.close()
        busy.close()


@pytest.mark.parametrize("by", ["the door", "the exchange"])
async def test_closing_at_once_takes_back_nothing_that_was_said(by: str) -> None:
    """Pieces leave when the turn of the loop is over: an end in the same turn waits for them."""
    async with serving() as served:
        served.echo.held = True
        async with await RawClient.connect(served.port) as caller:
            await caller.send(GET)
            while not served.echo.open:
                await asyncio.sleep(0)
            (exchange,) = served.echo.open
            exchange.start(response(200, [], b"said", keep_alive=True))
            (served.door if by == "the door" else exchange).abort()
            assert (await caller.response()).body == b"said"
            await caller.until_closed()
