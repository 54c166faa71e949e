"""Is a head that came before taken as read, and is everything else read as if none had come before?"""

from __future__ import annotations

import asyncio

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.http1.answer_head import AnswerHead
from proxy.http1.client import BackendConnection, KeptConnections
from proxy.http1.exchange import Limits
from proxy.http1.faults import BackendFault
from proxy.http1.framing import Head
from proxy.http1.known_head import KnownHead
from proxy.http1.outbox import Outbox
from tests.proxy.http1.test_server import GET, POST, bad_requests, serving
from tests.proxy.path import MemoryTransport
from tests.wire import A, J, RawClient


def request(body: bytes, *fields: bytes, length: bytes | None = None) -> bytes:
    """A POST with its length in the middle of its fields, as SDKs send it."""
    lines = b"".join(field + b"\r\n" for field in fields)
    return POST + b"Content-Length: %b\r\n" % (length or b"%d" % len(body)) + b"X-Last: 1\r\n" + lines + b"\r\n" + body


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The bytes that were given to the parser since."""
    fed: list[bytes] = []
    parser = httptools.HttpRequestParser

    class Counted:
        def __init__(self, protocol: object) -> None:
            self._parser = parser(protocol)

        def feed_data(self, data: bytes) -> None:
            fed.append(bytes(data))
            self._parser.feed_data(data)

        def __getattr__(self, name: str) -> object:
            return getattr(self._parser, name)

    monkeypatch.setattr("httptools.HttpRequestParser", Counted)
    return fed


async def ask(caller: RawClient, *pieces: bytes) -> bytes:
    for piece in pieces:
        await caller.send(piece)
    answer = await caller.response()
    assert answer.status == 200
    return answer.body


async def test_the_second_of_the_same_heads_is_not_parsed(parsed: list[bytes]) -> None:
    async with serving() as served, await RawClient.connect(served.port) as caller:
        for body in (b"{}", b"{}", b"x" * 1000, b"", b"y" * 70_000):
            assert await ask(caller, request(body)) == body
        assert parsed == [request(b"{}")]
        assert [body for _, _, body in served.echo.begun] == [b"{}", b"{}", b"x" * 1000, b"", b"y" * 70_000]


async def test_its_body_may_come_later_and_in_pieces(parsed: list[bytes]) -> None:
    async with serving() as served, await RawClient.connect(served.port) as caller:
        await ask(caller, request(b"{}"))
        whole = request(b"x" * 3000)
        for cut in (len(whole) - 3000, len(whole) - 2999, len(whole) - 1):
            assert await ask(caller, whole[:cut], whole[cut:]) == b"x" * 3000
        assert await ask(caller, request(b"z")) == b"z"
        assert len(parsed) == 1
        await caller.send(whole[:-1500])
        await caller.send(whole[-1500:] + request(b"next"))  # what stands behind it is the next one
        assert (await caller.response()).body == b"x" * 3000
        assert (await caller.response()).body == b"next"


async def test_a_head_cut_anywhere_is_read_as_ever() -> None:
    async with serving() as served, await RawClient.connect(served.port) as caller:
        await ask(caller, request(b"{}"))
        whole = request(b"abc")
        for cut in range(1, len(whole)):
            assert await ask(caller, whole[:cut], whole[cut:]) == b"abc"


@pytest.mark.parametrize("name", [name for name, _ in bad_requests()])
async def test_what_is_refused_is_refused_behind_a_known_head(name: str) -> None:
    raw = dict(bad_requests())[name]
    async with serving() as served:
        for before in (A + b"Content-Length: 57\r\n\r\n" + J, request(b"{}")):
            async with await RawClient.connect(served.port) as caller:
                await ask(caller, before)
                try:
                    await caller.send(raw)
                except OSError:
                    pass
                assert (await caller.response()).status in (400, 414, 431, 501)
        assert len(served.echo.begun) == 2


@pytest.mark.parametrize("length", [b"+2", b"-2", b"0x2", b"2 2", b"", b"9" * 19, b"2\r\nContent-Length: 2", "٢".encode(), b"2,2"])
async def test_another_spelling_of_the_length_is_not_known(length: bytes) -> None:
    async with serving() as served, await RawClient.connect(served.port) as caller:
        await ask(caller, request(b"{}"))
        await caller.send(request(b"{}", length=length or b" "))
        assert (await caller.response()).status == 400
        assert len(served.echo.begun) == 1


async def test_the_limit_of_the_body_holds() -> None:
    async with serving(Limits(body_bytes=100)) as served, await RawClient.connect(served.port) as caller:
        await ask(caller, request(b"x" * 100))
        await caller.send(request(b"x" * 101))
        assert (await caller.response()).status == 413


async def test_more_than_its_body_is_the_next_request() -> None:
    async with serving() as served, await RawClient.connect(served.port) as caller:
        await ask(caller, request(b"{}"))
        await caller.send(request(b"one") + request(b"two") + request(b"three"))
        assert [(await caller.response()).body for _ in range(3)] == [b"one", b"two", b"three"]


async def test_what_comes_behind_a_known_one_while_it_is_answered_is_not_forgotten() -> None:
    async with serving() as served, await RawClient.connect(served.port) as caller:
        await ask(caller, request(b"{}"))
        served.echo.held = True
        await caller.send(request(b"one"))
        while not served.echo.open:
            await asyncio.sleep(0.001)
        await caller.send(GET + request(b"two"))
        (connection,) = served.door.connections
        while not connection._held:
            await asyncio.sleep(0.001)
        served.echo.held = False
        served.echo.answer(served.echo.open.pop())
        assert [(await caller.response()).body for _ in range(3)] == [b"one", b"", b"two"]


async def test_two_unknown_ones_behind_a_known_one_are_both_answered() -> None:
    async with serving() as served, await RawClient.connect(served.port) as caller:
        for body in (b"{}", b"{}"):
            await ask(caller, request(body))
        await caller.send(GET + GET + request(b"last"))
        assert [(await caller.response()).body for _ in range(3)] == [b"", b"", b"last"]


async def test_a_drain_while_a_known_one_is_answered_closes_behind_it() -> None:
    async with serving() as served, await RawClient.connect(served.port) as caller:
        await ask(caller, request(b"{}"))
        served.echo.held = True
        await caller.send(request(b"one"))
        while not served.echo.open:
            await asyncio.sleep(0.001)
        served.door.drain()
        served.echo.answer(served.echo.open.pop())
        assert (await caller.response()).body == b"one"
        assert await caller.until_closed() == "fin"


@pytest.mark.parametrize("before", [True, False])
async def test_behind_a_known_one_nothing_is_taken_up_while_its_caller_does_not_read(before: bool) -> None:
    async with serving() as served, await RawClient.connect(served.port) as caller:
        await ask(caller, request(b"{}"))
        (connection,) = served.door.connections
        served.echo.held = True
        if before:
            connection.pause_writing()
        await caller.send(request(b"one"))
        while not served.echo.open:
            await asyncio.sleep(0.001)
        if not before:
            connection.pause_writing()
        served.echo.answer(served.echo.open.pop())
        await caller.send(request(b"two"))
        assert (await caller.response()).body == b"one"
        while not connection._held:
            await asyncio.sleep(0.001)
        assert len(served.echo.begun) == 2
        served.echo.held = False
        connection.resume_writing()
        assert (await caller.response()).body == b"two"


async def test_another_head_between_is_no_trouble() -> None:
    async with serving() as served, await RawClient.connect(served.port) as caller:
        for fields in ((), (b"X-Other: 1",), (), (b"X-Other: 2", b"X-More: 3")):
            assert await ask(caller, request(b"a", *fields)) == b"a"
            assert await ask(caller, request(b"bb", *fields)) == b"bb"
        await caller.send(GET)
        assert (await caller.response()).status == 200
        assert await ask(caller, request(b"c")) == b"c"


async def test_who_leaves_within_the_body_of_a_known_head_is_gone() -> None:
    async with serving() as served:
        async with await RawClient.connect(served.port) as caller:
            await ask(caller, request(b"{}"))
            await caller.send(request(b"x" * 10)[:-5])
        async with await RawClient.connect(served.port) as caller:
            assert await ask(caller, request(b"{}")) == b"{}"
        assert len(served.echo.begun) == 2


async def test_a_known_head_that_is_refused_now_is_refused() -> None:
    async with serving() as served:
        for pieces in ([request(b"{}")], [request(b"x" * 10)[:-5]]):
            served.echo.unwanted.clear()
            async with await RawClient.connect(served.port) as caller:
                await ask(caller, request(b"{}"))
                served.echo.unwanted.add(b"/v1/chat/completions")
                for piece in pieces:
                    await caller.send(piece)
                assert (await caller.response()).status == 401


@pytest.mark.parametrize("field", [b"Expect: 100-continue", b"Upgrade: x\r\nConnection: upgrade"])
async def test_a_head_that_asks_for_more_than_an_answer_is_read_each_time(field: bytes, parsed: list[bytes]) -> None:
    async with serving() as served, await RawClient.connect(served.port) as caller:
        await ask(caller, request(b"{}", field))
        await ask(caller, request(b"{}", field))
        assert len(parsed) == 2


def test_only_a_whole_head_with_its_length_is_learnt() -> None:
    head = Head("POST", b"/", "1.1", [(b"content-length", b"2")])
    head.content_length = 2
    assert KnownHead.learn(b"POST / HTTP/1.1\r\nContent-Length: 2\r\n", head) is None, "its end is not there"
    assert KnownHead.learn(b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", head) is None, "not the head that was read"
    assert KnownHead.learn(b"POST / HTTP/1.1\r\nX: 2\r\n\r\nab", head) is None, "no length"
    known = KnownHead.learn(b"POST / HTTP/1.1\r\ncontent-LENGTH:  2\r\n\r\n{}", head)
    assert known is not None and known.begun(b"POST / HTTP/1.1\r\ncontent-LENGTH:  17\r\n\r\nab") == (17, b"ab")


@given(st.binary(max_size=12), st.sampled_from([b"0", b"1", b"2", b"7", b"12", b"007", b"+2", b"", b"2 ", b"9" * 19]), st.integers(0, 30))
def test_whole_is_what_has_as_many_bytes_as_it_says(body: bytes, digits: bytes, cut: int) -> None:
    head = Head("POST", b"/", "1.1", [(b"content-length", b"2")])
    head.content_length = 2
    known = KnownHead.learn(b"POST / HTTP/1.1\r\ncontent-length: 2\r\nx: 1\r\n\r\n{}", head)
    assert known is not None
    data = b"POST / HTTP/1.1\r\ncontent-length: " + digits + b"\r\nx: 1\r\n\r\n" + body
    assert known.whole(data) == (body if digits == b"%d" % len(body) else None)
    assert known.whole(data[: len(data) - len(body) - 1 - cut] + body) is None, "not all of the head is there"


def test_a_number_is_no_length_where_the_head_goes_on_otherwise() -> None:
    head = Head("POST", b"/", "1.1", [(b"content-length", b"2")])
    head.content_length = 2
    known = KnownHead.learn(b"POST / HTTP/1.1\r\ncontent-length: 2\r\nx: 1\r\n\r\n{}", head)
    assert known is not None
    for number in range(100):
        assert known.whole(b"POST / HTTP/1.1\r\ncontent-length: %d " % number) is None


# --- answers ------------------------------------------------------------------------------------------------------------


class Taken:
    """Who takes in answers: their heads' status and length, their bytes, and how each ended."""

    def __init__(self) -> None:
        self.told: list[tuple[str, object]] = []
        self.heads: list[AnswerHead] = []

    def head(self, head: AnswerHead, length_bytes: int | None) -> None:
        self.heads.append(head)
        self.told.append(("head", (head.status, length_bytes)))

    def whole(self, head: AnswerHead, body: bytes) -> None:
        self.head(head, len(body))
        if body:
            self.data(body)
        self.end()

    def chunk(self, chunk: bytes, start: int) -> None:
        self.data(chunk[start:-2])

    def data(self, piece: bytes) -> None:
        self.told.append(("data", piece))

    def end(self) -> None:
        self.told.append(("end", None))

    def lost(self, fault: BackendFault) -> None:
        self.told.append(("lost", fault))


