"""What do bytes take on their way? Events of a stream, heads and bodies: those seen before, and new ones."""

from __future__ import annotations

import hashlib
import itertools
import json
from types import SimpleNamespace

import pytest

from policies.tokens import TokenEstimate
from proxy.endpoints import Api
from proxy.http1.answer_head import AnswerHead
from proxy.http1.framing import Head
from proxy.http1.heads import UpstreamHeads
from proxy.http1.known_head import KnownHead
from proxy.identity import Identities, Identity
from proxy.intake import Admitted, Reading, Reception
from proxy.sse import StreamWatcher
from tests.perf.conftest import Timed
from tests.wire import post, scripts

pytestmark = pytest.mark.perf
CHAT = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1700000000,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]}\n\n'
)
TIMED = CHAT[:-3] + b',"t":%d}\n\n'
FIELDS = [
    (b"host", b"fairlane"),
    (b"authorization", b"Bearer sk-A"),
    (b"content-type", b"application/json"),
    (b"accept", b"application/json"),
    (b"user-agent", b"OpenAI/Python 3.57.0"),
    (b"x-stainless-lang", b"python"),
    (b"x-stainless-retry-count", b"0"),
    (b"content-length", b"157"),
]
ANSWER_FIELDS = [(b"date", b"now"), (b"server", b"uvicorn"), (b"content-type", b"application/json"), (b"content-length", b"312")]


def watching(api: Api, events: list[bytes]) -> StreamWatcher:
    watcher = StreamWatcher(api)
    for event in events:
        watcher.feed(event)
    return watcher


def test_an_event_like_the_one_before(timed: Timed) -> None:
    watcher, event = watching(Api.OPENAI, [CHAT % b" a", CHAT % b" token"]), CHAT % b" token"
    timed(lambda: watcher.feed(event), times=200)
    assert watcher.tokens > 2


def test_an_event_with_another_number_behind_its_text(timed: Timed) -> None:
    watcher = watching(Api.OPENAI, [TIMED % (b" a", 123_456), TIMED % (b" b", 123_567)])
    events = itertools.cycle([TIMED % (b" token", 100_000 + number) for number in range(1000)])
    timed(lambda: watcher.feed(next(events)), times=200)
    assert watcher.tokens > 2


def test_an_event_of_anthropics_api(timed: Timed) -> None:
    begin, opened, *tokens = scripts.message_events(50)
    watcher = watching(Api.ANTHROPIC, [begin, opened, *tokens[:2]])
    events = itertools.cycle(tokens[:50])
    timed(lambda: watcher.feed(next(events)), times=200)
    assert watcher.tokens > 50


def test_an_event_that_has_to_be_decoded(timed: Timed) -> None:
    watcher, event = watching(Api.OPENAI, []), scripts.usage(7, 9)
    timed(lambda: watcher.feed(event), times=200)
    assert watcher.usage == (7, 9)


def test_the_upstream_head_for_a_head_that_comes_again(timed: Timed) -> None:
    heads, head = upstream()
    timed(lambda: heads.build_for(head, 157, b"req-0123456789abcdef01234567", trusted=False), times=200)


def test_the_upstream_head_for_a_new_head(timed: Timed) -> None:
    heads, head = upstream()
    timed(lambda: heads.build(b"POST", head.target, head.headers, 157, b"req-0123456789abcdef01234567", trusted=False), times=200)


def upstream() -> tuple[UpstreamHeads, Head]:
    heads = UpstreamHeads("10.0.0.1:8000", "/v1", [("Authorization", "Bearer sk-ours")], replaces_v1=True)
    return heads, Head("POST", b"/v1/chat/completions", "1.1", FIELDS)


def test_a_head_is_known_again(timed: Timed) -> None:
    data = post(b"x" * 157)
    known = KnownHead[SimpleNamespace].learn(data, SimpleNamespace(content_length=157))
    assert known is not None
    timed(lambda: known.whole(data), times=200)
    assert known.whole(data) == b"x" * 157


def test_the_head_of_an_answer_is_read(timed: Timed) -> None:
    assert AnswerHead.read(200, ANSWER_FIELDS) is not None
    timed(lambda: AnswerHead.read(200, ANSWER_FIELDS), times=200)


@pytest.mark.parametrize("kib", [4, 32, 1024])
def test_a_body_is_read(timed: Timed, kib: int) -> None:
    identities = Identities([(hashlib.sha256(b"sk-A").digest(), Identity("acme", 0))])
    reception = Reception(identities, ["fast", "slow"], TokenEstimate(), max_body_bytes=2**26)
    head = Head("POST", b"/v1/chat/completions", "1.1", FIELDS)
    head.content_length = 157
    admitted = reception.admit(head)
    assert isinstance(admitted, Admitted)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a word and another " * (kib * 1024 // 19)}]
    body = json.dumps({"model": "m", "messages": messages, "max_tokens": 16, "stream": True}).encode()
    assert isinstance(reception.read(body, admitted, "req-1"), Reading)
    timed(lambda: reception.read(body, admitted, "req-1"), times=1 if kib > 100 else 20)
