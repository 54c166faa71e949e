"""What does a caller get, and what does each backend see? One request at a time, through the whole proxy."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.proxy.path import PLAIN, path
from tests.proxy.serving import TWO_LANES, Serving, serving
from tests.wire import JS, Blackhole, J, ScriptedBackend, ev, post, scripts
from tests.wire.backend import Step

CONTENT = b"".join(scripts.chat_events(3))


def one(backend: ScriptedBackend, cap: int = 4, more: str = "", pool: str = "") -> str:
    """A file with one backend."""
    return (
        TWO_LANES
        + f'platforms: {{p: {{probe: none, {more} backends: {{b: {{url: "{backend.url}", max_streams: {cap}}}}}}}}}\n'
        + f"pools: {{main: {{primary: p{pool}}}}}\n"
    )


def two(first: str, second: str, pool: str = "", more: str = "") -> str:
    """A file with a primary and a standby."""
    return (
        TWO_LANES
        + f'platforms:\n  p: {{probe: none, {more} backends: {{b: {{url: "{first}", max_streams: 8}}}}}}\n'
        + f'  s: {{probe: none, backends: {{c: {{url: "{second}", max_streams: 8}}}}}}\n'
        + f"pools: {{main: {{primary: p, standby: s{pool}}}}}\n"
    )


# --- the answer passes unchanged ------------------------------------------------------------------------------------


async def test_a_plain_answer_passes_byte_for_byte_with_our_fields_beside_it() -> None:
    body = scripts.chat_body(3)
    async with ScriptedBackend() as backend, serving(one(backend)) as proxy:
        backend.then(
            scripts.raw(
                scripts.answer(body, headers={"X-Own": "1", "Set-Cookie": "a=b", "Keep-Alive": "9", "Connection": "x-hop", "x-hop": "1"})
            )
        )
        answer = await proxy.ask(x_request_id="abc-1")
        assert (answer.status, answer.body) == (200, body.encode())
        assert answer.header("x-own") == "1"
        for dropped in ("set-cookie", "keep-alive", "x-hop"):
            assert answer.header(dropped) is None
        assert answer.header("x-request-id") == "abc-1"
        assert (answer.header("x-fairlane-lane"), answer.header("x-fairlane-pool"), answer.header("x-fairlane-attempts")) == (
            "fast",
            "main",
            "1",
        )
        assert answer.header("x-fairlane-queue-ms") == "0"
        assert "queue;dur=" in (answer.header("server-timing") or "")
        assert answer.header("x-fairlane-backend") is None
        await proxy.at_rest()
        assert await proxy.metric("fairlane_requests_total", pool="main", outcome="ok", code="200") == 1
        assert await proxy.metric("fairlane_tokens_total", source="usage", direction="output") == 3


async def test_the_upstream_request_is_the_callers_less_what_is_not_its_business() -> None:
    body = b'{"model" : "m", "x": 1.0, "big": 123456789012345678901234567890, "messages":[{"role":"user","content":"h\\u00e9"}]}'
    async with ScriptedBackend() as backend, serving(one(backend, more='api_key: "sk-theirs", headers: {x-team: blue},')) as proxy:
        await proxy.ask(
            body, cookie="c=1", x_api_key="sk-A", accept_encoding="gzip", connection="x-hop", x_hop="1", x_fairlane_lane="slow", x_mine="2",
            forwarded="for=1.2.3.4", x_forwarded_for="1.2.3.4", te="trailers",
        )  # fmt: skip
        seen = await backend.seen(1)
        assert seen.body == body
        assert seen.target == "/v1/chat/completions"
        names = [name for name, _ in seen.headers]
        assert len(names) == len(set(names))
        for dropped in ("cookie", "x-api-key", "x-hop", "x-fairlane-lane", "forwarded", "x-forwarded-for", "te", "connection"):
            assert seen.header(dropped) is None, dropped
        assert seen.header("authorization") == "Bearer sk-theirs"
        assert seen.header("x-team") == "blue"
        assert seen.header("x-mine") == "2"
        assert seen.header("accept-encoding") == "identity"
        assert seen.header("host") == backend.url.removeprefix("http://")
        assert seen.header("content-length") == str(len(body))


async def test_the_credential_goes_as_x_api_key_under_messages_and_the_path_replaces_v1() -> None:
    async with ScriptedBackend() as backend:
        text = one(backend, more="api_key: sk-theirs,").replace(backend.url, backend.url + "/compatible-mode/v1")
        async with serving(text) as proxy, await proxy.connect() as caller:
            assert (await caller.ask(post(path="/v1/messages"))).status == 200
            seen = await backend.seen(1)
            assert seen.target == "/compatible-mode/v1/messages"
            assert (seen.header("x-api-key"), seen.header("authorization")) == ("sk-theirs", None)


async def test_the_model_is_renamed_in_the_bytes_and_nothing_else_is() -> None:
    body = b'{"messages":[{"role":"user","content":"\\"model\\":\\"m\\""}] ,"model":"m","n":1.0}'
    async with ScriptedBackend() as backend:
        text = one(backend, more="models: {large: qwen-72b},", pool=", model: large")
        async with serving(text) as proxy:
            assert (await proxy.ask(body)).status == 200
            assert (await backend.seen(1)).body == body.replace(b'"model":"m","n"', b'"model":"qwen-72b","n"')
            assert (await proxy.ask(b'{"messages":[]}')).status == 200
            assert json.loads((await backend.seen(2)).body)["model"] == "qwen-72b"


@pytest.mark.parametrize("size", [1, 7, 100_000])
async def test_s02_a_stream_passes_byte_for_byte_however_it_is_sliced(size: int) -> None:
    events = [
        scripts.ROLE,
        b": ping\n\n",
        'data: {"choices":[{"index":0,"delta":{"content":"\U0001f642é"},"odd":1.0}]}\r\n\r\n'.encode(),
        ev("b"),
    ]
    events += [scripts.finish(), scripts.usage(5, 2), scripts.DONE]
    async with ScriptedBackend() as backend, serving(one(backend)) as proxy:
        backend.then(scripts.sliced(scripts.sse(events), size))
        answer = await proxy.ask(JS)
        assert (answer.status, answer.whole, answer.body) == (200, True, b"".join(events))
        assert answer.header("content-type") == "text/event-stream"
        assert answer.header("content-length") is None
        assert answer.header("x-accel-buffering") == "no"
        await proxy.at_rest()
        assert await proxy.metric("fairlane_requests_total", outcome="ok") == 1
        assert await proxy.metric("fairlane_ttft_seconds_count", pool="main", lane="fast") == 1
        assert await proxy.metric("fairlane_tokens_total", source="usage", direction="input") == 5


async def test_s01_each_event_arrives_while_the_next_is_held_back() -> None:
    gate = asyncio.Event()
    async with ScriptedBackend() as backend, serving(one(backend)) as proxy, await proxy.connect() as caller:
        backend.then(
            scripts.head(),
            scripts.event("a"),
            scripts.wait(gate),
            scripts.event("b"),
            scripts.chunked(scripts.finish() + scripts.DONE),
            scripts.end(),
        )
        await caller.send(post(JS))
        await caller.head()
        events = caller.events()
        assert await anext(events) == ev("a")
        gate.set()
        assert await anext(events) == ev("b")


async def test_connections_are_reused_on_both_sides() -> None:
    async with ScriptedBackend() as backend, serving(one(backend)) as proxy, await proxy.connect() as caller:
        for body in (J, JS) * 5:
            assert (await caller.ask(post(body))).whole
        assert len(backend.connections) == 1


async def test_a_client_of_http_1_0_gets_the_stream_until_close() -> None:
    async with ScriptedBackend() as backend, serving(one(backend)) as proxy, await proxy.connect() as caller:
        await caller.send(post(JS).replace(b"HTTP/1.1", b"HTTP/1.0"))
        head = await caller.head()
        assert head.header("transfer-encoding") is None
        assert await caller.rest() == CONTENT


# --- before the first token: made good elsewhere ---------------------------------------------------------------------

SILENT_FAILURES = {
    "reset": [scripts.rst()],
    "reset-after-head": [scripts.head(), scripts.rst()],
    "reset-after-role": [scripts.head(), scripts.chunked(scripts.ROLE), scripts.rst()],
    "fin-after-role": [scripts.head(), scripts.chunked(scripts.ROLE), scripts.fin()],
    "error-event": [scripts.head(), scripts.chunked(scripts.ROLE), scripts.chunked(b'data: {"error":{"code":500}}\n\n'), scripts.end()],
    "empty-stream": [scripts.head(), scripts.end()],
    "garbage": [scripts.garbage()],
    "two-lengths": [scripts.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab")],
    "500": [scripts.status(500)],
    "503": [scripts.status(503)],
    "429": [scripts.status(429, {"Retry-After": "2"})],
    "redirect": [scripts.status(307, {"Location": "http://127.0.0.1:1/"})],
}


@pytest.mark.parametrize("failure", SILENT_FAILURES)
async def test_what_fails_before_the_first_token_is_answered_by_the_standby_without_a_trace(failure: str) -> None:
    async with ScriptedBackend(*SILENT_FAILURES[failure]) as primary, ScriptedBackend() as standby:
        async with serving(two(primary.url, standby.url)) as proxy:
            answer = await proxy.ask(JS)
            assert (answer.status, answer.whole, answer.body) == (200, True, CONTENT)
            assert answer.header("x-fairlane-attempts") == "2"
            assert (await standby.seen(1)).body == JS
            await proxy.at_rest()
            assert await proxy.metric("fairlane_requests_total", outcome="ok") == 1
            assert await proxy.metric("fairlane_retries_total", pool="main", result="ok") == 1


async def test_s09_a_silent_backend_is_given_up_at_the_first_token_deadline() -> None:
    async with ScriptedBackend(scripts.hang()) as primary, ScriptedBackend() as standby:
        async with serving(two(primary.url, standby.url, pool=", timeouts: {first_token: 300ms}")) as proxy:
            assert (await proxy.ask(JS)).body == CONTENT
            await primary.all_closed()
        async with serving(one(primary, pool=", timeouts: {first_token: 300ms}")) as proxy:
            answer = await proxy.ask(JS)
            assert (answer.status, answer.header("x-fairlane-reason")) == (504, "first_token_timeout")


async def test_f01_f02_refused_and_unreachable_backends_are_passed_over() -> None:
    async with ScriptedBackend() as dead, ScriptedBackend() as standby:
        await dead.refuse()
        async with serving(two(dead.url, standby.url)) as proxy:
            assert (await proxy.ask()).header("x-fairlane-attempts") == "2"
        with Blackhole() as hole:
            async with serving(two(hole.url, standby.url, pool=", timeouts: {connect: 300ms}")) as proxy:
                assert (await proxy.ask()).header("x-fairlane-attempts") == "2"


async def test_with_nothing_left_to_try_each_failure_has_its_own_answer() -> None:
    for steps, status, reason in (
        ([scripts.rst()], 502, "upstream_reset"),
        ([scripts.garbage()], 502, "upstream_protocol"),
        ([scripts.head(), scripts.chunked(b'data: {"error":{"code":500}}\n\n')], 502, "upstream_protocol"),
    ):
        async with ScriptedBackend(*steps) as backend, serving(one(backend)) as proxy:
            answer = await proxy.ask(JS)
            assert (answer.status, answer.header("x-fairlane-reason")) == (status, reason)
            assert json.loads(answer.body)["error"]["code"] == reason
            assert "127.0.0.1" not in answer.body.decode()


@pytest.mark.parametrize("status", [400, 401, 403, 404, 408, 413, 422])
async def test_f04_a_backends_own_refusal_passes_untouched_and_blames_nobody(status: int) -> None:
    said = f'{{"error":{{"message":"no {status}"}}}}'
    async with ScriptedBackend(scripts.status(status, {"X-Own": "1"}, said)) as primary, ScriptedBackend() as standby:
        async with serving(two(primary.url, standby.url)) as proxy, await proxy.connect() as caller:
            for _ in range(30):
                answer = await caller.ask(post(JS))
                assert (answer.status, answer.body.decode(), answer.header("x-own")) == (status, said, "1")
                assert answer.header("x-fairlane-attempts") == "1"
            assert standby.requests == []
            await proxy.at_rest()
            assert await proxy.metric("fairlane_backend_state", backend="b") == 0
            assert await proxy.metric("fairlane_requests_total", outcome="upstream_status") == 30


async def test_s13_an_error_of_the_only_backend_is_relayed_as_it_came() -> None:
    async with ScriptedBackend(scripts.status(500, body="oops")) as backend, serving(one(backend)) as proxy:
        answer = await proxy.ask(JS)
        assert (answer.status, answer.body) == (500, b"oops")


async def test_f05_busy_is_rest_and_no_failure() -> None:
    async with ScriptedBackend(scripts.status(429, {"Retry-After": "30"}, "slow down")) as primary, ScriptedBackend() as standby:
        async with serving(two(primary.url, standby.url)) as proxy:
            for _ in range(8):
                assert (await proxy.ask()).status == 200
            assert len(primary.requests) == 1, "it rests longer than anyone may wait: it is left alone"
            assert await proxy.metric("fairlane_backend_state", backend="b") == 0
        async with serving(one(primary)) as proxy:
            answer = await proxy.ask()
            assert (answer.status, answer.header("retry-after"), answer.body) == (429, "30", b"slow down")


async def test_a_platform_that_refuses_our_credential_is_left_and_nobody_sees_its_401() -> None:
    async with ScriptedBackend(scripts.status(401)) as primary, ScriptedBackend() as standby:
        async with serving(two(primary.url, standby.url, more="api_key: sk-expired,")) as proxy:
            for _ in range(5):
                assert (await proxy.ask()).status == 200
            assert len(primary.requests) == 1
        async with serving(one(primary, more="api_key: sk-expired,")) as proxy:
            answer = await proxy.ask()
            assert (answer.status, answer.header("x-fairlane-reason")) == (502, "upstream_auth")


async def test_forty_callers_do_not_notice_a_failing_primary_which_is_left_alone_after_five() -> None:
    for steps in ([scripts.status(500)], [scripts.rst()]):
        async with ScriptedBackend(*steps) as primary, ScriptedBackend() as standby:
            async with serving(two(primary.url, standby.url)) as proxy:
                for _ in range(40):
                    assert (await proxy.ask(JS)).body == CONTENT
                assert len(primary.requests) == 5
                await proxy.at_rest()
                assert await proxy.metric("fairlane_backend_state", backend="b") == 2
                assert await proxy.metric("fairlane_platform_in_service", platform="p") == 0
                assert await proxy.metric("fairlane_platform_in_service", platform="s") == 1
                assert await proxy.metric("fairlane_failovers_total", to="s", reason="ejected") == 1
                assert await proxy.metric("fairlane_attempts_total", backend="b") == 5


@pytest.mark.parametrize("end", [scripts.rst(), scripts.fin()], ids=["rst", "fin"])
async def test_f14_a_request_read_on_a_kept_connection_and_then_dropped_is_an_attempt(end: Step) -> None:
    """It may have been paid for: `after_send` decides, as on a new connection."""
    async with ScriptedBackend() as backend, serving(one(backend)) as proxy:
        assert (await proxy.ask()).status == 200
        backend.then(end)
        answer = await proxy.ask()
        assert (answer.status, answer.header("x-fairlane-attempts")) == (200, "2")
        assert len(backend.requests) == 3
    async with ScriptedBackend() as backend, serving(one(backend, pool=", retries: {after_send: false}")) as proxy:
        assert (await proxy.ask()).status == 200
        backend.then(end)
        answer = await proxy.ask()
        assert (answer.status, answer.header("x-fairlane-reason"), answer.header("x-fairlane-attempts")) == (502, "upstream_reset", "1")
        assert len(backend.requests) == 2, "sent once, and never again"


# --- after the first token: never a lie ------------------------------------------------------------------------------

CUTS = {
    "rst": [scripts.rst()],
    "fin": [scripts.fin()],
    "clean-end-without-finish": [scripts.end()],
    "half-an-event": [scripts.chunked(b'data: {"choices":[{"ind'), scripts.fin()],
    "garbage": [scripts.raw(b"zz\r\n")],
    "stalled": [scripts.hang()],
}


@pytest.mark.parametrize("cut", CUTS)
async def test_s07_s08_s10_a_stream_cut_after_twenty_tokens_ends_in_one_error_event(cut: str) -> None:
    tokens = [f"t{n} " for n in range(20)]
    steps = [scripts.head(), *(scripts.event(token) for token in tokens), *CUTS[cut]]
    async with ScriptedBackend(*steps) as primary, ScriptedBackend() as standby:
        async with serving(two(primary.url, standby.url, pool=", timeouts: {idle: 500ms}")) as proxy:
            answer = await proxy.ask(JS)
            assert answer.body.startswith(b"".join(ev(token) for token in tokens))
            assert not answer.whole
            assert b"[DONE]" not in answer.body
            last = answer.body.rstrip(b"\n").rsplit(b"\n\n", 1)[-1]
            assert json.loads(last.removeprefix(b"data: "))["error"]["code"] in ("truncated", "idle_timeout")
            assert answer.body.count(b'"error"') == 1
            assert standby.requests == []
            await proxy.until(lambda: proxy.state.in_flight == 0, 1.0)
            await proxy.at_rest()
            outcome = "idle_timeout" if cut == "stalled" else "truncated"
            assert await proxy.metric("fairlane_requests_total", outcome=outcome) == 1
            assert await proxy.metric("fairlane_requests_total", outcome="ok") == 0
            if cut != "clean-end-without-finish":  # on the wire that one was a good answer
                await primary.all_closed()


async def test_s12_an_error_event_after_tokens_is_relayed_once_and_no_done_follows() -> None:
    error = b'data: {"error":{"code":500,"message":"engine"}}\n\n'
    async with ScriptedBackend() as backend, serving(one(backend)) as proxy:
        backend.then(scripts.head(), scripts.event("a"), scripts.chunked(error + scripts.DONE), scripts.end())
        answer = await proxy.ask(JS)
        assert (answer.body, answer.whole) == (ev("a") + error, False)


async def test_an_answer_that_is_not_streamed_is_cut_visibly() -> None:
    async with ScriptedBackend() as backend, serving(one(backend)) as proxy:
        backend.then(scripts.fin_at(len(scripts.answer(b"x" * 5000)) - 100, scripts.answer(b"x" * 5000)))
        answer = await proxy.ask()
        assert not answer.whole


async def test_f13_nothing_is_tried_again_after_the_first_token() -> None:
    async with ScriptedBackend(scripts.head(), scripts.event("a"), scripts.rst()) as primary, ScriptedBackend() as standby:
        async with serving(two(primary.url, standby.url)) as proxy:
            await proxy.ask(JS)
            assert standby.requests == []


# --- a caller who leaves ----------------------------------------------------------------------------------------------


async def begun(proxy: Serving, backend: ScriptedBackend, manner: str, body: bytes, until: bytes | None) -> None:
    """Start a request, wait until it is as far as `until`, and leave."""
    caller = await proxy.connect()
    seen = len(backend.requests) + 1
    await caller.send(post(body))
    await backend.seen(seen)
    if until is not None:
        await caller.head()
        async for event in caller.events():
            if until in event:
                break
    getattr(caller, manner)()
    caller.close()


@pytest.mark.parametrize("manner", ["close", "reset", "half_close"])
@pytest.mark.parametrize(
    ("steps", "body", "until", "phase"),
    [
        ([scripts.hang()], JS, None, "first_token"),
        ([scripts.head(), scripts.chunked(scripts.ROLE), scripts.hang()], JS, None, "first_token"),
        ([scripts.head(), scripts.event("a"), scripts.hang()], JS, b'"a"', "streaming"),
        ([scripts.hang()], J, None, "unary"),
    ],
    ids=["sent", "role", "streaming", "unary"],
)
async def test_c01_c02_who_leaves_frees_the_slot_and_closes_the_backend(
    manner: str, steps: list[object], body: bytes, until: bytes | None, phase: str
) -> None:
    async with ScriptedBackend(*steps) as primary, ScriptedBackend() as standby:  # type: ignore[arg-type]
        async with serving(two(primary.url, standby.url)) as proxy:
            await begun(proxy, primary, manner, body, until)
            async with asyncio.timeout(0.5):
                await primary.all_closed()
            await proxy.at_rest()
            assert standby.requests == []
            assert await proxy.metric("fairlane_disconnects_total", phase=phase) == 1
            assert await proxy.metric("fairlane_requests_total", outcome="client_gone") == 1
            assert await proxy.metric("fairlane_backend_state", backend="b") == 0


async def test_who_leaves_in_the_moment_of_asking_is_told_to_the_end() -> None:
    """uvloop hands over a request and the end of its connection in one go: before the story's first step."""
    async with path() as one:
        one.caller.data_received(PLAIN)
        assert len(one.proxy.fairlane.service.stories) == 1
        one.caller.eof_received()
        await one.proxy.at_rest()
        assert await one.proxy.metric("fairlane_requests_total", outcome="client_gone") == 1


