"""H01 to H22: is every hostile request refused, or read as exactly one request? The corpus, replayed whole over real sockets."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.reliability.corpora import Sent, cases, corpus
from tests.reliability.files import one
from tests.reliability.watch import Watch, watched
from tests.wire import NEXT, RawClient, Response, ScriptedBackend


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
