"""Group S: does a caller get exactly the backend's stream, and the truth when it breaks?"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy import relay
from proxy.endpoints import Api
from proxy.sse import StreamWatcher
from tests.reliability.files import one, two
from tests.reliability.watch import watched
from tests.wire import HEAD, JS, ScriptedBackend, ev, post, scripts
from tests.wire.backend import Step

CONTENT = b"".join(scripts.chat_events(3))
TAIL = scripts.finish() + scripts.usage(5, 2) + scripts.DONE


async def test_s01_an_event_is_with_the_caller_before_the_next_is_written() -> None:
    gate = asyncio.Event()
    async with ScriptedBackend() as backend, watched(one(backend), backend) as proxy:
        backend.then(scripts.head(), scripts.event("a"), scripts.wait(gate), scripts.chunked(ev("b") + TAIL), scripts.end())
        async with await proxy.connect() as caller:
            await caller.send(post(JS))
            assert (await caller.head()).header("content-type") == "text/event-stream"
            events = caller.events()
            assert await anext(events) == ev("a")
            gate.set()
            assert await anext(events) == ev("b")


EVENT = st.one_of(
    st.text(min_size=1, max_size=12).map(lambda text: b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}).encode()),
    st.text(max_size=8).map(lambda text: b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}, ensure_ascii=False).encode()),
    st.sampled_from(
        [b": ping", b"event: x\ndata: {}", b"id: 7\ndata: {}", b"retry: 100", b"data", b"data: a\ndata: b", b"\xef\xbb\xbfdata: {}"]
    ),
)
STREAM = st.lists(st.tuples(EVENT, st.sampled_from([b"\n", b"\r\n", b"\r"])), min_size=1, max_size=8)


@given(streams=st.lists(st.tuples(STREAM, st.integers(1, 40)), min_size=40, max_size=40))
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
def test_s02_any_stream_in_any_slices_is_the_same_at_the_caller(streams: list[tuple[list[tuple[bytes, bytes]], int]]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_s02(streams))


async def _s02(streams: list[tuple[list[tuple[bytes, bytes]], int]]) -> None:
    async with ScriptedBackend() as backend, watched(one(backend), backend) as proxy:
        for events, size in streams:
            body = ev("a") + b"".join((event.replace(b"\n", end) + end + end) for event, end in events) + TAIL
            cut = [scripts.chunked(body[at : at + size]) for at in range(0, len(body), size)]
            backend.then(scripts.head(), *cut, scripts.end())
            answer = await proxy.ask(JS)
            assert (answer.body, answer.whole) == (body, True)


@pytest.mark.parametrize(
    "parts",
    [
        [b'data: {"choices":[{"delta":{"content":"\xf0\x9f', b'\x99\x82"}}]}\n\n'],
        [ev("a")[:-2] + b"\r", b"\n\r", b"\n"],
        [b"data", b': {"choices":[{"delta":{"content":"x"}}]}\n\n'],
        [b"da", b"ta: ", b'{"choices":[{"delta":{"cont', b'ent":"x"}}]}\n', b"\n"],
    ],
)
async def test_s03_split_characters_and_line_ends_pass_and_usage_counts(parts: list[bytes]) -> None:
    steps: list[Step] = [scripts.head()]
    for part in parts:
        steps += [scripts.chunked(part), scripts.delay(0.01)]
    async with ScriptedBackend() as backend, watched(one(backend), backend) as proxy:
        backend.then(*steps, scripts.chunked(TAIL), scripts.end())
        answer = await proxy.ask(JS)
        assert (answer.body, answer.whole) == (b"".join(parts) + TAIL, True)
        (line,) = await proxy.logged(1)
        assert (line["tokens_in"], line["tokens_out"], line["tokens_source"]) == (5, 2, "usage")


@pytest.mark.parametrize("mebibytes", [1, 8])
async def test_s04_one_long_line_passes_and_is_not_kept(mebibytes: int) -> None:
    line = b'data: {"choices":[{"delta":{"content":"' + b"x" * (mebibytes << 20) + b'"}}]}\n\n'
    async with ScriptedBackend() as backend, watched(one(backend), backend) as proxy:
        backend.then(scripts.raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + scripts.chunk(line)), scripts.chunked(TAIL), scripts.end())
        answer = await proxy.ask(JS)
        assert answer.whole and answer.body == line + TAIL
    watcher = StreamWatcher(Api.OPENAI)
    for at in range(0, len(line), 65536):
        watcher.feed(line[at : at + 65536])
        assert len(watcher._open) < 400 * 1024
    assert watcher.gave_up


async def test_s05_usage_cut_at_every_byte_is_counted_once_and_right() -> None:
    for tail in (TAIL, scripts.finish() + scripts.DONE.replace(b"\n\n", b"\n\n") + scripts.usage(5, 2)):
        stream = ev("a") + tail
        for at in range(len(ev("a")), len(stream)):
            watcher = StreamWatcher(Api.OPENAI)
            watcher.feed(stream[:at])
            watcher.feed(stream[at:])
            assert watcher.usage == (5, 2) and watcher.done and watcher.whole, at
    async with ScriptedBackend() as backend, watched(one(backend), backend) as proxy:
        backend.then(
            scripts.head(), scripts.event("a"), scripts.event("b"), scripts.chunked(scripts.finish() + scripts.DONE), scripts.end()
        )
        assert (await proxy.ask(JS)).whole
        (line,) = await proxy.logged(1)
        assert (line["tokens_out"], line["tokens_source"]) == (2, "estimated")


TWENTY = [f"t{n} " for n in range(20)]
CUTS: dict[str, list[Step]] = {
    "rst": [scripts.delay(0.05), scripts.rst()],
    "fin": [scripts.fin()],
    "clean-end": [scripts.end()],
    "half-an-event": [scripts.chunked(b'data: {"choices":[{"ind'), scripts.fin()],
    "half-a-chunk": [scripts.raw(b"ff\r\ndata"), scripts.fin()],
    "stalled": [scripts.hang()],
    "garbage": [scripts.raw(b"zz\r\n")],
}


@pytest.mark.parametrize("streamed_path", ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"])
@pytest.mark.parametrize("cut", CUTS)
async def test_s07_s08_s10_a_cut_stream_ends_in_one_error_event_of_its_api(cut: str, streamed_path: str) -> None:
    shapes = {
        "/v1/chat/completions": lambda text: ev(text),
        "/v1/completions": lambda text: b'data: {"choices":[{"text":"%b"}]}\n\n' % text.encode(),
        "/v1/messages": lambda text: (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"type":"text_delta","text":"%b"}}\n\n'
            % text.encode()
        ),
        "/v1/responses": lambda text: b'data: {"type":"response.output_text.delta","delta":"%b","sequence_number":1}\n\n' % text.encode(),
    }
    tokens = [shapes[streamed_path](token) for token in TWENTY]
    steps = [scripts.head(), *(scripts.chunked(token) for token in tokens), *CUTS[cut]]
    async with ScriptedBackend(*steps) as bad, ScriptedBackend() as good:
        async with watched(two(bad, good, pool=", timeouts: {idle: 400ms}"), bad, good) as proxy:
            async with await proxy.connect() as caller:
                answer = await caller.ask(post(JS, path=streamed_path))
                assert caller.ended is not None, "and a close"
            assert answer.body.startswith(b"".join(tokens)) and not answer.whole
            assert b"[DONE]" not in answer.body and b"message_stop" not in answer.body and b"response.completed" not in answer.body
            last = answer.body[len(b"".join(tokens)) :].rpartition(b"data: ")[2]
            document = json.loads(last)
            assert answer.body.count(b'"error"') >= 1 and b"127.0.0.1" not in last
            if streamed_path in ("/v1/messages", "/v1/responses"):
                assert document["type"] == "error" and answer.body.rpartition(b"event: ")[2].startswith(b"error\n")
            else:
                assert document["error"]["code"] in ("truncated", "idle_timeout")
            (line,) = await proxy.logged(1)
            assert line["outcome"] == ("idle_timeout" if cut == "stalled" else "truncated")
            assert line["attempts"] == 1 and good.requests == []
            assert await proxy.metric("fairlane_requests_total", outcome="ok") == 0


async def test_s09_a_backend_that_never_answers_is_given_up_on_time() -> None:
    async with ScriptedBackend(scripts.hang()) as backend:
        async with watched(one(backend, pool=", timeouts: {first_token: 600ms}"), backend) as proxy:
            began = time.monotonic()
            answer = await proxy.ask(JS)
            assert (answer.status, answer.header("x-fairlane-reason")) == (504, "first_token_timeout")
            assert 0.5 < time.monotonic() - began < 3
            await backend.all_closed()


async def test_s11_a_stream_of_comments_ends_at_the_progress_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "PROGRESS_S", 0.6)

    async def ping(exchange: Any) -> None:
        while True:
            exchange.write(scripts.chunk(b": ping\n\n"))
            await asyncio.sleep(0.02)

    async with ScriptedBackend(scripts.head(), scripts.event("a"), ping) as backend, watched(one(backend), backend) as proxy:
        answer = await proxy.ask(JS)
        assert answer.body.startswith(ev("a") + b": ping\n\n") and not answer.whole
        assert json.loads(answer.body.rpartition(b"data: ")[2])["error"]["code"] == "idle_timeout"
        (line,) = await proxy.logged(1)
        assert (line["outcome"], line["why"]) == ("idle_timeout", "no progress")
        await backend.all_closed()

        slow = [step for n in range(8) for step in (scripts.event(f"t{n}"), scripts.delay(0.15))]
        backend.then(scripts.head(), *slow, scripts.chunked(TAIL), scripts.end())
        assert (await proxy.ask(JS)).whole, "tokens are progress"


async def test_s12_an_error_event_first_is_made_good_elsewhere_and_later_is_relayed_and_the_last() -> None:
    error = b'data: {"error":{"code":500,"message":"engine"}}\n\n'
    async with ScriptedBackend(scripts.head(), scripts.chunked(error), scripts.end()) as bad, ScriptedBackend() as good:
        async with watched(two(bad, good), bad, good) as proxy:
            proxy.alive = False
            assert (await proxy.ask(JS)).body == CONTENT
    async with ScriptedBackend(scripts.head(), scripts.chunked(error), scripts.end()) as bad:
        async with watched(one(bad), bad) as proxy:
            assert (await proxy.ask(JS)).status == 502
            for tail in (b"", scripts.DONE, b"data:[DONE]\n\n", scripts.DONE * 2):
                bad.then(
                    scripts.head(),
                    *(scripts.event(t) for t in "abc"),
                    scripts.chunked(error),
                    scripts.chunked(tail or b": x\n\n"),
                    scripts.end(),
                )
                answer = await proxy.ask(JS)
                assert answer.body.startswith(ev("a") + ev("b") + ev("c") + error) and not answer.whole
                assert b"[DONE]" not in answer.body
            await proxy.logged(5)
            assert proxy.outcomes() == {"upstream_protocol": 1, "truncated": 4}


@pytest.mark.parametrize("status", [400, 429, 500])
async def test_s13_an_error_status_on_a_stream_stays_what_it_is(status: int) -> None:
    async with ScriptedBackend() as backend, watched(one(backend), backend) as proxy:
        backend.then(scripts.status(status, {"Retry-After": "7"} if status == 429 else {}, '{"error":{"message":"no"}}'))
        answer = await proxy.ask(JS)
        assert (answer.status, answer.body, answer.header("content-type")) == (status, b'{"error":{"message":"no"}}', "application/json")
        assert status != 429 or answer.header("retry-after") == "7"
        proxy.alive = False


async def test_s14_fifty_mebibytes_pass_and_are_not_gathered() -> None:
    piece = bytes(1 << 16)

    async def much(exchange: Any) -> None:
        exchange.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (50 << 20))
        for _ in range(50 << 4):
            exchange.write(piece)
            await exchange.drained()

    async with ScriptedBackend(named={"alive": (scripts.ok(),)}) as backend, watched(one(backend), backend) as proxy:
        backend.then(much)
        async with await proxy.connect() as caller:
            await caller.send(post())
            await caller.head()
            got = most = 0
            while got < 50 << 20:
                got += len(await caller.body_piece())
                caller.received.clear()
                caller._at = 0
                (connection,) = proxy.fairlane.door.connections
                most = max(most, connection.transport.get_write_buffer_size())
            assert most < 4 << 20


async def test_s15_closing_only_for_sending_is_leaving() -> None:
    async with ScriptedBackend(scripts.hang()) as backend, watched(one(backend), backend) as proxy:
        async with await proxy.connect() as caller:
            await caller.send(post(JS))
            await backend.seen(1)
            caller.half_close()
            assert await caller.until_closed() in ("fin", "reset")
        await backend.all_closed()
        (line,) = await proxy.logged(1)
        assert (line["outcome"], line["status"]) == ("client_gone", 0)


async def test_s16_a_role_and_then_a_reset_leaves_no_trace() -> None:
    role = [scripts.head(), scripts.chunked(scripts.ROLE), scripts.delay(0.05), scripts.rst()]
    async with ScriptedBackend(*role) as bad, ScriptedBackend() as good, watched(two(bad, good), bad, good) as proxy:
        answer = await proxy.ask(JS)
        assert answer.body == CONTENT and answer.body.count(b'"role"') == 1 and answer.header("x-fairlane-attempts") == "2"


@pytest.mark.parametrize(
    "tail",
    [
        scripts.finish() + b"data: [DONE]",
        scripts.finish() + scripts.DONE * 2,
        scripts.finish() + scripts.DONE + ev("late"),
        scripts.finish(),
    ],
    ids=["no-blank-line", "two-done", "events-behind-done", "no-done"],
)
async def test_s20_unusual_ends_are_relayed_as_they_are(tail: bytes) -> None:
    async with ScriptedBackend() as backend, watched(one(backend), backend) as proxy:
        backend.then(scripts.head(), scripts.event("a"), scripts.chunked(tail), scripts.end())
        answer = await proxy.ask(JS)
        assert (answer.body, answer.whole) == (ev("a") + tail, True)
        (line,) = await proxy.logged(1)
        assert line["outcome"] == "ok"


@pytest.mark.parametrize("fast", ["caller", "backend"])
async def test_s21_a_thousand_times_slower_on_one_side_keeps_order_and_rests(fast: str) -> None:
    events = [ev(f"{n:06d}" + "x" * 2000) for n in range(300)]
    stream = b"".join(events) + TAIL

    async def give(exchange: Any) -> None:
        exchange.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for number, event in enumerate([*events, TAIL]):
            exchange.write(scripts.chunk(event))
            await exchange.drained()
            if fast == "caller" and number < 30:
                await asyncio.sleep(0.01)
        exchange.write(b"0\r\n\r\n")

    async with (
        ScriptedBackend(give, named={"alive": (scripts.ok(),)}, sndbuf_bytes=8192) as backend,
        watched(one(backend), backend) as proxy,
    ):
        async with await proxy.connect(rcvbuf_bytes=4096) as caller:
            await caller.send(post(JS))
            await caller.head()
            got = b""
            while piece := await caller.body_piece():
                got += piece
                if fast == "backend" and len(got) < 40_000:
                    began = time.process_time()
                    await asyncio.sleep(0.05)
                    assert time.process_time() - began < 0.045, "no busy loop while the caller does not read"
            assert got == stream


async def test_s19_many_streams_at_once_are_each_complete_and_none_mixed() -> None:
    async def numbered(exchange: Any) -> None:
        name = exchange.request.header("x-mark")
        exchange.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for n in range(20):
            exchange.write(scripts.chunk(ev(f"{name}-{n} ")))
            await asyncio.sleep(0)
        exchange.write(scripts.chunk(TAIL) + b"0\r\n\r\n")

    async with ScriptedBackend(numbered, named={"alive": (scripts.ok(),)}) as backend, watched(one(backend, cap=200), backend) as proxy:
        answers = await asyncio.gather(*(proxy.ask(JS, x_mark=f"m{n}") for n in range(150)))
        for n, answer in enumerate(answers):
            assert answer.body == b"".join(ev(f"m{n}-{k} ") for k in range(20)) + TAIL


@pytest.mark.parametrize("end", [scripts.fin(), scripts.rst()])
@pytest.mark.parametrize(
    ("said", "missing", "whole"),
    [
        (ev("a") + ev("b") + TAIL, 0, True),
        (ev("a") + ev("b") + TAIL, 9, True),  # all was said, and less came than was promised
        (ev("a") + ev("b"), 40, False),
        (ev("a") + ev("half an event")[:-9], 100, False),
    ],
)
async def test_s07_a_length_that_a_stream_was_promised_is_not_the_callers(said: bytes, missing: int, whole: bool, end: Step) -> None:
    async with ScriptedBackend() as backend, watched(one(backend), backend) as proxy:
        length = b"Content-Length: %d\r\n" % (len(said) + missing)
        backend.then(scripts.head(length), scripts.raw(said), *((end,) if missing else ()))
        backend.then(scripts.ok())
        async with await proxy.connect() as caller:
            await caller.send(post(JS))
            answer = await caller.response()
            assert answer.header("content-length") is None and answer.header("transfer-encoding") == "chunked"
            assert answer.body.startswith(said) and answer.whole is whole
            if whole:
                assert answer.body == said
                await caller.send(post(JS))  # and what comes next is the next answer
                again = await caller.response()
                assert again.status == 200 and again.body.startswith(b"data: ") and again.whole
            else:
                assert b'"error"' in answer.body[len(said) :] and b"[DONE]" not in answer.body
                await caller.until_closed()