async def test_who_leaves_the_queue_never_reaches_a_backend() -> None:
    gate = asyncio.Event()
    async with ScriptedBackend(scripts.wait(gate), scripts.ok()) as backend, serving(one(backend, cap=1)) as proxy:
        first = asyncio.ensure_future(proxy.ask())
        await backend.seen(1)
        caller = await proxy.connect()
        await caller.send(post())
        await proxy.until(lambda: proxy.state.waiting == 1)
        caller.close()
        await proxy.until(lambda: proxy.state.waiting == 0)
        gate.set()
        assert (await first).status == 200
        assert len(backend.requests) == 1
        await proxy.at_rest()
        assert await proxy.metric("fairlane_disconnects_total", phase="queued") == 1


async def test_a_stalled_reader_stops_the_backend_and_memory_stays_bounded() -> None:
    async with ScriptedBackend(sndbuf_bytes=8192) as backend, serving(one(backend)) as proxy:
        wrote = 0

        async def flood(exchange: object) -> None:
            nonlocal wrote
            while True:
                exchange.write(scripts.chunk(ev("x" * 4000)))  # type: ignore[attr-defined]
                await exchange.drained()  # type: ignore[attr-defined]
                wrote += 4000

        backend.then(scripts.head(), flood)
        caller = await proxy.connect(rcvbuf_bytes=4096)
        await caller.send(post(JS))
        before = -1
        while wrote != before or not wrote:  # until the backend stands still
            before = wrote
            await asyncio.sleep(0.3)
        assert wrote < 16_000_000, "it is the sockets that hold what the caller does not read"
        got = await caller.body_piece() if (await caller.head()).status == 200 else b""
        assert got
        caller.close()
        await backend.all_closed()
        await proxy.at_rest()


