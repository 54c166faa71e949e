"""Which events are known again, and which bring news?"""

from __future__ import annotations

import time

import pytest

from proxy import event_shape
from proxy.event_shape import ENDINGS_MAX, LEARNT_MAX_BYTES, KnownEvent, learn

OPENING = b'"content":"'


def known(event: bytes) -> KnownEvent | None:
    """The event, learnt; `@` stands for its text."""
    start = event.index(b"@")
    return learn(event, start, start + 1)


def chat(text: bytes, behind: bytes, before: bytes = b'"id":"c-1","created":5') -> bytes:
    return b'data: {%b,"choices":[{"index":0,"delta":{"content":"%b"}%b}' % (before, text, behind)


PLAIN = b',"logprobs":null,"finish_reason":null}],"t":12.5,"obfuscation":"aB"'


@pytest.mark.parametrize("text", [b"a", b" token", b"\\n", b"\\u00e9", "é🙂".encode(), b"}]}", b"finish_reason", b"\xff"])
def test_another_text_is_the_same_event(text: bytes) -> None:
    shape = known(chat(b"@", PLAIN))
    assert shape is not None and shape.repeated_by(chat(text, PLAIN) + b"\n\n")


@pytest.mark.parametrize("text", [b"", b"\\", b"a\\\\", b'a"b', b'a\\"b', b"a\nb", b"a\rb"])
def test_what_is_no_plain_text_is_not(text: bytes) -> None:
    shape = known(chat(b"@", PLAIN))
    assert shape is not None and not shape.repeated_by(chat(text, PLAIN) + b"\n\n")


def test_numbers_and_ids_behind_the_text_may_be_others_and_nothing_else() -> None:
    shape = known(chat(b"@", PLAIN))
    assert shape is not None
    for behind in (PLAIN.replace(b"12.5", b"7"), PLAIN.replace(b'"aB"', b'"0123"'), PLAIN.replace(b'"aB"', b'""')):
        assert shape.repeated_by(chat(b"a", behind) + b"\n\n")
    for behind in (PLAIN.replace(b"12.5", b'"7"'), PLAIN.replace(b'"logprobs":null', b'"logprobs":[]'), PLAIN + b',"x":1'):
        assert not shape.repeated_by(chat(b"a", behind) + b"\n\n")
        assert shape.resembles(chat(b"a", behind) + b"\n\n"), "it is a token all the same"
    for rest in (b"", b"\n", b"\n\n\n", b"\n\ndata: x"):
        assert not shape.repeated_by(chat(b"a", PLAIN) + rest)
        assert not shape.resembles(chat(b"a", PLAIN) + rest)


@pytest.mark.parametrize(
    "behind",
    [
        PLAIN.replace(b'"finish_reason":null', b'"finish_reason":"stop"'),
        PLAIN.replace(b'"finish_reason":null', b'"finish_reason":1'),
        PLAIN + b',"usage":{"completion_tokens":3}',
        PLAIN + b',"error":0',
        PLAIN + b',"error": {"message":"x"}',
        PLAIN + b',"sequence_number":4',
        PLAIN + b',"output_tokens":4',
    ],
)
def test_what_brings_news_is_neither_learnt_nor_taken_for_known(behind: bytes) -> None:
    assert known(chat(b"@", behind)) is None
    shape = known(chat(b"@", PLAIN))
    assert shape is not None
    assert not shape.repeated_by(chat(b"a", behind) + b"\n\n")
    assert not shape.resembles(chat(b"a", behind) + b"\n\n")


def test_null_is_no_news() -> None:
    for null in (b'"usage":null', b'"usage": null', b'"error":null'):
        assert known(chat(b"@", PLAIN + b"," + null)) is not None


def test_another_beginning_is_another_event() -> None:
    shape = known(chat(b"@", PLAIN))
    assert shape is not None and not shape.repeated_by(chat(b"a", PLAIN, before=b'"id":"c-2","created":5') + b"\n\n")


def test_streams_share_the_expression_for_their_ending() -> None:
    first, second = (known(chat(b"@", PLAIN, before=b'"id":"%d"' % number)) for number in (1, 2))
    assert first is not None and second is not None and first.matches is second.matches


def test_expressions_are_bounded_in_number_and_length() -> None:
    for number in range(2 * ENDINGS_MAX):
        assert known(chat(b"@", b',"x%c":1}]' % (65 + number % 26) + b',"y%d_":1' % number)) is not None
    assert len(event_shape._endings) == ENDINGS_MAX
    assert known(chat(b"@", b',"x":"%b"}]' % (b"y" * LEARNT_MAX_BYTES))) is None


def test_no_event_makes_the_expression_slow() -> None:
    """The time is that of reading it once, also where the end differs."""
    shape = known(chat(b"@", b',"a":1,"b":2,"id":"x"}],"c":3'))
    assert shape is not None
    took = []
    for size in (2_000, 200_000):
        hard = chat(b"a" * size, b',"a":%b,"b":%b,"id":"%b"}],"d":3' % (b"1" * size, b"2" * size, b"z" * size)) + b"\n\n"
        best = float("inf")
        for _ in range(5):
            began = time.perf_counter()
            assert not shape.repeated_by(hard)
            best = min(best, time.perf_counter() - began)
        took.append(best)
    assert took[1] < 1000 * took[0], "a hundred times as long may take a hundred times as much; its square would be ten thousand"