def answer(body: bytes, *fields: bytes, status: bytes = b"200 OK") -> bytes:
    lines = b"".join(field + b"\r\n" for field in (b"Server: x", b"Content-Length: %d" % len(body), *fields))
    return b"HTTP/1.1 %b\r\n%b\r\n%b" % (status, lines, body)


async def answers(kept: KeptConnections, *answers: tuple[bytes, ...]) -> Taken:
    """These answers on one connection, each in these reads."""
    taken = Taken()
    connection = BackendConnection(kept)
    connection.connection_made(MemoryTransport(lambda data: None))  # type: ignore[arg-type]
    for reads in answers:
        connection.send(taken, b"", b"")
        for read in reads:
            connection.data_received(read)
    return taken


def connections() -> KeptConnections:
    loop = asyncio.get_running_loop()
    return KeptConnections("192.0.2.1", 1, None, loop, Outbox(loop))


async def test_the_second_of_the_same_answer_heads_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = connections()
    first = await answers(kept, (answer(b"one"),), (answer(b"longer"),), (answer(b""),))
    assert first.told == [
        ("head", (200, 3)), ("data", b"one"), ("end", None),
        ("head", (200, 6)), ("data", b"longer"), ("end", None),
        ("head", (200, 0)), ("end", None),
    ]  # fmt: skip
    assert first.heads[0] is first.heads[1] is first.heads[2]
    other = await answers(kept, (answer(b"from another connection"),))
    assert other.heads[0] is first.heads[0] and other.told[0] == ("head", (200, 23))