# --- who may ask for what ---------------------------------------------------------------------------------------------


async def test_each_key_sees_the_models_it_may_use_and_no_others() -> None:
    async with ScriptedBackend() as backend:
        text = (
            "keys: [{name: all, secret: sk-A, lane: fast}, {name: few, secret: sk-B, lane: slow, pools: [small]}]\n"
            + f'platforms: {{p: {{probe: none, backends: {{b: {{url: "{backend.url}", max_streams: 4}}}}}}}}\n'
            + "pools: {small: {primary: p}, large: {primary: p}}\n"
        )
        by_pool = "routes: [{when: {turns: '<= 1'}, pool: small}, {pool: large}]\n"
        by_name = "routes: [{when: {model: [s, t]}, pool: small}, {when: {model: l}, pool: large}, {pool: small}]\n"
        for routes, everything, little in ((by_pool, ["small", "large"], ["small"]), (by_name, ["s", "t", "l"], ["s", "t"])):
            async with serving(text + routes) as proxy, await proxy.connect() as caller:
                for key, names in (("sk-A", everything), ("sk-B", little)):
                    answer = await caller.ask(f"GET /v1/models HTTP/1.1\r\nHost: t\r\nx-api-key: {key}\r\n\r\n".encode())
                    assert [model["id"] for model in json.loads(answer.body)["data"]] == names
                forbidden = await proxy.ask(
                    b'{"model":"l","messages":[' + b'{"role":"user","content":"x"},' * 2 + b'{"role":"user","content":"y"}]}', key="sk-B"
                )
                assert (forbidden.status, forbidden.header("x-fairlane-reason")) == (403, "forbidden")


