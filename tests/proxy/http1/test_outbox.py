"""What one turn of the loop has to send leaves together: for backends first, each caller's bytes in their order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from proxy.http1.outbox import AT_ONCE_BYTES, Outbox


class Written:
    """A transport that notes, with others, what is written."""

    def __init__(self, name: str, log: list[tuple[str, bytes]]) -> None:
        self.name = name
        self.log = log
        self.closed = False

    def write(self, data: bytes) -> None:
        if self.closed:
            raise RuntimeError("unable to perform operation; the handler is closed")
        self.log.append((self.name, data))

    def transmit(self, head: bytes, body: bytes) -> None:
        self.write(head + body)


def writer(outbox: Outbox, caller: Written) -> Callable[[bytes], None]:
    return outbox.writer(cast(asyncio.Transport, caller))


async def turn() -> None:
    """Everything that is scheduled now has run."""
    done = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(done.set_result, None)
    await done


async def test_what_is_for_backends_leaves_first_and_the_rest_in_its_order() -> None:
    log: list[tuple[str, bytes]] = []
    outbox = Outbox(asyncio.get_running_loop())
    one, two = writer(outbox, Written("one", log)), writer(outbox, Written("two", log))
    one(b"a")
    outbox.send(Written("backend", log), b"head", b"body")
    two(b"b")
    one(b"c")
    assert log == [], "not before the end of the turn"
    await turn()
    assert log == [("backend", b"headbody"), ("one", b"a"), ("two", b"b"), ("one", b"c")]
    one(b"d")
    await turn()
    assert log[-1] == ("one", b"d"), "each turn anew"


async def test_a_large_piece_leaves_at_once_behind_what_came_before_it() -> None:
    log: list[tuple[str, bytes]] = []
    outbox = Outbox(asyncio.get_running_loop())
    one = writer(outbox, Written("one", log))
    one(b"a")
    large = b"x" * (AT_ONCE_BYTES + 1)
    one(large)
    assert log == [("one", b"a"), ("one", large)]


async def test_a_caller_who_has_gone_takes_nothing_from_the_others() -> None:
    log: list[tuple[str, bytes]] = []
    outbox = Outbox(asyncio.get_running_loop())
    gone = Written("gone", log)
    writer(outbox, gone)(b"a")
    writer(outbox, Written("there", log))(b"b")
    gone.closed = True
    await turn()
    assert log == [("there", b"b")]


async def test_what_a_write_calls_back_with_leaves_in_its_order() -> None:
    """Nothing is lost and nothing sent twice, also where the callback's own piece is large and flushes."""
    log: list[tuple[str, bytes]] = []
    outbox = Outbox(asyncio.get_running_loop())

    class Answering(Written):
        def write(self, data: bytes) -> None:
            super().write(data)
            if data == b"a":
                again(large)

    large = b"x" * (AT_ONCE_BYTES + 1)
    again = writer(outbox, Answering("one", log))
    again(b"a")
    again(b"b")
    await turn()
    assert log == [("one", b"a"), ("one", b"b"), ("one", large)]
