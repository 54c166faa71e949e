"""Does an answer in chunks mean the same however it is cut, now that whole chunks pass beside the parser?"""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.http1.answer_head import AnswerHead
from proxy.http1.client import _SIZES, BackendConnection, KeptConnections
from proxy.http1.faults import BackendFault
from proxy.http1.outbox import Outbox
from tests.proxy.path import MemoryTransport

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Taken:
    """Puts an answer together: from the pieces, and from what a relay would send on."""

    def __init__(self) -> None:
        self.body = b""
        self.passed = 0  # chunks that went on as they came
        self.end_as: str | None = None

    def head(self, head: AnswerHead, length_bytes: int | None) -> None: ...

    def whole(self, head: AnswerHead, body: bytes) -> None:
        self.head(head, len(body))
        if body:
            self.data(body)
        self.end()

    def chunk(self, chunk: bytes, start: int) -> None:
        piece = chunk[start:-2]
        self.passed += 1
        assert chunk == b"%x\r\n%b\r\n" % (len(piece), piece)
        self.data(piece)

    def data(self, piece: bytes) -> None:
        assert piece, "an empty chunk would end the caller's body"
        self.body += piece

    def end(self) -> None:
        self.end_as = "whole"

    def lost(self, fault: BackendFault) -> None:
        self.end_as = fault.value


def taken(reads: list[bytes]) -> tuple[Taken, bool]:
    """What these reads are taken for, and whether the connection is kept."""
    loop = asyncio.new_event_loop()
    try:
        kept = KeptConnections("192.0.2.1", 1, None, loop, Outbox(loop))
        connection = BackendConnection(kept)
        connection.connection_made(MemoryTransport(lambda data: None))  # type: ignore[arg-type]
        answer = Taken()
        connection.send(answer, b"", b"")
        for read in reads:
            if not connection.transport.is_closing():
                connection.data_received(read)
        return answer, kept.take() is not None
    finally:
        loop.close()


def chunk(data: bytes, size: bytes | None = None) -> bytes:
    return b"%b\r\n%b\r\n" % (size if size is not None else b"%x" % len(data), data)


def cut(raw: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted({each % len(raw) for each in cuts}), len(raw)]
    return [raw[start:stop] for start, stop in pairwise(edges) if start < stop]


# Text that looks like framing: sizes, line ends, ends of bodies.
DATA = st.lists(
    st.sampled_from([b"a", b"1", b"\r\n", b"0\r\n\r\n", b"5\r\nhello\r\n", b"a\r\n0123456789\r\n", b"x" * 300]), min_size=1
).map(b"".join)


@given(st.lists(DATA, min_size=1, max_size=6), st.lists(st.integers(min_value=0), max_size=12), st.booleans())
def test_any_slices_of_good_chunks_are_the_same_answer(datas: list[bytes], cuts: list[int], upper: bool) -> None:
    sizes = [b"%X" % len(data) if upper else b"%x" % len(data) for data in datas]
    raw = HEAD + b"".join(chunk(data, size) for data, size in zip(datas, sizes, strict=True)) + b"0\r\n\r\n"
    answer, kept = taken(cut(raw, cuts))
    assert (answer.body, answer.end_as, kept) == (b"".join(datas), "whole", True)


@given(st.lists(DATA, min_size=1, max_size=6))
def test_a_read_per_chunk_goes_on_as_it_came(datas: list[bytes]) -> None:
    answer, kept = taken([HEAD + chunk(b"first"), *map(chunk, datas), b"0\r\n\r\n"])
    assert (answer.body, answer.end_as, kept) == (b"first" + b"".join(datas), "whole", True)
    assert answer.passed == sum(len(chunk(data)) < len(_SIZES) for data in datas)


@pytest.mark.parametrize(
    "reads",
    [
        [HEAD + chunk(b"first") + b"1", b"a\r\n0123456789\r\n"],  # the size 1a, cut within: its second half looks like a chunk
        [HEAD + chunk(b"first") + b"1a\r\n", b"5\r\nhello\r\n"],  # within a chunk whose data looks like one
        [HEAD, b"5\r\nhello\r\n"],  # nothing has shown yet where the first chunk begins
    ],
)
def test_what_only_looks_like_a_chunk_is_parsed(reads: list[bytes]) -> None:
    answer, _ = taken(reads)
    assert answer.passed == 0
    assert (
        answer.body
        == b"first" * (b"first" in reads[0])
        + {0: b"0123456789\r\n", 1: b"5\r\nhello\r\n", 2: b"hello"}[
            0 if reads[0].endswith(b"1") else 1 if reads[0].endswith(b"1a\r\n") else 2
        ]
    )


@pytest.mark.parametrize(
    "bad", [b"5\r\nhello!!", b"+5\r\nhello\r\n", b"0x5\r\nhello\r\n", b" 5\r\nhello\r\n", b"5_\r\nhello\r\n", b"6\r\nhello\r\n5"]
)
def test_a_broken_chunk_breaks_the_answer(bad: bytes) -> None:
    answer, kept = taken([HEAD + chunk(b"first"), chunk(b"good"), bad, chunk(b"evil")])
    assert answer.end_as == "protocol" and not kept and answer.passed == 1 and b"evil" not in answer.body


def test_the_sizes_are_right() -> None:
    for chunk_bytes, (size, size_bytes) in enumerate(_SIZES):
        if size_bytes:
            assert len(size) == size_bytes and size_bytes + int(size, 16) + 2 == chunk_bytes
    assert sum(size_bytes == 0 for _, size_bytes in _SIZES) == 8, "none, and lengths between two numbers of digits"
