"""Does the path of a request stay as short as it is? Counted in calls, which no other load on the machine changes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import uvloop

from tests.proxy.path import ANSWER, PLAIN, STREAMED, calls_per_chunk, calls_per_request, garbage_per_request, stream_of

# What was counted when the ceiling was last set, and a twentieth above it. Lower them with the counts; raise them with a reason.
PLAIN_CALLS_MAX = 254
CHUNK_CALLS_MAX = 15  # from the socket read to the write, once the relay has it


def on_the_servers_loop(what: Coroutine[object, object, float]) -> float:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(what)


def test_a_short_request_costs_no_more_calls_than_agreed() -> None:
    assert on_the_servers_loop(calls_per_request()) <= PLAIN_CALLS_MAX


def test_a_chunk_costs_a_search_and_a_write() -> None:
    assert on_the_servers_loop(calls_per_chunk()) <= CHUNK_CALLS_MAX


def test_a_request_leaves_nothing_to_the_collector() -> None:
    assert on_the_servers_loop(garbage_per_request(PLAIN, [ANSWER], b"}")) < 1
    assert on_the_servers_loop(garbage_per_request(STREAMED, stream_of(5), b"0\r\n\r\n")) < 1
