"""Can callers add series? Each of thousands tries, with a model, key, path and user agent of its own."""

from __future__ import annotations

import asyncio
import re

import pytest

from lab.engine.engine import Engine
from tests.proxy.serving import Serving, serving
from tests.wire import RawClient, post

CONNECTIONS = 10


def file(url: str) -> str:
    return (
        "keys: [{name: A, secret: sk-A, lane: fast}, {name: B, secret: sk-B, lane: slow}]\nanonymous: {lane: slow}\n"
        f'platforms: {{p: {{probe: none, backends: {{b: {{url: "{url}", max_streams: 64}}}}}}}}\n'
        "pools: {main: {primary: p}}\n"
    )


async def series(proxy: Serving) -> set[str]:
    _, text = await proxy.admin("/metrics")
    return {line.rpartition(" ")[0] for line in text.splitlines() if line.startswith("fairlane_")}


def request(number: int) -> bytes:
    """One of four kinds: served with a model of its own, unknown key, unknown path, and a broken body; a name of its own everywhere."""
    own = f"canary-{number}"
    body = f'{{"model":"{own}","user":"{own}","max_tokens":1,"messages":[{{"role":"user","content":"hi"}}]}}'.encode()
    headers = {"User-Agent": own, "x-request-id": own, "x-fairlane-lane": own, "x-fairlane-task": own, "x-fairlane-traffic": own}
    kind = number % 4
    if kind == 0:
        return post(body, path=f"/v1/chat/completions?{own}", headers=headers)
    if kind == 1:
        return post(body, key=own, headers=headers)
    if kind == 2:
        return post(body, path=f"/v1/{own}", headers=headers)
    return post(body[:-1], path=f"/v1/chat/completions?{own}", headers=headers)


@pytest.mark.parametrize("callers", [1_000, pytest.param(10_000, marks=pytest.mark.soak)])
async def test_models_keys_paths_and_user_agents_add_no_series(callers: int) -> None:
    async with Engine(slots=64, ttft_s=0.0, tpot_s=0.0, prefill_rate=1e9).serving() as engine, serving(file(engine.url)) as proxy:
        before = await series(proxy)
        seen: set[int] = set()

        async def caller(first: int) -> None:
            connection: RawClient | None = None
            for number in range(first, callers, CONNECTIONS):
                if connection is None:
                    connection = await proxy.connect()
                answer = await connection.ask(request(number))
                seen.add(answer.status)
                if (answer.header("connection") or "").lower() == "close":
                    connection.close()
                    connection = None
            if connection is not None:
                connection.close()

        await asyncio.gather(*(caller(first) for first in range(CONNECTIONS)))
        await proxy.at_rest()
        assert seen >= {200, 400, 401, 404}
        assert await proxy.metric("fairlane_requests_total") == callers
        after = await series(proxy)
        assert after - before == set()
        assert not re.search("canary", str(after))
