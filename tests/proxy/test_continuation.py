"""What is plain text, how is the rest asked for, and how does it join the stream? Bodies and events, byte by byte."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.model import Request
from proxy import json_spans
from proxy.continuation import Listener, Rewriter, before_error, forbids, rest_of, split, whole_events
from proxy.endpoints import classify
from proxy.intake import Reading
from proxy.prompts import NO_PROMPT
from proxy.sse import Usage
from tests.wire import ev, scripts


def reading(body: bytes, path: bytes = b"/v1/chat/completions", max_tokens: int | None = None) -> Reading:
    endpoint = classify(path)
    assert endpoint is not None
    request = Request("r", "t", 0, model="m", streamed=True, max_tokens=max_tokens)
    return Reading(request, endpoint, body, json_spans.members(body), None, NO_PROMPT, False)


def heard(*events: bytes) -> Listener:
    listener = Listener()
    for event in events:
        listener.feed(event)
    return listener


def choice(delta: dict[str, Any], **more: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta, **more}]}).encode() + b"\n\n"


PLAIN = b'{"messages": [{"role":"user","content":"hi"}] , "max_tokens" : 50,"temperature":1.0, "stop":["]}"]}'


def test_only_the_rest_is_asked_for_and_every_other_byte_stays() -> None:
    found = rest_of(reading(PLAIN, max_tokens=50), heard(ev("a"), choice({"content": '"b'})), flags=False)
    assert found is not None
    assert found.body == (
        b'{"messages": [{"role":"user","content":"hi"},{"role":"assistant","content":"a\\"b"}] , "max_tokens" : 48,"temperature":1.0, '
        b'"stop":["]}"]}'
    )
    flagged = rest_of(reading(PLAIN, max_tokens=50), heard(ev("a")), flags=True)
    assert flagged is not None
    assert flagged.body.endswith(b'"stop":["]}"],"continue_final_message":true,"add_generation_prompt":false}')
    assert flagged.members is not None and len(flagged.members) == 6


@pytest.mark.parametrize(
    ("limits", "rest"),
    [
        (b'"max_completion_tokens":9', b'"max_completion_tokens":7'),
        (b'"max_tokens":null,"max_completion_tokens":9', b'"max_tokens":null,"max_completion_tokens":7'),
        (b'"max_tokens":9.0', b'"max_tokens":7'),
    ],
)
def test_a_ceiling_is_lowered_by_whatever_name_it_has(limits: bytes, rest: bytes) -> None:
    body = b'{"messages":[{"role":"user","content":"hi"}],%b}'
    found = rest_of(reading(body % limits, max_tokens=9), heard(ev("a"), ev("b")), flags=False)
    assert found is not None and rest in found.body


@pytest.mark.parametrize(
    "messages", [b"[]", b'[{"role":"user"},{"role":"assistant","content":"a"}]', b'[{"content":"hi"}]', b"[1]", b'["hi"]']
)
def test_a_conversation_that_does_not_end_in_a_question_has_no_rest(messages: bytes) -> None:
    assert rest_of(reading(b'{"messages":%b}' % messages), heard(ev("a")), flags=False) is None


@pytest.mark.parametrize(
    ("members", "field"),
    [
        (b'"model":"m","stream":true,"temperature":0,"stop":"x"', ""),
        (b'"n":1,"tools":[],"logprobs":false,"response_format":{"type":"text"},"modalities":["text"],"top_logprobs":null', ""),
        (b'"n":2', "n"),
        (b'"tools":[{}]', "tools"),
        (b'"logprobs":true', "logprobs"),
        (b'"response_format":{"type":"json_object"}', "response_format"),
        (b'"guided_json":{"type":"object"}', "guided_json"),
        (b'"continue_final_message":true', "continue_final_message"),
        (b'"reasoning_effort":"high"', "reasoning_effort"),
        (b'"modalities":["text","audio"]', "modalities"),
        (b'"whatever":1', "whatever"),
    ],
)
def test_which_fields_keep_an_answer_from_being_continued(members: bytes, field: str) -> None:
    assert forbids(reading(b'{"messages":[],%b}' % members)) == field


@pytest.mark.parametrize("path", [b"/v1/completions", b"/v1/responses", b"/v1/messages"])
def test_which_endpoints_are_not_continued(path: bytes) -> None:
    assert forbids(reading(b"{}", path)) == "path"


def test_what_was_said_and_what_ends_the_chance() -> None:
    listener = heard(scripts.ROLE, ev("a"), b": ping\n\n", choice({"content": None}), ev("b"))
    assert (listener.said, listener.said_tokens, listener.can_be_continued) == ("ab", 2, True)
    for last in (
        choice({"tool_calls": [{"index": 0}]}),
        choice({"reasoning_content": "hm"}),
        choice({"content": "x"}, logprobs={"content": []}),
        b'data: {"choices":[{"index":1,"delta":{"content":"x"}}]}\n\n',
        b'data: {"choices":[{"text":"x"}]}\n\n',
        scripts.finish(),
        scripts.DONE,
    ):
        assert not heard(ev("a"), last).can_be_continued, last
    assert not heard(scripts.ROLE).can_be_continued
    many = heard(*[ev("x" * 2000)] * 600)
    assert not many.can_be_continued and many.said == "", "too long to be kept"


def test_nothing_behind_an_error_or_in_it_was_said() -> None:
    error = b'data: {"error":{"message":"x"},"choices":[{"index":0,"delta":{"content":"no"}}]}\n\n'
    listener = heard(ev("a") + error + ev("b") + scripts.DONE)
    assert (listener.said, listener.said_tokens, listener.can_be_continued) == ("a", 1, True)
    assert before_error(b": x\n\n" + ev("a") + error + ev("b")) == (b": x\n\n" + ev("a"), error)
    assert before_error(ev("a")) == (ev("a"), b"")


def first_leg(**usage: int) -> Listener:
    counted = b',"usage":' + json.dumps(usage).encode() if usage else b""
    return heard(
        b'data: {"id":"one","created":1,"model":"m1","system_fingerprint":"f1","choices":[{"delta":{"content":"a"}}]%b}\n\n' % counted
    )


@pytest.mark.parametrize(
    ("event", "becomes"),
    [
        (b": ping\n\n", b": ping\n\n"),
        (b"data: [DONE]\n\n", b"data: [DONE]\n\n"),
        (b'data: {"error":{"message":"x"}}\n\n', b'data: {"error":{"message":"x"}}\n\n'),
        (b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n', b""),
        (b'data: {"choices":[{"delta":{"role":"assistant","content":null}}],"usage":null}\n\n', b""),
        (
            b'data: {"id":"two","created":2,"choices":[{"delta":{"role":"assistant","content":"b"}}],"model":"m2"}\r\n\r\n',
            b'data: {"id":"one","created":1,"choices":[{"delta":{"content":"b"}}],"model":"m1"}\n\n',
        ),
        (
            b'event: x\nid: 7\ndata: {"system_fingerprint":"f2","choices":[{"delta":{},"finish_reason":"stop"}]}\n\n',
            b'event: x\nid: 7\ndata: {"system_fingerprint":"f1","choices":[{"delta":{},"finish_reason":"stop"}]}\n\n',
        ),
        (
            b'data: {"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":4,"total_tokens":12,"prompt_tokens_details":{"x":1}}}\n\n',
            b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5,"total_tokens":12,"prompt_tokens_details":{"x":1}}}\n\n',
        ),
        (
            b'data: {"choices":[{"delta":{"content":"\\ud83d"}}],"id":"two"}\n\n',
            b'data: {"choices":[{"delta":{"content":"\\ud83d"}}],"id":"one"}\n\n',
        ),
    ],
)
def test_an_event_of_the_rest_becomes_one_of_the_stream(event: bytes, becomes: bytes) -> None:
    assert Rewriter(first_leg()).rewritten(event) == becomes


def test_counts_on_the_way_are_believed() -> None:
    rewriter = Rewriter(first_leg(prompt_tokens=20, completion_tokens=3, total_tokens=23))
    assert rewriter.summed(Usage(99, 4)) == Usage(20, 7)
    assert Rewriter(first_leg()).summed(Usage(1, 4)) == Usage(1, 5), "never less than one"


PIECES = st.lists(st.sampled_from([b"data: x", b"\n", b"\r\n", b"\r", b"\n\n", b"\r\n\r\n", b": c", b"a"]), max_size=12).map(b"".join)


@given(PIECES)
def test_events_are_cut_where_the_watcher_ends_them_and_none_is_lost(data: bytes) -> None:
    whole, rest = whole_events(data)
    assert whole + rest == data
    assert b"".join(split(data)) == data
    lines = rest.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    assert b"\n\n" not in lines, "an event is held back though it is complete"
    ended = whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    assert not ended or ended.endswith(b"\n\n")