@pytest.mark.parametrize(
    "second",
    [
        (answer(b"two")[:-1], answer(b"two")[-1:]),  # in two reads
        (answer(b"two")[:20], answer(b"two")[20:]),
        (answer(b"two", b"X-Other: 1"),),
        (answer(b"two", b"Connection: keep-alive"),),
        (answer(b"two", status=b"404 Not Found"),),
        (b"HTTP/1.1 102 Processing\r\n\r\n" + answer(b"two"),),
    ],
)
async def test_any_other_answer_is_read_as_if_none_had_come(second: tuple[bytes, ...]) -> None:
    kept = connections()
    taken = await answers(kept, (answer(b"one"),), second, (answer(b"one"),))
    alone = await answers(connections(), second)
    assert taken.told[3:-3] == alone.told and taken.told[-3:] == taken.told[:3]
    assert b"two" in b"".join(bytes(piece) for name, piece in alone.told if name == "data" and isinstance(piece, bytes))


async def test_what_follows_an_answer_is_never_the_next_one() -> None:
    kept = connections()
    taken = await answers(kept, (answer(b"one"),), (answer(b"two") + answer(b"evil"),))
    assert [piece for name, piece in taken.told if name == "data"] == [b"one", b"two"] and kept.take() is None


async def test_a_chunked_answer_is_not_learnt() -> None:
    kept = connections()
    await answers(kept, (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n0\r\n\r\n",))
    assert kept.known is None
    await answers(kept, (answer(b"one", b"Connection: close"),))
    assert kept.known is None, "nor one that closes its connection"
    await answers(kept, (answer(b"x" * 20_000),))
    assert kept.known is None, "nor what would be held for long"
