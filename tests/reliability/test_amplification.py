"""L18: is there an input that costs us a hundred times what others do? Every input of the corpora: calls, processor time, memory.

Each is counted per byte sent. A connection and a request have a price of their own, whatever is sent, so that an input counts as at least
`LEAST_BYTES`. Calls and memory are the same in every run; processor time is the best of several.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from proxy.endpoints import Api
from proxy.http1.framing import Head
from proxy.intake import Admitted
from proxy.sse import StreamWatcher, UnaryWatcher
from tests.proxy.serving import Serving, serving
from tests.reliability import heavy
from tests.reliability.corpora import corpus
from tests.reliability.files import one
from tests.reliability.fuzz import seeds
from tests.reliability.memory import Memory, taken
from tests.reliability.test_limits import COSTLY, ODD
from tests.wire import A, J, ScriptedBackend, post, scripts

LEAST_BYTES = 200  # as long as a short request
TIMES = 100.0
HEAD = Head("POST", b"/v1/chat/completions", "1.1", [(b"authorization", b"Bearer sk-A"), (b"content-type", b"application/json")])
ROUNDS = 5

Play = Callable[[], None]


def requests() -> dict[str, bytes]:
    """All that a caller may send: the corpus, costly bodies, and what takes many steps to read."""
    many = b"".join(b"x-%d: 1\r\n" % n for n in range(95))
    found = {entry.id: entry.raw for entry in corpus("requests")}
    found |= {f"body-{name}": post(body) for name, body in {**COSTLY, **ODD}.items()}
    found["good"] = post()
    found["many-fields"] = post().replace(b"Host: t\r\n", b"Host: t\r\n" + many)
    found["byte-chunks"] = A + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(b"1\r\n%c\r\n" % byte for byte in J * 100) + b"0\r\n\r\n"
    found["pipelined"] = post(path="/v1/unknown") * 200
    found["four-thousand-keys"] = post(b'{"messages":[],' + b",".join(b'"k%d":0' % n for n in range(4000)) + b"}")
    found["many-messages"] = post(b'{"messages":[' + b",".join([b'{"role":"user","content":"a"}'] * 5000) + b"]}")
    found["many-parts"] = post(b'{"messages":[{"role":"user","content":[' + b",".join([b'{"type":"text","text":"a"}'] * 5000) + b"]}]}")
    found["form"] = (
        A.replace(b"chat/completions", b"audio/transcriptions").replace(b"application/json", b"multipart/form-data; boundary=b")
        + b"Content-Length: 120000\r\n\r\n"
        + b"--b\r\n" * 24_000
    )
    return found


def bodies() -> dict[str, bytes]:
    """What may stand in a body: large ones are read apart from the door."""
    found = {**COSTLY, **ODD, "good": J, "heavy": heavy.body(0.5), "numbers": b'{"messages":[],"x":[' + b"1e308," * 20_000 + b"1]}"}
    found["escapes"] = b'{"messages":[{"role":"user","content":"' + b"\\u0061" * 20_000 + b'"}]}'
    found["tokens"] = b'{"prompt":[' + b"1," * 20_000 + b'1],"messages":[' + b"[1]," * 5000 + b"1]}"
    return found


def answers() -> dict[str, bytes]:
    """All that a backend may send."""
    found = {entry.id: entry.raw for entry in corpus("answers")}
    found["good"] = scripts.answer(scripts.chat_body(3))
    found["byte-chunks"] = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 5000 + b"0\r\n\r\n"
    found["fields"] = b"HTTP/1.1 200 OK\r\n" + b"x: 1\r\n" * 250 + b"content-length: 0\r\n\r\n"
    found["interim"] = b"HTTP/1.1 102 Processing\r\n\r\n" * 20
    return found


def streams() -> dict[str, bytes]:
    """All that may stand in a stream."""
    found = {f"seed-{n}": raw for n, raw in enumerate(seeds("streams"))}
    found["comments"] = b": ping\n\n" * 2000
    found["blank-lines"] = b"\n" * 10_000
    found["returns"] = b"\r" * 10_000
    found["empty-data"] = b"data:\n\n" * 2000
    found["names"] = b"event: x\nid: 1\nretry: 1\n" * 1000
    found["one-line"] = b"data: " + b"x" * 500_000
    found["nested"] = b'data: {"choices":' + b"[" * 20_000 + b"\n\n"
    found["usages"] = scripts.usage(5, 2) * 500
    found["errors-in-text"] = b'data: {"choices":[{"index":0,"delta":{"content":"\\"error\\":\\"usage\\""}}]}\n\n' * 500
    return found


def watch(raw: bytes) -> None:
    for api in Api:
        watcher = StreamWatcher(api)
        watcher.feed(raw)
    UnaryWatcher().feed(raw)


def calls_of(play: Play) -> int:
    """How many calls, of Python and of C?"""
    count = 0

    def counting(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counting)
    try:
        play()
    finally:
        sys.setprofile(None)
    return count


def seconds_of(play: Play) -> float:
    """The least processor time of several."""
    least = float("inf")
    for _ in range(ROUNDS):
        began = time.thread_time()
        play()
        least = min(least, time.thread_time() - began)
    return least


def bytes_of(play: Play) -> int:
    """The most memory in use at any moment, above what was before."""
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    play()
    return tracemalloc.get_traced_memory()[1] - before


@pytest.mark.parametrize("measure", [calls_of, seconds_of, bytes_of], ids=["calls", "seconds", "memory"])
@pytest.mark.parametrize("kind", ["requests", "bodies", "answers", "streams"])
async def test_l18_no_input_costs_a_hundred_times_what_others_do(kind: str, measure: Callable[[Play], float]) -> None:
    async with ScriptedBackend() as backend, serving(one(backend)) as proxy:
        reception = proxy.fairlane.service.edition.reception
        admitted = reception.admit(HEAD)
        assert isinstance(admitted, Admitted)

        def door(raw: bytes) -> None:
            connection = proxy.fairlane.door.connection()
            connection.connection_made(Memory())
            connection.data_received(raw)
            connection.connection_lost(None)

        inputs, play = {
            "requests": (requests(), door),
            "bodies": (bodies(), lambda raw: void(reception.read(raw, admitted, "id"))),
            "answers": (answers(), lambda raw: void(taken([raw], fin=True))),
            "streams": (streams(), watch),
        }[kind]
        costs: dict[str, float] = {}
        if measure is bytes_of:
            tracemalloc.start()
        try:
            for name, raw in inputs.items():
                play(raw)  # what is learnt once is not its price
                await settled(proxy)
                costs[name] = measure(lambda raw=raw: play(raw)) / max(len(raw), LEAST_BYTES)  # type: ignore[misc]
                await settled(proxy)
        finally:
            tracemalloc.stop()
        median = statistics.median(costs.values())
        dearest = sorted(costs, key=costs.__getitem__)[-3:]
        shown = {name: round(costs[name] / median, 1) for name in dearest}
        assert len(costs) > 10 and median > 0
        assert costs[dearest[-1]] < TIMES * median, shown
        print(f"L18: {kind}, {measure.__name__}: the dearest cost times the median: {shown}")


async def settled(proxy: Serving) -> None:
    """Stories whose callers have left are over."""
    while proxy.fairlane.service.stories or proxy.fairlane.service._large.jobs:
        await asyncio.sleep(0)


def void(_: object) -> None: ...
