"""H26, H27: does a broken answer of a backend ever reach a caller as if it were whole? The corpus, replayed through the whole proxy."""

from __future__ import annotations

import pytest

from tests.reliability.corpora import cases, corpus
from tests.reliability.files import one
from tests.reliability.watch import watched
from tests.wire import ScriptedBackend, scripts


@pytest.mark.parametrize("case", cases("answers"))
async def test_each_broken_answer_is_refused_or_visibly_cut(case: str) -> None:
    async with ScriptedBackend(named={"alive": (scripts.ok(),)}) as backend, watched(one(backend), backend) as proxy:
        for entry in (entry for entry in corpus("answers") if entry.case == case):
            backend.then(scripts.raw(entry.raw), *([scripts.fin()] if entry.more.get("fin") else []))
            answer = await proxy.ask()
            assert b"LEAKED" not in answer.body and answer.header("set-cookie") is None, entry.id
            if entry.verdict == "refused" or entry.more.get("not_followed"):
                assert (answer.status, answer.header("x-fairlane-reason")) == (502, "upstream_protocol"), entry.id
            else:
                assert answer.status in (200, 204), (entry.id, answer)
                assert entry.more["body"].encode().startswith(answer.body), entry.id
                assert answer.whole == (entry.verdict == "body"), (entry.id, answer)
            used = len(backend.connections)
            for _ in range(2):  # good answers between them, so that the backend is not ejected
                assert (await proxy.ask(x_script="alive")).status == 200
            assert (len(backend.connections) == used) == bool(entry.more.get("kept")), entry.id


async def test_h27_informational_answers_end_at_sixteen() -> None:
    hint = b"HTTP/1.1 102 Processing\r\n\r\n"
    async with ScriptedBackend() as backend, watched(one(backend), backend) as proxy:
        backend.then(scripts.raw(hint * 16 + scripts.answer("ok")))
        assert (await proxy.ask()).status == 200
        backend.then(scripts.raw(hint * 17 + scripts.answer("ok")))
        assert (await proxy.ask()).status == 502


async def test_t23_a_second_answer_that_comes_later_never_reaches_the_next_caller() -> None:
    leak = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nLEAKED"
    async with ScriptedBackend() as backend, watched(one(backend), backend) as proxy:
        backend.then(scripts.raw(scripts.answer("good")), scripts.delay(0.05), scripts.raw(leak))
        assert (await proxy.ask()).body == b"good"
        await backend.at_rest()
        await backend.all_closed()  # bytes that nobody asked for cost the connection
        assert b"LEAKED" not in (await proxy.ask()).body
