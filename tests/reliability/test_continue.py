"""A stream that breaks and is continued by another backend: is what the caller gets one whole stream, and else the truth?"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.reliability.files import one, two
from tests.reliability.shapes import hurry
from tests.reliability.test_leaving import MANNERS
from tests.reliability.watch import Watch, watched
from tests.wire import HEAD, JS, ScriptedBackend, eventually, post, scripts
from tests.wire.backend import Exchange, Step

ON = ", continue: true"
WORDS = [f"w{number} " for number in range(12)]
Stage = tuple[Watch, ScriptedBackend, ScriptedBackend]


def event(backend: str, delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    """A chat event with an identity, as engines send them."""
    choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
    head = {
        "id": f"chatcmpl-{backend}",
        "object": "chat.completion.chunk",
        "created": {"b": 100, "c": 200}[backend],
        "model": f"m-{backend}",
    }
    return b"data: " + json.dumps({**head, "choices": choices, **more}).encode() + b"\n\n"


def counts(backend: str, prompt: int, output: int) -> bytes:
    usage = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    return event(backend, {}, usage=usage).replace(b'[{"index": 0, "delta": {}, "logprobs": null, "finish_reason": null}]', b"[]")


ROLE = {"role": "assistant", "content": ""}


def words(backend: str, said: Sequence[str]) -> list[bytes]:
    return [event(backend, {"content": word}) for word in said]


def whole(backend: str, said: Sequence[str], prompt: int) -> list[bytes]:
    return [event(backend, ROLE), *words(backend, said), event(backend, {}, "stop"), counts(backend, prompt, len(said)), scripts.DONE]


def steps(events: Sequence[bytes]) -> list[Step]:
    return [scripts.head(), *(scripts.chunked(each) for each in events)]


async def rest(exchange: Exchange) -> None:
    """A backend that continues: it says the words that the last message does not have yet."""
    asked = json.loads(exchange.request.body)
    assert asked["messages"][-1]["role"] == "assistant", asked
    said = len(asked["messages"][-1]["content"].split())
    exchange.write(scripts.sse(whole("c", WORDS[said:], 5 + said)))


def cut_after(number: int, *how: Step) -> list[Step]:
    return [*steps([event("b", ROLE), *words("b", WORDS[:number])]), *how]


@asynccontextmanager
async def stage(*first: Step, second: Step = rest, pool: str = ON, more: str = "") -> AsyncIterator[Stage]:
    async with ScriptedBackend(*first) as primary, ScriptedBackend(second) as standby:
        async with watched(two(primary, standby, pool=pool, more=more), primary, standby) as proxy:
            yield proxy, primary, standby


def told(body: bytes) -> tuple[str, list[dict[str, Any]]]:
    """The text of a stream, and its events, as a client reads them."""
    events = [line[6:] for line in body.decode().split("\n") if line.startswith("data: ")]
    documents = [json.loads(each) for each in events if each != "[DONE]"]
    text = "".join(choice["delta"].get("content") or "" for each in documents for choice in each.get("choices", ()))
    return text, documents


def body(**more: Any) -> bytes:
    asked = {
        "model": "m",
        "stream": True,
        "messages": [{"role": "user", "content": "hi"}],
        "stream_options": {"include_usage": True},
        **more,
    }
    return json.dumps(asked).encode()


ERROR = b'data: {"error":{"message":"engine died"}}\n\n'
CUTS: dict[str, list[Step]] = {
    "rst": [scripts.delay(0.05), scripts.rst()],
    "fin": [scripts.fin()],
    "clean-end": [scripts.end()],
    "half-an-event": [scripts.chunked(b'data: {"choices":[{"ind'), scripts.fin()],
    "half-a-token": [scripts.chunked(words("b", ["w5"])[0][:-3]), scripts.fin()],
    "half-a-chunk": [scripts.raw(b"ff\r\ndata"), scripts.fin()],
    "stalled": [scripts.hang()],
    "garbage": [scripts.raw(b"zz\r\n")],
    "error-event": [scripts.chunked(ERROR), scripts.end()],
    "tokens-behind-an-error-event": [scripts.chunked(ERROR + words("b", ["w9 "])[0] + scripts.DONE), scripts.end()],
    "error-event-behind-a-comment": [scripts.chunked(b": x\n\n" + ERROR + scripts.DONE), scripts.end()],
}


@pytest.mark.parametrize("cut", CUTS)
async def test_a_stream_that_breaks_is_whole_at_the_caller(cut: str) -> None:
    async with stage(*cut_after(5, *CUTS[cut]), pool=ON + ", timeouts: {idle: 300ms}") as (proxy, first, second):
        proxy.alive = False
        answer = await proxy.ask(body(max_tokens=50))
        assert (answer.status, answer.whole) == (200, True)
        text, documents = told(answer.body)
        assert text == "".join(WORDS)
        assert answer.body.count(b'"role"') == 1 and answer.body.count(b"[DONE]") == 1 and b"error" not in answer.body
        assert {each["id"] for each in documents} == {"chatcmpl-b"}
        assert {(each["created"], each["model"]) for each in documents} == {(100, "m-b")}
        usage = [each["usage"] for each in documents if each.get("usage")]
        assert usage == [{"prompt_tokens": 5, "completion_tokens": 12, "total_tokens": 17}]
        assert b'{"choices":[{"ind' not in answer.body.replace(b'"choices": [', b'"choices":[')
        sent = second.requests[0]
        assert json.loads(sent.body) == {
            **json.loads(body(max_tokens=45)),
            "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "".join(WORDS[:5])}],
            "continue_final_message": True,
            "add_generation_prompt": False,
        }
        assert sent.header("x-fairlane-attempt") == "2"
        (line,) = await proxy.logged(1)
        assert (line["outcome"], line["attempts"], line["continued"], line["backend"], line["status"]) == ("ok", 2, 1, "c", 200)
        assert line["why"] == ("idle_timeout" if cut == "stalled" else "truncated")
        assert (line["tokens_in"], line["tokens_out"], line["tokens_source"]) == (5, 12, "usage")
        assert await proxy.metric("fairlane_continuations_total", pool="main", result="ok") == 1
        assert await proxy.metric("fairlane_retries_total") == 0
        outcome = "idle_timeout" if cut == "stalled" else "truncated"
        assert await proxy.metric("fairlane_attempts_total", backend="b", outcome=outcome) == 1
        assert await proxy.metric("fairlane_attempts_total", backend="c", outcome="ok") == 1
        await first.at_rest()


async def test_without_the_opt_in_or_another_backend_or_one_that_can_it_ends_in_the_error_event() -> None:
    for pool in ("", ON):
        async with ScriptedBackend(*cut_after(3, scripts.fin())) as backend:
            text = one(backend, pool=pool).replace("attempts: 1", "attempts: 2")
            async with watched(text, backend) as proxy:
                proxy.alive = False
                await broken(proxy, 3)
    async with stage(*cut_after(3, scripts.fin())) as (proxy, _first, second):
        proxy.alive = False
        text = proxy.file.read_text().replace("s: {probe: none", "s: {continues: none, probe: none")
        proxy.file.write_text(text)
        assert (await proxy.fairlane.reload()).ok
        await broken(proxy, 3)
        assert second.requests == []
        assert await proxy.metric("fairlane_continuations_total", pool="main", result="denied") == 1


async def broken(proxy: Watch, number: int, asked: bytes | None = None, code: str = "truncated") -> dict[str, Any]:
    """What was said arrives, then one error event and a close. The line of the log."""
    async with await proxy.connect() as caller:
        answer = await caller.ask(post(asked if asked is not None else body()))
        assert caller.ended is not None, "and a close"
    text, documents = told(answer.body)
    assert text.startswith("".join(WORDS[:number])) and not answer.whole
    assert documents[-1]["error"]["code"] == code and sum("error" in each for each in documents) == 1
    assert b"[DONE]" not in answer.body
    await proxy.at_rest()
    return (await proxy.logged(1))[-1]


async def test_all_streams_of_a_backend_that_dies_are_continued_within_the_other_ones_cap() -> None:
    died = asyncio.Event()
    async with ScriptedBackend(*cut_after(4, scripts.wait(died), scripts.rst())) as first, ScriptedBackend(rest) as second:
        text = two(first, second, cap=8, pool=ON + ", queue: {places: 8, max_wait: 5s}")
        async with watched(text.replace(f'"{second.url}", max_streams: 8', f'"{second.url}", max_streams: 3'), first, second) as proxy:
            proxy.alive = False
            asked = [asyncio.ensure_future(proxy.ask(body())) for _ in range(8)]
            await first.seen(8)
            died.set()
            answers = [await each for each in asked]
            assert {told(each.body)[0] for each in answers} == {"".join(WORDS)} and all(each.whole for each in answers)
            await proxy.logged(8)
            assert proxy.outcomes() == {"ok": 8}
            assert second.max_active <= 3


async def test_an_error_event_that_nobody_makes_good_is_relayed_as_it_came() -> None:
    async with ScriptedBackend(*cut_after(3, scripts.chunked(ERROR), scripts.end())) as backend:
        async with watched(one(backend, pool=ON).replace("attempts: 1", "attempts: 2"), backend) as proxy:
            proxy.alive = False
            answer = await proxy.ask(body())
            assert answer.body.endswith(ERROR) and not answer.whole and answer.body.count(b"error") == 1
            (line,) = await proxy.logged(1)
            assert line["outcome"] == "truncated"


async def test_a_backend_whose_answer_ended_cleanly_keeps_its_connection() -> None:
    last = scripts.raw(scripts.chunk(ERROR) + b"0\r\n\r\n")
    async with stage(*cut_after(5, scripts.delay(0.05), last)) as (proxy, first, _second):
        proxy.alive = False
        assert told((await proxy.ask(body())).body)[0] == "".join(WORDS)
        first.script = (scripts.ok(),)
        assert (await proxy.ask(JS)).whole
        assert len(first.connections) == 1


FORBIDDEN: dict[str, dict[str, Any]] = {
    "tools": {"tools": [{"type": "function", "function": {"name": "f"}}]},
    "functions": {"functions": [{"name": "f"}]},
    "json": {"response_format": {"type": "json_object"}},
    "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
    "grammar": {"guided_regex": "a+"},
    "grammar-of-llama": {"grammar": "root ::= x"},
    "structured": {"structured_outputs": {"choice": ["a"]}},
    "logprobs": {"logprobs": True},
    "top-logprobs": {"top_logprobs": 2},
    "n": {"n": 2},
    "audio": {"modalities": ["text", "audio"]},
    "unheard-of": {"speculation": {"depth": 3}},
    "echo": {"echo": True},
    "min-tokens": {"min_tokens": 20},
    "begun-by-the-caller": {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "w0 "}]},
    "images": {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
    "no-token-left": {"max_tokens": 3},
}


@pytest.mark.parametrize("forbidden", FORBIDDEN)
async def test_what_is_no_plain_text_is_not_continued(forbidden: str) -> None:
    async with stage(*cut_after(3, scripts.fin())) as (proxy, _first, second):
        proxy.alive = False
        line = await broken(proxy, 3, body(**FORBIDDEN[forbidden]))
        assert (line["outcome"], line["attempts"], line["continued"]) == ("truncated", 1, 0)
        assert second.requests == []


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning_content": "hm"},
        {"reasoning": "hm"},
        {"tool_calls": [{"index": 0, "function": {"name": "f"}}]},
        {"refusal": "no"},
        {"content": [{"type": "text", "text": "x"}]},
    ],
    ids=lambda delta: next(iter(delta)),
)
async def test_an_answer_that_is_more_than_text_is_not_continued(delta: dict[str, Any]) -> None:
    more = event("b", delta)
    async with stage(*steps([event("b", ROLE), more, *words("b", WORDS[:3])]), scripts.fin()) as (proxy, _first, second):
        proxy.alive = False
        answer = await proxy.ask(body())
        assert more in answer.body and b'"truncated"' in answer.body
        assert second.requests == []


@pytest.mark.parametrize("said", [[event("b", {}, "stop")], [event("b", {}, "stop"), counts("b", 5, 3)]], ids=["finish", "usage"])
async def test_an_answer_that_is_finished_is_not_continued(said: list[bytes]) -> None:
    async with stage(*cut_after(3, *(scripts.chunked(each) for each in said), scripts.rst())) as (proxy, _first, second):
        proxy.alive = False
        await proxy.ask(body())
        assert second.requests == []
    async with stage(*steps([event("b", {}, "stop")]), scripts.rst()) as (proxy, _first, second):
        proxy.alive = False


async def test_other_apis_are_relayed_as_ever() -> None:
    token = b'data: {"choices":[{"text":"w0 "}]}\n\n'
    async with stage(scripts.head(), scripts.chunked(token + b"data: {"), scripts.fin()) as (proxy, _first, second):
        proxy.alive = False
        async with await proxy.connect() as caller:
            answer = await caller.ask(post(JS, path="/v1/completions"))
        assert answer.body.startswith(token + b"data: {\n\ndata: ") and b"truncated" in answer.body
        assert second.requests == []


async def test_it_is_done_once() -> None:
    async def breaks_too(exchange: Exchange) -> None:
        exchange.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        exchange.write(b"".join(scripts.chunk(each) for each in [event("c", ROLE), *words("c", WORDS[3:6])]))
        exchange.fin()

    async with stage(*cut_after(3, scripts.fin()), second=breaks_too) as (proxy, first, second):
        proxy.alive = False
        line = await broken(proxy, 6)
        assert (line["outcome"], line["attempts"], line["tokens_out"], line["tokens_source"]) == ("truncated", 2, 6, "estimated")
        assert (len(first.requests), len(second.requests)) == (1, 1)
        assert await proxy.metric("fairlane_continuations_total", pool="main", result="failed") == 1
        for backend in ("b", "c"):
            assert await proxy.metric("fairlane_attempts_total", backend=backend, outcome="truncated") == 1


async def test_a_request_that_was_retried_before_is_not_continued() -> None:
    async with stage(scripts.status(500)) as (proxy, _first, second):
        proxy.alive = False
        second.script = cut_after(3, scripts.fin())
        line = await broken(proxy, 3)
        assert (line["attempts"], line["continued"]) == (2, 0)


@pytest.mark.parametrize(
    "failure",
    [
        scripts.status(429, {"Retry-After": "1"}),
        scripts.status(400),
        scripts.status(500),
        scripts.rst(),
        scripts.raw(scripts.answer(scripts.chat_body(3))),
        scripts.raw(scripts.sse([event("c", ROLE)])),
    ],
    ids=["busy", "refused", "error", "reset", "no-stream", "empty"],
)
async def test_a_rest_that_fails_before_its_first_token_leaves_the_stream_as_it_was(failure: Step) -> None:
    async with stage(*cut_after(3, scripts.fin()), second=failure) as (proxy, _first, second):
        proxy.alive = False
        line = await broken(proxy, 3)
        assert (line["outcome"], line["attempts"], line["continued"], line["tokens_out"]) == ("truncated", 2, 1, 3)
        assert len(second.requests) == 1
        assert await proxy.metric("fairlane_continuations_total", pool="main", result="failed") == 1


async def test_it_waits_for_a_slot_at_the_head_of_its_lane() -> None:
    gate, cut = asyncio.Event(), asyncio.Event()
    async with ScriptedBackend(*cut_after(5, scripts.wait(cut), scripts.fin())) as first, ScriptedBackend() as second:
        async with watched(two(first, second, cap=1, pool=ON + ", queue: {places: 4, max_wait: 5s}"), first, second) as proxy:
            proxy.alive = False
            assert (await proxy.admin("/-/serve/main/s", "POST"))[0] == 200
            second.then(scripts.wait(gate), scripts.ok())
            holds = asyncio.ensure_future(proxy.ask(JS))
            await second.seen(1)
            assert (await proxy.admin("/-/unpin/main", "POST"))[0] == 200
            streams = asyncio.ensure_future(proxy.ask(body()))
            await first.seen(1)
            later = asyncio.ensure_future(proxy.ask(JS))
            await eventually(lambda: proxy.state.waiting == 1)
            second.then(rest)
            first.script = (scripts.hang(),)
            cut.set()
            await eventually(lambda: proxy.state.backends["b"].in_flight == 1 and len(first.requests) == 2)
            assert proxy.state.waiting == 1, "the one that came later has the slot that came free; the rest waits for the other backend"
            gate.set()
            assert told((await streams).body)[0] == "".join(WORDS)
            assert (await holds).whole
            proxy.fairlane.service.cut_all()
            await later


@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize("when", ["waiting", "asked", "saying"])
async def test_who_leaves_while_it_is_continued_costs_nothing(when: str, manner: str) -> None:
    waits = {"asked": scripts.hang(), "saying": scripts.raw(scripts.sse([event("c", ROLE), *words("c", WORDS[3:5])])[:-5])}

    async def says(exchange: Exchange) -> None:
        await waits[when](exchange)
        await asyncio.Event().wait()

    async with stage(*cut_after(3, scripts.fin()), second=says) as (proxy, _first, second):
        proxy.alive = False
        if when == "waiting":
            assert (await proxy.admin("/-/cap/c/1", "POST"))[0] == 200
            assert (await proxy.admin("/-/serve/main/s", "POST"))[0] == 200
            waits["waiting"] = scripts.hang()
            holds = await proxy.connect()
            await holds.send(post(JS))
            await second.seen(1)
            assert (await proxy.admin("/-/unpin/main", "POST"))[0] == 200
        before = len(second.requests)
        caller = await proxy.connect()
        await caller.send(post(body()))
        if when == "waiting":
            await eventually(lambda: proxy.state.waiting == 1)
        else:
            await second.seen(before + 1)
            await eventually(lambda: proxy.state.backends["b"].in_flight == 0)
        if when == "saying":
            await caller.head()
            async for each in caller.events():
                if b"w4" in each:
                    break
        left_at = time.monotonic()
        getattr(caller, manner)()
        if when == "waiting":
            await eventually(lambda: proxy.state.waiting == 0)
            holds.close()
        await second.all_closed()
        assert time.monotonic() - left_at < 0.5
        await proxy.at_rest()
        line = (await proxy.logged(1))[0]
        assert line["outcome"] == "client_gone"
        assert await proxy.metric("fairlane_disconnects_total", phase="streaming") == 1
        assert await proxy.metric("fairlane_continuations_total", pool="main", result="cancelled") == 1
        assert await proxy.metric("fairlane_backend_state", backend="c") == 0
        caller.close()


async def test_an_operator_may_cancel_what_is_being_continued() -> None:
    async with stage(*cut_after(3, scripts.fin()), second=scripts.hang()) as (proxy, _first, second):
        asked = asyncio.ensure_future(proxy.ask(body(), x_request_id="mine"))
        await second.seen(1)
        assert (await proxy.admin("/-/cancel/mine", "POST"))[0] == 200
        answer = await asked
        assert told(answer.body)[1][-1]["error"]["code"] == "cancelled" and not answer.whole
        await second.all_closed()
        second.script = (scripts.ok(),)
        _first.script = (scripts.ok(),)


async def test_a_drain_that_ends_cuts_it_visibly() -> None:
    async with stage(*cut_after(3, scripts.fin()), second=scripts.hang()) as (proxy, _first, second):
        proxy.alive = False
        asked = asyncio.ensure_future(proxy.ask(body()))
        await second.seen(1)
        proxy.fairlane.service.cut_all()
        answer = await asked
        assert told(answer.body)[1][-1]["error"]["code"] == "draining" and not answer.whole


async def test_a_caller_who_reads_slowly_slows_the_second_backend_too() -> None:
    gate = asyncio.Event()
    large = "x" * 30000 + " "

    async def much(exchange: Exchange) -> None:
        await gate.wait()
        exchange.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for each in whole("c", [large] * 600, 9):
            exchange.write(scripts.chunk(each))
            await exchange.drained()
        exchange.write(b"0\r\n\r\n")

    async with ScriptedBackend(*cut_after(1, scripts.fin())) as first:
        async with ScriptedBackend(much, sndbuf_bytes=65536) as second, watched(two(first, second, pool=ON), first, second) as proxy:
            proxy.alive = False
            asked = asyncio.ensure_future(proxy.ask(body()))
            await second.seen(1)
            (story,) = proxy.fairlane.service.stories
            broken_relay = story.relay
            story.exchange.valve.stop()  # the caller stopped reading while nothing came
            gate.set()
            await eventually(lambda: story.relay is not broken_relay)
            assert story.relay._connection._paused
            await eventually(lambda: not second.connections[0].writable.is_set())
            assert not asked.done() and second.requests[0].finished_at is None
            story.exchange.valve.flow()
            assert told((await asked).body)[0] == WORDS[0] + large * 600


async def test_an_event_too_large_to_read_passes_and_ends_the_chance() -> None:
    large = event("b", {"content": "x" * 400_000})
    async with stage(*steps([event("b", ROLE), *words("b", WORDS[:2])]), scripts.chunked(large), scripts.fin()) as (proxy, _first, second):
        proxy.alive = False
        answer = await proxy.ask(body())
        assert large in answer.body and b"truncated" in answer.body
        assert second.requests == []


async def test_half_characters_and_escapes_are_said_once() -> None:
    async def answers(exchange: Exchange) -> None:
        said = json.loads(exchange.request.body)["messages"][-1]["content"]
        assert said == 'a"\\\n\u00e9\U0001f642'
        exchange.write(scripts.sse(whole("c", ["\u00fc", "!"], 9)))

    first = steps([event("b", ROLE), *words("b", ['a"\\', "\n\u00e9", "\ud83d", "\ude42"])])
    async with stage(*first, scripts.fin(), second=answers) as (proxy, _first, second):
        proxy.alive = False
        answer = await proxy.ask(body())
        text = told(answer.body)[0].encode("utf-16", "surrogatepass").decode("utf-16")
        assert text == 'a"\\\n\u00e9\U0001f642\u00fc!'
    async with stage(*steps(words("b", ["a", "\ud83d"])), scripts.fin()) as (proxy, _first, second):
        proxy.alive = False
        await proxy.ask(body())
        assert second.requests == [], "half a character cannot be handed on"


async def test_names_and_keys_are_the_second_platforms_own() -> None:
    async with ScriptedBackend(*cut_after(3, scripts.fin())) as first, ScriptedBackend(rest) as second:
        text = two(first, second, pool=ON + ", model: ours").replace(
            "s: {probe: none", "s: {probe: none, api_key: k2, continues: prefill, models: {ours: theirs}"
        )
        async with watched(text, first, second) as proxy:
            proxy.alive = False
            assert told((await proxy.ask(body())).body)[0] == "".join(WORDS)
            sent = second.requests[0]
            asked = json.loads(sent.body)
            assert (asked["model"], sent.header("authorization")) == ("theirs", "Bearer k2")
            assert "continue_final_message" not in asked and "add_generation_prompt" not in asked


async def test_usage_on_every_chunk_is_summed_on_every_chunk() -> None:
    def counting(backend: str, said: Sequence[str], prompt: int) -> list[bytes]:
        return [
            event(backend, {"content": word}, usage={"prompt_tokens": prompt, "completion_tokens": n, "total_tokens": prompt + n})
            for n, word in enumerate(said, 1)
        ]

    async def counts_on(exchange: Exchange) -> None:
        exchange.write(scripts.sse([event("c", ROLE), *counting("c", WORDS[4:], 11), event("c", {}, "stop"), scripts.DONE]))

    async with stage(*steps([event("b", ROLE), *counting("b", WORDS[:4], 7)]), scripts.fin(), second=counts_on) as (proxy, _first, _second):
        proxy.alive = False
        _, documents = told((await proxy.ask(body())).body)
        assert [each["usage"]["completion_tokens"] for each in documents if each.get("usage")] == list(range(1, 13))
        assert {each["usage"]["prompt_tokens"] for each in documents if each.get("usage")} == {7}


CHUNKS = st.lists(st.sampled_from([1, 2, 7, 40, 100, 333]), min_size=1, max_size=6)


@given(cuts=st.lists(st.tuples(st.integers(0, 10_000), CHUNKS, st.sampled_from([b"\n", b"\r\n", b"\r"])), min_size=40, max_size=40))
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
def test_wherever_it_is_cut_no_byte_of_the_text_is_lost_or_said_twice(cuts: list[tuple[int, list[int], bytes]]) -> None:
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        hurry(patch, failures_in_row=1000, window_samples=1000)
        runner.run(_cut_anywhere(cuts))


async def _cut_anywhere(cuts: list[tuple[int, list[int], bytes]]) -> None:
    async with stage(scripts.fin()) as (proxy, first, second):
        proxy.alive = False
        for place, sizes, line_end in cuts:
            stream = b": ping\n\n" + b"".join(whole("b", WORDS, 5)[:-3])
            stream = stream.replace(b"\n", line_end)
            ends = [number for number, _ in enumerate(stream) if stream.startswith(line_end * 2, number)]
            least = ends[2] + 2 * len(line_end)  # the comment, the role, the first word
            cut = least + place % (len(stream) - least)
            pieces: list[bytes] = []
            at = 0
            while at < cut:
                size = sizes[len(pieces) % len(sizes)]
                pieces.append(stream[at : min(at + size, cut)])
                at += size
            first.then(*steps(pieces), scripts.fin())
            answer = await proxy.ask(body())
            text, documents = told(answer.body.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))
            assert (text, answer.whole, answer.body.count(b"[DONE]")) == ("".join(WORDS), True, 1), (cut, pieces)
            assert [each["usage"]["completion_tokens"] for each in documents if each.get("usage")] == [12]
        assert len(second.requests) == len(cuts)
