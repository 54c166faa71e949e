"""H01 to H22: is every hostile request refused, or read as exactly one request? The corpus, replayed whole over real sockets."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.reliability.corpora import Sent, cases, corpus
from tests.reliability.files import one
from tests.reliability.watch import Watch, watched
from tests.wire import EVIL, NEXT, A, J, RawClient, Response, ScriptedBackend, post, scripts


async def answers(caller: RawClient) -> list[Response]:
    """All answers until the other side closes."""
    found: list[Response] = []
    try:
        while True:
            found.append(await caller.response())
    except (EOFError, ConnectionError):
        return found


async def replay(proxy: Watch, entry: Sent) -> None:
    """Send it with NEXT behind it on the same connection, and hold what comes against its verdict."""
    async with await proxy.connect() as caller:
        await caller.send(entry.raw + (NEXT if entry.more.get("then", True) else b""))
        got = await asyncio.wait_for(answers(caller), 5.0)
    statuses = [answer.status for answer in got]
    allowed = set(entry.more.get("statuses", [400]))
    refused = len(statuses) == 1 and statuses[0] in allowed | {400} and got[0].header("connection") == "close"
    served = statuses == [200, 200] and got[1].body.startswith(b'{"object":"list"')
    shown = f"{entry.id}: {statuses}"
    match entry.verdict:
        case "refused":
            assert refused and statuses[0] in allowed, shown
        case "served":
            assert served, shown
        case "either":
            assert refused or served, shown
        case "last":
            assert statuses == [200], shown  # answered, then closed
        case "answered":
            assert statuses[0] in allowed and (len(statuses) == 1 or statuses[1:] == [200]), shown
        case "second":  # a good request, and what stands behind it is refused
            assert statuses[0] in (200, 400) and statuses[1] in allowed and statuses[2:] in ([], [200]), shown
        case _:
            raise AssertionError(f"no such verdict: {entry.verdict}")
    assert all(b"canary" not in answer.body for answer in got), f"{entry.id}: raw echo"


@pytest.mark.parametrize("case", cases("requests"))
async def test_each_hostile_request_is_refused_or_read_as_exactly_one(case: str) -> None:
    async with ScriptedBackend() as backend, watched(one(backend), backend) as proxy:
        entries = [entry for entry in corpus("requests") if entry.case == case]
        proxy.fairlane.door.limits = replace(proxy.fairlane.door.limits, head_s=1.0)  # what never becomes a head ends soon
        for entry in entries:
            await replay(proxy, entry)
        refused = sum(entry.verdict == "refused" for entry in entries)
        lines = await proxy.logged(int(await proxy.metric("fairlane_requests_total")))
        assert sum(line["outcome"] in ("malformed", "too_large", "unsupported") for line in lines) >= refused
        assert await proxy.metric("fairlane_requests_total", outcome="malformed") == proxy.outcomes()["malformed"]
        if case == "H15":
            assert {line["tenant"] for line in lines} <= {"A", ""} and "slow" not in {line["lane"] for line in lines}, "no trailer moves it"


async def test_h01_a_second_framing_field_behind_the_first_costs_the_connection_within_a_second() -> None:
    async with ScriptedBackend() as backend, watched(one(backend), backend) as proxy, await proxy.connect(timeout_s=1.0) as caller:
        await caller.send(corpus("requests")[0].raw)
        assert (await caller.response()).status == 400
        assert await caller.until_closed() == "fin"
        assert backend.connections == []


async def test_h21_a_continue_comes_once_to_who_is_admitted_and_the_next_request_is_read_rightly() -> None:
    expecting = A + b"Expect: 100-continue\r\nContent-Length: 57\r\n\r\n"
    async with ScriptedBackend() as backend, watched(one(backend), backend) as proxy:
        async with await proxy.connect() as caller:
            await caller.send(expecting)
            assert (await caller.head()).status == 100
            await caller.send(J + NEXT)
            assert [answer.status for answer in await answers(caller)] == [200, 200]
        async with await proxy.connect() as caller:  # the body comes at once
            await caller.send(expecting + J + NEXT)
            assert [answer.status for answer in await answers(caller)] == [200, 200]
        for raw, status in (
            (expecting.replace(b"sk-A", b"sk-no"), 401),
            (expecting.replace(b"100-continue", b"200-ok"), 417),
            (expecting.replace(b"Content-Length: 57", b"Content-Length: 999999999"), 413),
        ):
            async with await proxy.connect() as caller:
                await caller.send(raw)
                (answer,) = await answers(caller)
                assert (answer.status, answer.interim) == (status, [])
        async with await proxy.connect() as caller:
            (answer,) = [await caller.ask(expecting.replace(b"HTTP/1.1", b"HTTP/1.0") + J)]
            assert (answer.status, answer.interim) == (200, [])


async def test_h22_a_request_behind_a_refused_one_is_read_from_its_own_beginning() -> None:
    """429 and 503: the body was read to its end, so that the connection goes on."""
    async with ScriptedBackend(scripts.hang(), named={"alive": (scripts.ok(),)}) as backend:
        async with watched(one(backend, cap=1, pool=", queue: {places: 0}"), backend) as proxy:
            async with await proxy.connect() as holds, await proxy.connect() as caller:
                await holds.send(post())
                await backend.seen(1)
                await caller.send(A + b"Content-Length: %d\r\n\r\n" % len(EVIL_JSON) + EVIL_JSON + NEXT)
                assert [answer.status for answer in await answers(caller)] == [429, 200]
            assert len(backend.requests) == 1


EVIL_JSON = b'{"messages":[],"x":"' + EVIL.replace(b"\r\n", b"  ") + b'"}'


async def test_h24_hop_by_hop_fields_and_what_connection_names_pass_neither_way() -> None:
    hops = {"Keep-Alive": "9", "Proxy-Connection": "x", "TE": "trailers", "Trailer": "x-t", "X-Foo": "1", "Proxy-Authenticate": "Basic"}
    async with ScriptedBackend() as backend, watched(one(backend), backend) as proxy:
        backend.then(scripts.raw(scripts.answer("ok", headers={"Connection": "keep-alive, X-Foo", "X-Kept": "1", **hops})))
        sent = {"Connection": "keep-alive, X-Foo", "Proxy-Authorization": "Basic x", "X-Kept": "1", **hops}
        async with await proxy.connect() as caller:
            answer = await caller.ask(post(headers=sent))
        seen = await backend.seen(1)
        for name in [*hops, "Proxy-Authorization"]:
            assert seen.header(name) is None and answer.header(name) is None, name
        assert seen.header("x-kept") == answer.header("x-kept") == "1"
        assert (answer.header("connection") or "keep-alive") == "keep-alive"
        async with await proxy.connect() as caller:  # what decides cannot be named away
            await caller.ask(post(headers={"Connection": "content-length, host, x-request-id, content-type"}))
        named = (await backend.seen(2)).headers
        assert {b"content-length", b"host", b"x-request-id"} <= {name for name, _ in named}
