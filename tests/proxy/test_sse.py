"""What the watcher concludes from a stream, and that no cut into chunks changes it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.endpoints import Api
from proxy.sse import EVENT_MAX_BYTES, UNARY_MAX_BYTES, StreamWatcher, UnaryWatcher, Usage


def event(document: Any, name: str = "", *, spaced: bool = False) -> bytes:
    text = json.dumps(document, ensure_ascii=False, separators=None if spaced else (",", ":"))
    return (f"event: {name}\n" if name else "").encode() + b"data: " + text.encode() + b"\n\n"


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
    return event({"id": "c-1", "object": "chat.completion.chunk", "created": 1763, "model": "m", "choices": choices, **more})


def said(text: str) -> bytes:
    return chunk({"content": text})


def named(document: Any) -> bytes:
    return event(document, document["type"])


ROLE = chunk({"role": "assistant", "content": ""})
STOP = chunk({}, "stop")
USAGE = chunk(None, usage={"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15})
DONE = b"data: [DONE]\n\n"
CHAT = ROLE + said("Hel") + said("lo") + said(' "you"\n') + STOP + USAGE + DONE

MESSAGES = b"".join(
    map(
        named,
        [
            {
                "type": "message_start",
                "message": {"role": "assistant", "usage": {"input_tokens": 9, "cache_read_input_tokens": 4, "output_tokens": 1}},
            },
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "ping"},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "lo"}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 7}},
            {"type": "message_stop"},
        ],
    )
)

RESPONSES = b"".join(
    map(
        named,
        [
            {"type": "response.created", "sequence_number": 0, "response": {"usage": None}},
            {"type": "response.output_text.delta", "sequence_number": 1, "delta": ""},
            {"type": "response.output_text.delta", "sequence_number": 2, "delta": "Hel"},
            {"type": "response.output_text.delta", "sequence_number": 3, "delta": "lo"},
            {"type": "response.completed", "sequence_number": 4, "response": {"usage": {"input_tokens": 5, "output_tokens": 2}}},
        ],
    )
)


def watch(chunks: Iterable[bytes], api: Api = Api.OPENAI) -> StreamWatcher:
    watcher = StreamWatcher(api)
    for data in chunks:
        watcher.feed(data)
    return watcher


def broken(inside: bytes) -> bytes:
    """A token's event with these bytes in its text as they are."""
    return said("a").replace(b'"a"', b'"a' + inside + b'b"')


def verdict(watcher: StreamWatcher) -> tuple[Any, ...]:
    return (
        watcher.first_token,
        watcher.tokens,
        watcher.finished,
        watcher.done,
        watcher.error,
        watcher.usage,
        watcher.gave_up,
        watcher.sequence,
        watcher.open_event,
        watcher.whole,
        watcher.closing,
    )


def single_bytes(data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


# --- what is concluded ------------------------------------------------------------------------------------------------


def test_a_whole_chat_stream() -> None:
    watcher = watch([CHAT])
    assert watcher.first_token and watcher.finished and watcher.done and watcher.whole
    assert watcher.tokens == 3
    assert watcher.usage == Usage(12, 3)
    assert watcher.error is None and not watcher.open_event


def test_a_whole_anthropic_stream() -> None:
    watcher = watch([MESSAGES], Api.ANTHROPIC)
    assert (watcher.first_token, watcher.tokens, watcher.whole, watcher.done) == (True, 2, True, True)
    assert watcher.usage == Usage(13, 7)


def test_a_whole_responses_stream() -> None:
    watcher = watch([RESPONSES], Api.RESPONSES)
    assert (watcher.first_token, watcher.tokens, watcher.whole, watcher.sequence) == (True, 2, True, 5)
    assert watcher.usage == Usage(5, 2)


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "x"},
        {"content": None, "reasoning_content": "x"},
        {"reasoning": "x"},
        {"refusal": "no"},
        {"content": [{"type": "thinking", "thinking": "x"}]},
        {"tool_calls": [{"index": 0, "id": "t", "function": {"name": "f", "arguments": ""}}]},
    ],
)
def test_these_are_first_tokens(delta: dict[str, Any]) -> None:
    assert watch([ROLE, chunk(delta)]).first_token


