"""Does the admin port show what it is told, and let only operators pull its levers?"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import make_mocked_request
from prometheus_client.parser import text_string_to_metric_families

from proxy.admin import AdminPort, ReloadResult
from proxy.telemetry.view import Check

NAMES = ("own", "own-1", "own 2")
LEVERS = (
    "/-/reload",
    "/-/drain/own",
    "/-/undrain/own",
    "/-/serve/chat/own",
    "/-/unpin/chat",
    "/-/cap/own-1/4",
    "/-/uncap/own-1",
    "/-/cancel/req-1",
)


class Pulled:
    """Levers that note who pulled them, and know a few names."""

    def __init__(self, pulled: list[str]) -> None:
        self.pulled = pulled

    def _pull(self, lever: str, *names: str) -> str:
        if names[0] not in (*NAMES, "chat", "req-1"):
            raise KeyError("no such name; there are: own, own 2, own-1")
        if names[-1] == "many":
            raise ValueError("a cap is a whole number of streams")
        self.pulled.append(" ".join((lever, *names)))
        return f"{names[0]}: done"

    def drain(self, name: str, /) -> str:
        return self._pull("drain", name)

    def undrain(self, name: str, /) -> str:
        return self._pull("undrain", name)

    def serve(self, pool: str, platform: str, /) -> str:
        return self._pull("serve", pool, platform)

    def unpin(self, pool: str, /) -> str:
        return self._pull("unpin", pool)

    def cap(self, backend: str, streams: str, /) -> str:
        return self._pull("cap", backend, streams)

    def uncap(self, backend: str, /) -> str:
        return self._pull("uncap", backend)

    def cancel(self, request_id: str, /) -> str:
        return self._pull("cancel", request_id)


class House:
    """What an admin port is attached to, and what was done to it."""

    def __init__(self, token: str | None = None) -> None:
        self.token = token
        self.checks = [Check("accepting"), Check("backends"), Check("pool chat", "no platform in service", needed=False)]
        self.pulled: list[str] = []
        self.result = ReloadResult(True, warnings=["f.yaml:3:1: pools.chat: caps below demand"])
        self.url = ""
        self.session: ClientSession
        self.admin = AdminPort(
            state=self.state,
            ready=lambda: self.checks,
            metrics=lambda: b"# HELP up u\n# TYPE up gauge\nup 1\n",
            reload=self.reload,
            levers=Pulled(self.pulled),
            requests=lambda: {"requests": [{"id": "req-1"}]},
            page=lambda: b"<!doctype html><title>live</title>",
            token=lambda: self.token,
        )

    def state(self) -> Mapping[str, Any]:
        return {"version": "0.1.0", "draining": False, "pools": {"chat": {"waiting": 1}}, "until": None}

    async def reload(self) -> ReloadResult:
        self.pulled.append("reload")
        return self.result

    async def get(self, path: str, **options: Any) -> tuple[int, str]:
        return await self.ask("GET", path, **options)

    async def post(self, path: str, **options: Any) -> tuple[int, str]:
        return await self.ask("POST", path, **options)

    async def ask(self, method: str, path: str, **options: Any) -> tuple[int, str]:
        async with self.session.request(method, self.url + path, **options) as answer:
            assert answer.headers["Server"] == "fairlane"
            return answer.status, await answer.text()


@asynccontextmanager
async def opened(house: House) -> AsyncIterator[House]:
    house.url = f"http://127.0.0.1:{await house.admin.start('127.0.0.1', 0)}"
    try:
        async with ClientSession() as house.session:
            yield house
    finally:
        await house.admin.stop()


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with opened(House()) as open_house:
        yield open_house


@pytest.mark.parametrize("path", ["/livez", "/healthz"])
async def test_alive_whatever_the_checks_say(house: House, path: str) -> None:
    house.checks = [Check("backends", "no pool is in service")]
    assert await house.get(path) == (200, "ok\n")


async def test_ready_says_so(house: House) -> None:
    assert await house.get("/readyz") == (200, "[!] pool chat: no platform in service\nready\n")
    assert await house.get("/readyz?verbose") == (
        200,
        "[+] accepting: ok\n[+] backends: ok\n[!] pool chat: no platform in service\nready\n",
    )


async def test_not_ready_says_why(house: House) -> None:
    house.checks = [Check("accepting", "draining"), Check("backends")]
    assert await house.get("/readyz") == (503, "[-] accepting: draining\nnot ready\n")
    assert await house.get("/readyz?verbose") == (503, "[-] accepting: draining\n[+] backends: ok\nnot ready\n")


async def test_metrics_are_text_that_prometheus_knows(house: House) -> None:
    async with house.session.get(house.url + "/metrics") as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert [family.name for family in text_string_to_metric_families(await answer.text())] == ["up"]


async def test_the_state_is_json(house: House) -> None:
    async with house.session.get(house.url + "/debug/state") as answer:
        assert answer.content_type == "application/json"
        assert await answer.json() == house.state()


async def test_levers_do_what_they_say(house: House) -> None:
    assert await house.post("/-/drain/own") == (200, "own: done\n")
    assert await house.post("/-/undrain/own%202") == (200, "own 2: done\n")
    assert await house.post("/-/serve/chat/own") == (200, "chat: done\n")
    assert await house.post("/-/cap/own-1/12") == (200, "own-1: done\n")
    status, text = await house.post("/-/reload")
    assert status == 200 and json.loads(text) == {"ok": True, "problems": [], "warnings": [*house.result.warnings]}
    assert house.pulled == ["drain own", "undrain own 2", "serve chat own", "cap own-1 12", "reload"]


async def test_a_reload_that_fails_says_where(house: House) -> None:
    house.result = ReloadResult(False, ["fairlane.yaml:3:9: pools.chat.primry: unknown key, did you mean primary?"])
    status, text = await house.post("/-/reload")
    assert status == 422 and json.loads(text)["problems"] == [*house.result.problems]


async def test_what_a_lever_cannot_do_is_said(house: House) -> None:
    assert await house.post("/-/drain/onw") == (404, "no such name; there are: own, own 2, own-1\n")
    assert await house.post("/-/cap/own-1/many") == (400, "a cap is a whole number of streams\n")
    assert house.pulled == []


async def test_the_requests_are_json(house: House) -> None:
    status, text = await house.get("/debug/requests")
    assert (status, json.loads(text)) == (200, {"requests": [{"id": "req-1"}]})


async def test_the_page_may_ask_nobody_but_this_port(house: House) -> None:
    async with house.session.get(house.url + "/") as answer:
        assert (answer.status, answer.content_type) == (200, "text/html")
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "connect-src 'self'" in policy and "frame-ancestors 'none'" in policy
        assert "http" not in policy


@pytest.mark.parametrize("path", LEVERS)
async def test_looking_at_a_lever_pulls_nothing(house: House, path: str) -> None:
    for method in ("GET", "HEAD", "PUT"):
        assert (await house.ask(method, path))[0] == 405
    assert house.pulled == []


@pytest.mark.parametrize("path", ["/", "/debug", "/docs", "/-/", "/-/drain/", "/-/drain/own/x", "/metrics/..", "/static/x"])
async def test_there_is_nothing_else(house: House, path: str) -> None:
    assert (await house.post(path))[0] in (404, 405)
    assert house.pulled == []


@pytest.mark.parametrize("path", LEVERS)
async def test_with_a_token_nobody_pulls_a_lever_without_it(path: str) -> None:
    async with opened(House(token="s3cret-é")) as house:
        for given in ("", "Bearer wrong", "Bearer", "s3cret-é", "bearer s3cret-é", "Bearer s3cret-é "[:-2]):
            status, text = await house.post(path, headers={"Authorization": given} if given else {})
            assert status == 403 and "s3cret" not in text
        assert house.pulled == []
        assert (await house.post(path, headers={"Authorization": "Bearer s3cret-é"}))[0] == 200
        assert (await house.get("/metrics"))[0] == 200  # reading is open


async def test_the_token_is_the_one_of_the_latest_file(house: House) -> None:
    house.token = "new"
    assert (await house.post("/-/drain/own"))[0] == 403


async def test_without_a_token_no_web_page_pulls_a_lever(house: House) -> None:
    status, _ = await house.post("/-/drain/own", headers={"Origin": "https://evil.example"})
    assert status == 403 and house.pulled == []


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.8", False),
        ("::ffff:10.0.0.8", False),
        ("", False),
    ],
)
def test_without_a_token_only_this_machine_pulls_levers(address: str, allowed: bool) -> None:
    request = make_mocked_request("POST", "/-/reload").clone(remote=address)
    assert (House().admin._refusal(request) == "") is allowed


async def test_a_fault_inside_is_not_told(house: House, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Mapping[str, Any]:
        raise RuntimeError("/etc/secret")

    house.admin._state = broken
    status, text = await house.get("/debug/state")
    assert status == 500 and "secret" not in text and "Traceback" not in text
    assert await house.get("/livez") == (200, "ok\n")


async def test_a_port_that_is_taken_is_an_error(house: House) -> None:
    with pytest.raises(OSError, match="in use"):
        await House().admin.start("127.0.0.1", int(house.url.rpartition(":")[2]))


async def test_stopping_does_not_wait_for_those_who_stay_connected() -> None:
    house = House()
    port = await house.admin.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /livez HTTP/1.1\r\nHost: t\r\n\r\n")
    await reader.readuntil(b"ok\n")
    await asyncio.wait_for(house.admin.stop(), 5.0)
    assert await reader.read() == b""
    writer.close()
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", port)
