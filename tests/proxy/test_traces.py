"""Is a request's trace whole? `traceparent` relayed or begun, and spans as a real collector gets them; nothing of it when off."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import pytest

from proxy.settings import server as settings_server
from proxy.settings.loader import load
from proxy.settings.problems import SettingsError
from proxy.telemetry.record import Record
from proxy.telemetry.traces import Traces
from tests.proxy.otlp import Collector, Span, collector
from tests.proxy.serving import TWO_LANES, serving
from tests.wire import JS, J, ScriptedBackend, scripts

ROOT = Path(__file__).resolve().parents[2]
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GIVEN = f"00-{TRACE}-{PARENT}-01"
INTERNAL, SERVER_KIND, CLIENT = 1, 2, 3


def server(url: str, sample: str = "100%") -> str:
    return (
        'server: {listen: "127.0.0.1:0", admin: "127.0.0.1:0", access_log: off, drain: {grace: 0s, timeout: 5s}, '
        + f'traces: {{endpoint: "{url}", sample: {sample}}}}}\n'
    )


def file(first: ScriptedBackend, second: ScriptedBackend | None = None, cap: int = 4) -> str:
    standby = f'  s: {{probe: none, backends: {{c: {{url: "{second.url}", max_streams: 4}}}}}}\n' if second else ""
    return (
        TWO_LANES
        + f'platforms:\n  p: {{probe: none, backends: {{b: {{url: "{first.url}", max_streams: {cap}}}}}}}\n{standby}'
        + f"pools: {{main: {{primary: p{', standby: s' if second else ''}, model: qwen}}}}\n"
    )


async def at_backend(backend: ScriptedBackend, number: int = 1) -> str | None:
    return (await backend.seen(number)).header("traceparent")


def one(spans: Sequence[Span]) -> Span:
    assert len(spans) == 1, spans
    return spans[0]


async def test_off_a_callers_traceparent_passes_as_it_came_and_none_is_begun() -> None:
    async with ScriptedBackend() as backend, serving(file(backend)) as proxy:
        await proxy.ask(traceparent=GIVEN, tracestate="v=1")
        assert await at_backend(backend) == GIVEN
        assert (await backend.seen(1)).header("tracestate") == "v=1"
        await proxy.ask()
        assert await at_backend(backend, 2) is None
        assert proxy.fairlane.service.traces is None


def test_off_opentelemetry_is_not_even_imported() -> None:
    source = "import sys, proxy.app; print([m for m in sys.modules if m.startswith('opentelemetry')])"
    assert subprocess.run([sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip() == "[]"


async def test_a_stream_is_a_span_with_its_wait_its_attempt_and_its_stream_inside() -> None:
    async with collector() as collected, ScriptedBackend() as backend:
        async with serving(file(backend), server=server(collected.url)) as proxy:
            body = b'{"model":"qwen","stream":true,"max_tokens":7,"messages":[{"role":"user","content":"top secret"}]}'
            assert (await proxy.ask(body, x_request_id="req-7", traceparent=GIVEN, tracestate="v=1")).status == 200
            sent = await at_backend(backend)
            assert (await backend.seen(1)).header("tracestate") == "v=1"
            await proxy.at_rest()
        root, queue, attempt, stream = (one(collected.named(name)) for name in ("chat qwen", "queue", "attempt", "stream"))
        assert {span.trace_id for span in collected.spans} == {TRACE} and len(collected.spans) == 4
        assert (root.parent_id, queue.parent_id, attempt.parent_id) == (PARENT, root.span_id, root.span_id)
        assert stream.parent_id == attempt.span_id
        assert sent == f"00-{TRACE}-{attempt.span_id}-01"  # the backend's own spans hang below the attempt
        assert [span.kind for span in (root, queue, attempt, stream)] == [SERVER_KIND, INTERNAL, CLIENT, INTERNAL]
        assert root.begins <= queue.begins <= queue.ends <= attempt.ends <= root.ends
        assert attempt.begins <= stream.begins <= stream.ends <= attempt.ends
        assert (
            root.said
            | {
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": "openai",
                "gen_ai.request.model": "qwen",
                "gen_ai.request.max_tokens": 7,
                "gen_ai.usage.input_tokens": 5,
                "gen_ai.usage.output_tokens": 3,
                "http.request.method": "POST",
                "http.response.status_code": 200,
                "url.path": "/v1/chat/completions",
                "fairlane.request_id": "req-7",
                "fairlane.tenant": "A",
                "fairlane.lane": "fast",
                "fairlane.pool": "main",
                "fairlane.outcome": "ok",
                "fairlane.attempts": 1,
            }
            == root.said
        )
        assert root.said["gen_ai.latency.time_to_first_token"] > 0
        assert (attempt.said["fairlane.backend"], attempt.said["fairlane.platform"]) == ("b", "p")
        assert (root.error, attempt.error) == ("", "")
        assert root.resource["service.name"] == "fairlane"
        assert "secret" not in repr(collected.spans) and "sk-A" not in repr(collected.spans)
        assert collected.heads[0].startswith("POST /v1/traces HTTP/1.1")


async def test_a_failover_is_two_attempts_and_the_second_backend_gets_its_own_parent() -> None:
    async with collector() as collected, ScriptedBackend() as first, ScriptedBackend() as second:
        first.then(scripts.status(500))
        async with serving(file(first, second), server=server(collected.url)) as proxy:
            assert (await proxy.ask(JS)).status == 200
            parents = [await at_backend(first), await at_backend(second)]
            await proxy.at_rest()
        failed, answered = collected.named("attempt")
        assert (failed.said["fairlane.backend"], failed.error) == ("b", "status 500")
        assert (answered.said["fairlane.backend"], answered.said["fairlane.attempt"], answered.error) == ("c", 2, "")
        assert parents == [f"00-{span.trace_id}-{span.span_id}-01" for span in (failed, answered)]
        assert len(collected.named("queue")) == 2
        root = one(collected.named("chat m"))
        assert (root.error, root.parent_id, root.said["fairlane.attempts"]) == ("", "", 2)


@pytest.mark.parametrize("won", ["c", "b"])
async def test_two_attempts_beside_each_other_are_two_spans_and_the_stream_is_inside_the_one_that_won(won: str) -> None:
    async with collector() as collected, ScriptedBackend(named={"pay": (scripts.ok(),)}) as first, ScriptedBackend() as second:
        text = file(first, second).replace("model: qwen}", "hedge: {after: 50ms}}")
        async with serving(text, server=server(collected.url)) as proxy:
            for _ in range(21):
                await proxy.ask(x_script="pay")
            gate = asyncio.Event()
            first.then(scripts.wait(gate), scripts.ok())
            second.then(scripts.ok() if won == "c" else scripts.hang())
            asked = asyncio.ensure_future(proxy.ask(JS, traceparent=GIVEN))
            await second.seen(1)
            if won == "b":
                gate.set()
            assert (await asked).status == 200
            parents = {"b": await at_backend(first, 22), "c": await at_backend(second)}
            await proxy.at_rest()
        tries = {str(span.said["fairlane.backend"]): span for span in collected.named("attempt") if span.trace_id == TRACE}
        lost = "b" if won == "c" else "c"
        assert (tries[won].error, tries[lost].error) == ("", "hedge lost")
        assert (tries["b"].said["fairlane.attempt"], tries["c"].said["fairlane.attempt"]) == (1, 2)
        assert parents == {name: f"00-{TRACE}-{span.span_id}-01" for name, span in tries.items()}
        assert one(collected.named("stream")).parent_id == tries[won].span_id


async def test_a_refusal_is_a_wait_without_an_attempt_and_a_broken_stream_is_an_error() -> None:
    async with collector() as collected, ScriptedBackend() as backend:
        async with serving(
            file(backend, cap=1).replace("model: qwen", "queue: {places: 2, max_wait: 200ms}"), server=server(collected.url)
        ) as proxy:
            gate = asyncio.Event()
            backend.then(scripts.head(), scripts.event("one"), scripts.wait(gate), scripts.rst())
            first = asyncio.create_task(proxy.ask(JS, x_request_id="cut"))
            await backend.seen(1)
            assert (await proxy.ask(J, x_request_id="late")).status == 429
            gate.set()
            await first
            await proxy.at_rest()
        late, cut = (
            one([span for span in collected.named("chat m") if span.said["fairlane.request_id"] == name]) for name in ("late", "cut")
        )
        assert (late.said["fairlane.outcome"], late.error) == ("queue_timeout", "")  # a 4xx is no error of the server
        waited = one([span for span in collected.spans if span.parent_id == late.span_id])
        assert waited.name == "queue" and 0.1 < waited.ends - waited.begins < 3.0
        assert (cut.said["fairlane.outcome"], cut.error) == ("truncated", "truncated")
        assert one(collected.named("attempt")).error == "truncated"


async def test_what_is_not_sampled_still_has_one_trace_id_from_log_to_backend() -> None:
    async with collector() as collected, ScriptedBackend() as backend:
        async with serving(file(backend), server=server(collected.url, "0%")) as proxy:
            await proxy.ask(tracestate="of=nothing")
            begun = re.fullmatch(r"00-([0-9a-f]{32})-[0-9a-f]{16}-00", await at_backend(backend) or "")
            assert begun is not None and (await backend.seen(1)).header("tracestate") is None
            await proxy.ask(traceparent=GIVEN)
            assert await at_backend(backend, 2) == GIVEN
            await proxy.ask(traceparent="00-" + "0" * 32 + f"-{PARENT}-01")  # no trace at all
            assert re.fullmatch(r"00-(?!0{32})[0-9a-f]{32}-[0-9a-f]{16}-00", await at_backend(backend, 3) or "")
            await proxy.at_rest()
        assert collected.spans == []


async def test_a_caller_who_says_not_sampled_is_heard() -> None:
    async with collector() as collected, ScriptedBackend() as backend:
        async with serving(file(backend), server=server(collected.url)) as proxy:
            await proxy.ask(traceparent=GIVEN[:-2] + "00")
            assert await at_backend(backend) == GIVEN[:-2] + "00"
            await proxy.at_rest()
        assert collected.spans == []


def test_the_share_is_kept_and_the_same_trace_is_chosen_everywhere() -> None:
    here, there = (Traces("http://127.0.0.1:9", Fraction(1, 4), "1", lambda problem: None) for _ in range(2))
    try:
        begun = [here.begin(Record(0.0, 0.0), []) for _ in range(4000)]
        sampled = [trace for trace in begun if trace is not None and trace.sampled]
        assert 850 < len(sampled) < 1150  # five standard deviations
        for trace in begun[:200]:
            assert trace is not None
            header = (b"traceparent", b"00-%032x-%016x-01" % (trace.trace_id, trace.span_id))
            again = there.begin(Record(0.0, 0.0), [header])
            assert (again is not None and again.sampled) is trace.sampled
    finally:
        here.close()
        there.close()


async def test_a_collector_that_fails_is_told_in_our_log_and_costs_no_request(capfd: pytest.CaptureFixture[str]) -> None:
    async with collector() as collected, ScriptedBackend() as backend:
        collected.status = 400
        async with serving(file(backend), server=server(collected.url)) as proxy:
            assert (await proxy.ask(JS)).status == 200
            await proxy.at_rest()
        said = [line for line in capfd.readouterr().err.splitlines() if line]
        assert all(line.startswith('{"time"') for line in said)
        assert any('"event":"traces"' in line and "400" in line for line in said)


async def test_a_reload_turns_traces_on_and_off() -> None:
    async with collector() as collected, ScriptedBackend() as backend, serving(file(backend)) as proxy:
        await proxy.ask(JS)
        before = proxy.file.read_text()
        proxy.file.write_text(_with_traces(before, collected))
        assert (await proxy.admin("/-/reload", "POST"))[0] == 200
        await proxy.ask(JS, traceparent=GIVEN)
        await proxy.at_rest()
        assert proxy.fairlane.service.traces is not None
        proxy.file.write_text(before)
        assert (await proxy.admin("/-/reload", "POST"))[0] == 200  # what was under way to the collector has arrived by then
        assert one(collected.named("attempt")).trace_id == TRACE
        await proxy.ask(JS, traceparent=GIVEN)
        assert proxy.fairlane.service.traces is None and await at_backend(backend, 3) == GIVEN


def _with_traces(text: str, collected: Collector) -> str:
    return text.replace("access_log: off", f'access_log: off, traces: {{endpoint: "{collected.url}/v1/traces", sample: 1.0}}')


def test_without_the_extra_the_file_is_refused_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_server, "find_spec", lambda name: None)
    path = tmp_path / "f.yaml"
    path.write_text(
        server("http://127.0.0.1:4318")
        + 'anonymous: {lane: fast}\nplatforms: {p: {backends: {b: {url: "http://h", max_streams: 1}}}}\npools: {m: {primary: p}}\n'
    )
    with pytest.raises(SettingsError) as refused:
        load(str(path), {})
    assert "server.traces.endpoint: needs what is not installed here: pip install 'fairlane[traces]'" in str(refused.value.problems[0])