@pytest.mark.parametrize(
    "data",
    [
        ROLE,
        chunk({"role": "assistant", "content": None}),
        chunk({"tool_calls": []}),
        chunk({}),
        USAGE,
        b": ping\n\n",
        b"id: 7\n\n",
        b"data:\n\n",
        b"data: not json\n\n",
        b'data: ["content"]\n\n',
        b'data: {"choices":[{"delta":{"content":7}}]}\n\n',
        b'data: {"choices":[null,{"delta":[]},7]}\n\n',
        said("x")[:-1],
    ],
)
def test_these_are_not(data: bytes) -> None:
    watcher = watch([data])
    assert not watcher.first_token and watcher.tokens == 0 and not watcher.whole


def test_legacy_completions_say_text() -> None:
    assert watch([event({"choices": [{"text": "x", "finish_reason": None}]})]).first_token


@pytest.mark.parametrize(
    "data",
    [
        event({"error": {"message": "boom", "code": 500}}),
        event({"object": "error", "message": "boom"}),
        event({"error": "boom", "error_type": "overloaded"}),
        event({"error": {"code": 500}, "choices": [{"delta": {"content": "x"}}]}, spaced=True),
        b"event: error\ndata: boom\n\n",
        b'error: {"code":500,"message":"boom"}\n\n',
    ],
)
def test_an_error_event_spoils_the_answer_even_if_done_follows(data: bytes) -> None:
    watcher = watch([said("a"), data, DONE])
    assert watcher.error is not None and watcher.error in data
    assert watcher.done and not watcher.whole
    first = watch([data])
    assert first.error is not None and not first.first_token


def test_an_error_that_is_null_is_none() -> None:
    assert watch([chunk({"content": "x"}, error=None)]).error is None


@pytest.mark.parametrize(
    ("api", "document"),
    [
        (Api.ANTHROPIC, {"type": "error", "error": {"type": "overloaded_error", "message": "x"}}),
        (Api.RESPONSES, {"type": "response.failed", "response": {}}),
        (Api.RESPONSES, {"type": "error", "message": "x"}),
    ],
)
def test_other_apis_errors(api: Api, document: dict[str, Any]) -> None:
    assert watch([named(document)], api).error == json.dumps(document, separators=(",", ":")).encode()


def test_a_stream_that_just_ends_is_not_whole() -> None:
    assert not watch([ROLE, said("a"), said("b")]).whole
    assert watch([ROLE, said("a"), STOP]).whole
    assert watch([ROLE, said("a"), DONE]).whole


def test_usage_on_every_chunk_the_last_counts() -> None:
    rising = [chunk({"content": "x"}, usage={"prompt_tokens": 4, "completion_tokens": n}) for n in range(1, 6)]
    assert watch(rising).usage == Usage(4, 5)
    assert watch([*rising, chunk(None, usage=None), chunk(None, usage={"completion_tokens": -1}), DONE]).usage == Usage(4, 5)
    assert watch([chunk(None, usage={"prompt_tokens": True, "completion_tokens": 2**70})]).usage is None


def test_a_null_usage_on_every_chunk_keeps_the_short_way_open() -> None:
    watcher = watch([chunk({"content": text}, usage=None) for text in ("a", "b", "c")])
    assert watcher.tokens == 3 and watcher.known is not None


@pytest.mark.parametrize("late", [STOP, USAGE, DONE, event({"error": {"code": 1}})])
def test_what_matters_is_seen_among_known_events(late: bytes) -> None:
    """The short way must not swallow an event that differs anywhere but in its text."""
    alone = verdict(watch([said("a"), late]))
    among = verdict(watch([said("a"), *[said("b")] * 50, late]))
    assert among[2:] == alone[2:] and among[1] == alone[1] + 50


@pytest.mark.parametrize("text", ["", 'a"b', "a\\", "\n", "\r\n\r\n", "é🙂", '","finish_reason":"stop"', "data: [DONE]", '{"error":{}}'])
def test_no_text_is_taken_for_structure(text: str) -> None:
    plain = watch([said("a"), said(text), said("b")])
    assert plain.tokens == (2 if text == "" else 3)
    assert not plain.finished and not plain.done and plain.error is None