async def test_a_file_without_keys_takes_whatever_key_an_sdk_sends() -> None:
    async with ScriptedBackend() as backend:
        text = one(backend).replace(TWO_LANES, "anonymous: {lane: fast}\n")
        async with serving(text) as proxy:
            assert (await proxy.ask(key="sk-anything")).status == 200


async def test_health_answers_load_balancers_by_get_and_head_without_a_key() -> None:
    async with ScriptedBackend() as backend, serving(one(backend)) as proxy, await proxy.connect() as caller:
        await caller.send(b"HEAD /health HTTP/1.1\r\nHost: t\r\n\r\n")
        head = await caller.head()
        assert (head.status, head.header("content-length")) == (200, "6")
        caller._left_of_body = 0
        answer = await caller.ask(b"GET /health?from=lb HTTP/1.1\r\nHost: t\r\n\r\n")
        assert (answer.status, answer.body) == (200, b"ready\n")
        answer = await caller.ask(b"POST /health HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n")
        assert (answer.status, answer.header("allow")) == (405, "GET, HEAD")


async def test_who_still_waits_at_the_end_of_the_drain_is_told_so_and_counted_so() -> None:
    server = 'server: {listen: "127.0.0.1:0", admin: "127.0.0.1:0", access_log: "off", drain: {grace: 0s, timeout: 300ms}}\n'
    async with ScriptedBackend(scripts.hang()) as backend, serving(one(backend, cap=1), server=server) as proxy:
        first = asyncio.ensure_future(proxy.ask(JS))
        await backend.seen(1)
        second = asyncio.ensure_future(proxy.ask(JS))
        await proxy.until(lambda: proxy.state.waiting == 1)
        proxy.fairlane.drain()
        for answer in await asyncio.gather(first, second):
            assert (answer.status, answer.header("x-fairlane-reason")) == (503, "draining")
        await proxy.fairlane.ended.wait()
        assert await proxy.metric("fairlane_queue_wait_seconds_count", outcome="draining") == 1
        assert await proxy.metric("fairlane_queue_wait_seconds_count", outcome="client_gone") == 0
