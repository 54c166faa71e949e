"""Is the standby known to work before it is needed? Warm standbys, smoke tests on a schedule, before failback and by hand."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from policies.failover import FailedBack, FailedOver, Ramping
from proxy.smoke_command import run
from tests.proxy.serving import serving
from tests.reliability.shapes import alone, backed, hurry, platform, pools
from tests.reliability.test_breaker import FAILBACK, Outage, by_path, generations, watched
from tests.wire import JS, ScriptedBackend, scripts


async def test_a_warm_standby_serves_its_part_of_the_slow_lane() -> None:
    async with ScriptedBackend() as primary, ScriptedBackend() as standby:
        async with serving(backed(primary.url, standby.url, pool=", warm: 10%")) as proxy:
            for _ in range(39):
                assert (await proxy.ask(JS, key="sk-B")).status == 200
            assert len(standby.requests) == 3
            for _ in range(20):
                assert (await proxy.ask(JS, key="sk-A")).status == 200
            assert len(standby.requests) == 3, "the fast lane is not for trying things out"
            assert (await proxy.ask(JS, key="sk-B")).status == 200
            assert len(standby.requests) == 4
            assert await proxy.metric("fairlane_platform_in_service", platform="s") == 0


async def test_a_cold_platform_is_smoke_tested_on_its_schedule_and_a_failure_is_a_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.smoke_rounds.AFTER_START_S", 0.1)
    async with ScriptedBackend() as primary, ScriptedBackend() as standby:
        text = backed(primary.url, standby.url, more="probe: none, smoke: 100ms,", behind="probe: none, smoke: 100ms, api_key: sk-s,")
        async with serving(text + "", access_log="file") as proxy:
            assert await proxy.metric("fairlane_smoke_last_successful", platform="s") == 1
            await proxy.until(lambda: generations(standby) >= 2)
            asked = next(request for request in standby.requests if request.method == "POST")
            body = json.loads(asked.body)
            assert (asked.target, asked.header("authorization"), body["model"]) == ("/v1/chat/completions", "Bearer sk-s", "m")
            assert body["max_tokens"] <= 16
            assert primary.requests == [], "its traffic shows whether it works"
            await proxy.until(lambda: proxy.state.in_flight == 0)
            assert await proxy.metric("fairlane_smokes_total", platform="s", result="ok") >= 2
            standby.script = [by_path([scripts.ok()], [scripts.status(401)])]
            seen = generations(standby)
            await proxy.until(lambda: generations(standby) > seen)
            await proxy.until(lambda: proxy.state.platforms["s"].refuses_until_at is not None)
            assert await proxy.metric("fairlane_smoke_last_successful", platform="s") == 0
            assert await proxy.metric("fairlane_smokes_total", platform="s", result="failed") == 1
            assert await proxy.metric("fairlane_platform_refusing", platform="s") == 1
            assert await proxy.metric("fairlane_requests_total") == 0, "no caller's request"


async def test_a_platform_is_not_smoke_tested_within_the_first_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float, *more: object) -> None:
        slept.append(seconds)
        await sleep(seconds)

    async with ScriptedBackend() as primary, ScriptedBackend() as standby:
        monkeypatch.setattr("proxy.smoke_rounds.asyncio.sleep", note)
        async with serving(backed(primary.url, standby.url, behind="probe: none, smoke: 1s,")) as proxy:
            await proxy.until(lambda: any(seconds >= 60 for seconds in slept))
            assert standby.requests == []


async def test_requests_go_back_only_to_a_primary_that_generates(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers its probe and its callers' probes, and then not the smoke tests; later it does."""
    hurry(monkeypatch, pause_s=0.2, pause_max_s=0.3, slow_start_s=0.2)
    monkeypatch.setattr("proxy.prober.EVERY_S", 0.05)
    monkeypatch.setattr("policies.failover.Failover.SMOKE_AGAIN_S", 0.3)
    smokes = 0

    def whoever_asks(works: bool) -> list[object]:
        async def step(exchange: object) -> None:
            nonlocal smokes
            is_smoke = b"Reply with the word OK" in exchange.request.body  # type: ignore[attr-defined]
            smokes += is_smoke
            await (scripts.status(400) if is_smoke and not works else scripts.ok())(exchange)  # type: ignore[arg-type]

        return [step]

    async with ScriptedBackend(*whoever_asks(False)) as primary, ScriptedBackend() as standby:  # type: ignore[arg-type]
        async with serving(backed(primary.url, standby.url, more="startup: 1ms, smoke: 24h,", pool=FAILBACK)) as proxy:
            told, outage = watched(proxy, monkeypatch), Outage(proxy, primary)
            await outage.call(0.2)
            await outage.down()
            await outage.call(0.5)
            await outage.back()
            async with asyncio.timeout(10):
                while smokes < 3:
                    await outage.call(0.1)
            assert [type(event) for event in told] == [FailedOver], "not while it fails them"
            failed, primary.script = smokes, whoever_asks(True)  # type: ignore[assignment]
            async with asyncio.timeout(10):
                while not any(isinstance(event, FailedBack) for event in told):
                    await outage.call(0.1)
            assert [type(event) for event in told] == [FailedOver, Ramping, FailedBack]
            assert smokes == failed + 3
            assert set(outage.statuses) == {200}