@pytest.mark.parametrize("line_end", [b"\n", b"\r", b"\r\n"])
def test_a_line_end_inside_a_text_is_a_line_end(line_end: bytes) -> None:
    assert watch([said("a"), broken(line_end + b"event: error" + line_end + b"data: ")]).error is not None
    assert watch([said("a"), broken(line_end * 2 + b"data: [DONE]" + line_end * 2)]).done


@pytest.mark.parametrize(
    "chunks", [[said("a"), broken(b'"}}],"usage":{"completion_tokens":3},"x":[{"y":{"z":"')], [said("a"), STOP[:-1], said("a")]]
)
def test_the_short_way_is_for_known_events_between_events(chunks: list[bytes]) -> None:
    assert verdict(watch(chunks)) == verdict(watch(single_bytes(b"".join(chunks))))


def test_comments_bom_and_other_spellings() -> None:
    assert watch([b"\xef\xbb\xbf" + said("a")]).first_token
    assert watch([b": ping\n\n: ping\n", said("a").replace(b"data: ", b"data:")]).first_token
    assert watch([b"retry: 5\nid: 3\n" + said("a")]).first_token
    assert watch([b'data: {"choices":[{"delta":\ndata: {"content":"x"}}]}\n\n']).first_token
    for line_end in (b"\r", b"\r\n"):
        crossed = watch([CHAT.replace(b"\n", line_end)])
        assert crossed.whole and crossed.tokens == 3 and crossed.usage == Usage(12, 3)


def test_what_engines_get_wrong_is_still_read() -> None:
    assert watch([b'data: {"choices":[{"delta":{"content":"\\ud83d"}}]}\n\n']).first_token
    assert watch([b'data: {"choices":[{"delta":{"content":"\xf0\x9f"}}]}\n\n']).first_token
    assert watch([b'data: {"choices":[{"delta":{"content":"x"},"logprobs":{"a":[-Infinity,NaN]}}]}\n\n']).first_token
    assert watch([b'data: {"choices":[{"delta":{"content":"x"},"finish_reason":""}]}\n\n']).finished is False


def test_what_closes_an_open_event() -> None:
    """An event of ours begins at a line of its own; after comments alone no blank line dispatches an empty event."""
    for sent, closing in [
        (b"", b""),
        (said("a"), b""),
        (said("a")[:-1], b"\n"),
        (said("a")[:-2], b"\n\n"),
        (b": pi", b"\n"),
        (b": ping\n", b""),
        (b": ping\ndata: x\n", b"\n"),
        (b"data: x\r", b"\n\n"),
        (b"data: x\r\r", b""),
        (b"data: " + b"x" * EVENT_MAX_BYTES, b"\n\n"),
        (b"data: " + b"x" * EVENT_MAX_BYTES + b"\n", b"\n"),
    ]:
        assert watch([sent]).closing == closing, sent[:20]
        assert watch(single_bytes(sent[-64:])).closing == watch([sent[-64:]]).closing


# --- how it was cut does not matter ------------------------------------------------------------------------------------


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize(("api", "stream"), [(Api.OPENAI, CHAT), (Api.ANTHROPIC, MESSAGES), (Api.RESPONSES, RESPONSES)])
def test_cut_at_every_offset(api: Api, stream: bytes, line_end: bytes) -> None:
    data = stream.replace(b"\n", line_end)
    expected = verdict(watch([data], api))
    assert verdict(watch(single_bytes(data), api)) == expected
    for at in range(len(data) + 1):
        assert verdict(watch([data[:at], data[at:]], api)) == expected, at


PIECES = st.sampled_from(
    [
        ROLE,
        said("a"),
        said("b"),
        said('"q"'),
        chunk({"content": "a"}, usage={"prompt_tokens": 1, "completion_tokens": 2}),
        chunk({"content": "b"}, "stop"),
        STOP,
        USAGE,
        DONE,
        b": ping\n\n",
        b": ping\n",
        b"\n",
        b"\r",
        b"\xef\xbb\xbf",
        b"id: 1\n",
        b"event: error\n",
        event({"error": {"code": 500}}),
        said("a")[:30],
        broken(b"\r\r"),
        broken(b"\n\n"),
        broken(b"\r\nevent: error\n"),
        broken(b'"}}],"usage":{"completion_tokens":3},"x":[{"y":{"z":"'),
        b'"},"finish_reason":null}]}\n\n',
        MESSAGES,
        RESPONSES,
    ]
)
STREAMS = st.lists(st.one_of(PIECES, st.binary(max_size=12)), max_size=14).map(b"".join)
APIS = st.sampled_from(list(Api))


@settings(max_examples=500, deadline=None)
@given(st.lists(PIECES, max_size=10), APIS)
def test_events_that_come_one_by_one_mean_what_they_mean_in_a_row(pieces: list[bytes], api: Api) -> None:
    """Here the short way is taken most."""
    stream = b"".join(pieces)
    assert verdict(watch(pieces, api)) == verdict(watch([stream], api)) == verdict(watch(single_bytes(stream), api))


@settings(max_examples=300, deadline=None)
@given(STREAMS, APIS, st.sampled_from([b"\n", b"\r\n", b"\r"]), st.data())
def test_no_slicing_changes_the_verdict(stream: bytes, api: Api, line_end: bytes, data: st.DataObject) -> None:
    stream = stream.replace(b"\n", line_end)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    sliced = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    expected = verdict(watch([stream], api))
    assert verdict(watch(sliced, api)) == expected
    assert verdict(watch(single_bytes(stream), api)) == expected


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=200), max_size=8), APIS)
def test_random_bytes_never_raise(chunks: list[bytes], api: Api) -> None:
    watcher = watch(chunks, api)
    assert isinstance(watcher.closing, bytes) and watcher.whole in (True, False)


# --- large events -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [EVENT_MAX_BYTES - 1, EVENT_MAX_BYTES, EVENT_MAX_BYTES + 1, EVENT_MAX_BYTES + 2, 8 * 1024 * 1024])
def test_an_event_too_large_is_passed_on_unread(size: int) -> None:
    frame = len(said("")) - 2
    large = said("x" * (size - frame))
    assert len(large) == size + 2
    stream = said("a") + large + USAGE + large[:-1]
    expected = verdict(watch([stream]))
    for step in (4096, 65536, 65537):
        watcher = watch([stream[at : at + step] for at in range(0, len(stream), step)])
        assert verdict(watcher) == expected
        assert len(watcher._open) <= EVENT_MAX_BYTES + step
    watcher = watch([stream])
    assert watcher.gave_up == (size > EVENT_MAX_BYTES) and watcher.first_token and watcher.tokens == 2
    assert watcher.usage == Usage(12, 3) and watcher.open_event


def test_a_terminal_event_too_large_to_read_is_known_by_its_name() -> None:
    last = named(
        {"type": "response.completed", "response": {"output": "x" * EVENT_MAX_BYTES, "usage": {"input_tokens": 1, "output_tokens": 1}}}
    )
    for chunks in ([last], [last[at : at + 10_000] for at in range(0, len(last), 10_000)]):
        watcher = watch(chunks, Api.RESPONSES)
        assert watcher.whole and watcher.gave_up and watcher.usage is None
    assert not watch([last[:-1]], Api.RESPONSES).whole


# --- answers that are not streamed --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "usage"),
    [
        ({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}, Usage(3, 4)),
        ({"usage": {"input_tokens": 3, "output_tokens": 4}, "metadata": {"a": "b"}}, Usage(3, 4)),
        ({"data": [], "usage": {"prompt_tokens": 8, "total_tokens": 8}}, Usage(8, 0)),
        ({"choices": [{"message": {"content": '"usage": {"prompt_tokens": 1, "completion_tokens": 1}'}}]}, None),
        ({"usage": {"prompt_tokens": 3, "completion_tokens": 4}, "x": {"usage": None}, "y": "usage"}, Usage(3, 4)),
        ({"usage": None}, None),
    ],
)
def test_usage_of_a_body(body: dict[str, Any], usage: Usage | None) -> None:
    for text in (json.dumps(body), json.dumps(body, indent=1)):
        watcher = UnaryWatcher()
        for data in single_bytes(text.encode()):
            watcher.feed(data)
        assert watcher.usage == usage