Smoke = Callable[..., Awaitable[tuple[int, str, str]]]


@pytest.fixture
def smoke(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Smoke:
    """`fairlane smoke` on a file with this text: exit code, stdout, stderr. It has a loop of its own, as in a process."""

    async def one(text: str, platform: str | None = None, as_json: bool = False) -> tuple[int, str, str]:
        file = tmp_path / "f.yaml"
        file.write_text('server: {listen: "127.0.0.1:0", admin: "127.0.0.1:0"}\n' + text)
        code = await asyncio.to_thread(run, str(file), platform, as_json)
        return (code, *capsys.readouterr())

    return one


async def test_fairlane_smoke_is_a_command(tmp_path: Path) -> None:
    async with ScriptedBackend() as backend:
        file = tmp_path / "f.yaml"
        file.write_text(alone(backend.url))
        command = [sys.executable, "-X", "dev", "-W", "error", "-m", "proxy", "smoke", str(file), "p", "--json"]
        child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
        said, problems = await child.communicate()
        assert (child.returncode, problems) == (0, b"")
        assert json.loads(said)["backends"][0]["backend"] == "p-1"


async def test_fairlane_smoke_asks_each_backend_by_the_files_own_names(smoke: Smoke) -> None:
    async with ScriptedBackend() as own, ScriptedBackend() as rented, ScriptedBackend(scripts.status(401)) as broken:
        text = (
            "anonymous: {lane: fast}\nplatforms:\n"
            + platform("own", own.url)
            + platform("rented", rented.url, broken.url, more="probe: none, api_key: sk-CANARY, models: {small: qwen-7b, large: qwen-72b},")
            + pools("main: {primary: own, standby: rented, model: small}")
        )
        code, said, problems = await smoke(text)
        assert (code, problems) == (1, "")
        good, other, bad = said.splitlines()
        assert good.startswith("ok      own own-1 small: first token after ")
        assert other.startswith("ok      rented rented-1 qwen-7b: first token after ")
        assert bad == "FAILED  rented rented-2 qwen-7b: status 401"
        assert "CANARY" not in said
        assert rented.requests[0].header("authorization") == "Bearer sk-CANARY"
        code, said, _ = await smoke(text, "own", True)
        assert (code, json.loads(said)["ok"], len(json.loads(said)["backends"])) == (0, True, 1)
        code, _, problems = await smoke(text, "rentd")
        assert code == 2 and 'did you mean "rented"' in problems


async def test_fairlane_smoke_speaks_the_api_that_the_key_belongs_to(smoke: Smoke) -> None:
    async with ScriptedBackend() as backend:
        code, said, _ = await smoke(alone(backend.url, more="probe: none, api_key: sk-x, auth: x-api-key, models: {m: claude},"))
        assert (code, said.startswith("ok      p p-1 claude: ")) == (0, True), said
        (seen,) = backend.requests
        assert (seen.target, seen.header("x-api-key"), seen.header("anthropic-version")) == ("/v1/messages", "sk-x", "2023-06-01")


async def test_fairlane_smoke_names_what_is_wrong_and_waits_for_the_whole_answer(smoke: Smoke) -> None:
    cut = [scripts.head(), scripts.event("a"), scripts.fin()]
    async with ScriptedBackend() as dead, ScriptedBackend(by_path([scripts.status(404)], cut)) as cuts:
        await dead.refuse()
        code, said, _ = await smoke(alone(dead.url, cuts.url))
        assert code == 1
        assert said.splitlines() == ["FAILED  p p-1 (no model): refused", "FAILED  p p-2 (no model): truncated"]