def test_usage_at_the_end_of_a_large_body_in_bounded_memory() -> None:
    watcher = UnaryWatcher()
    for _ in range(100):
        watcher.feed(b"x" * UNARY_MAX_BYTES)
        assert len(watcher._end) <= 2 * UNARY_MAX_BYTES
    watcher.feed(b'","usage":{"prompt_tokens":3,"completion_tokens":4},"timings":{}}')
    assert watcher.usage == Usage(3, 4)


@settings(deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=50), st.just(b'"usage":')), max_size=5))
def test_any_body_has_some_usage_or_none(chunks: list[bytes]) -> None:
    watcher = UnaryWatcher()
    for data in chunks:
        watcher.feed(data)
    assert watcher.usage is None or watcher.usage.prompt_tokens >= 0


# --- events that differ behind their text ----------------------------------------------------------------------------


def _varied(text: str, number: int, finish: str = "null", more: str = "") -> bytes:
    return (
        b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":%b}]%b,"t":%d}\n\n'
        % (text.encode(), finish.encode(), more.encode(), number)
    )  # fmt: skip


class Reader(StreamWatcher):
    """Counts the pieces that were more than one known event."""

    read = 0

    def _feed(self, data: bytes) -> None:
        self.read += 1
        super()._feed(data)


def test_what_differs_behind_the_text_is_a_token_and_what_means_more_is_read() -> None:
    watcher = Reader(Api.OPENAI)
    for number in (7, 8, 1234):
        watcher.feed(_varied("a", number))
    for number, text in enumerate(["another text", "\\n", "é"]):
        watcher.feed(_varied(text, number))
    assert watcher.read == 1, "after the first the number may be any: nothing is looked at further"
    watcher.feed(_varied("a", -9))
    watcher.feed(_varied("a", 99, more=',"x":1'))
    assert watcher.read == 1, "what is new behind the text is no news"
    watcher.feed(_varied("a\\\\", 99))
    watcher.feed(_varied("", 99))
    assert watcher.read == 3
    assert (watcher.tokens, watcher.finished, watcher.usage) == (9, False, None)
    watcher.feed(_varied("b", 6, more=',"usage":{"prompt_tokens":3,"completion_tokens":6}'))
    assert watcher.usage == Usage(3, 6)
    watcher.feed(_varied("c", 7, finish='"stop"'))
    assert watcher.finished
    watcher.feed(_varied("d", 8, more=',"error":{"code":500}'))
    assert watcher.error is not None


def test_a_stream_that_changes_its_form_all_the_time_is_learnt_a_few_times_and_then_read() -> None:
    watcher = Reader(Api.OPENAI)
    for number in range(9):
        watcher.feed(chunk({"content": "a"}, **{f"x{number}": "y"}).replace(b'"choices"', b'"choices"'))
        watcher.feed(event({f"a{number}": 1, "choices": [{"delta": {"content": "b"}}]}))
    assert watcher.tokens == 18 and watcher.read > 8


_BEHIND = ["", ',"usage":null', ',"usage":{"prompt_tokens":3,"completion_tokens":6}', ',"error":{"code":5}', ',"obfuscation":"x9"']


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "", '\\"', "\\\\", "x}", "finish_reason", '\\"},\\"finish_reason\\":null}],\\"t\\":1']),
            st.integers(0, 99),
            st.sampled_from(["null", '"stop"']),
            st.sampled_from(
                ["", ',"usage":null', ',"usage":{"prompt_tokens":3,"completion_tokens":6}', ',"error":{"code":5}', ',"obfuscation":"x9"']
            ),
        ),
        max_size=6,
    )
)
def test_the_short_way_past_a_varied_event_agrees_with_reading_it(events: list[tuple[str, int, str, str]]) -> None:
    short, careful = StreamWatcher(Api.OPENAI), StreamWatcher(Api.OPENAI)
    for text, number, finish, more in [("a", 0, "null", ""), *events]:
        event = _varied(text, number, finish, more)
        short.feed(event)
        for at in range(len(event)):
            careful.feed(event[at : at + 1])
    said = [(each.tokens, each.finished, each.usage, each.error, each.first_token) for each in (short, careful)]
    assert said[0] == said[1]
