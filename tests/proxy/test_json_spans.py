"""Top-level members against an exact reference, and replacement that touches one value."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.json_spans import _SLICE_BYTES, MEMBERS_MAX, members, replace_model, value_span

WHITESPACE = st.text(" \t\r\n", max_size=2)
NAMES = st.sampled_from(["model", "stream", "messages", "a", "", "mod", 'q"', "b\\", "é", "🙂", "user/x"])
TEXTS = st.text(max_size=8)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), TEXTS, st.sampled_from(["model", '"model":"x"', "{", "]"])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=6,
)


@st.composite
def spelt(draw: st.DrawFn, text: str) -> str:
    """The text as a JSON string, each character plain or escaped as drawn."""
    out = []
    for character in text:
        if draw(st.booleans()):
            units = character.encode("utf-16-be")
            out += [f"\\u{units[at]:02x}{units[at + 1]:02X}" for at in range(0, len(units), 2)]
        else:
            out.append(json.dumps(character, ensure_ascii=False)[1:-1])
    return '"' + "".join(out) + '"'


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    """Objects with equal keys, escaped keys and any whitespace."""
    parts = []
    for _ in range(draw(st.integers(0, 6))):
        key = draw(spelt(draw(NAMES)))
        value = json.dumps(draw(VALUES), ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1])))
        w = [draw(WHITESPACE) for _ in range(4)]
        parts.append(f"{w[0]}{key}{w[1]}:{w[2]}{value}{w[3]}")
    return f"{draw(WHITESPACE)}{{{','.join(parts) or draw(WHITESPACE)}}}{draw(WHITESPACE)}".encode()


def reference(body: bytes) -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = json.loads(body, object_pairs_hook=list)
    return pairs


@settings(max_examples=300, deadline=None)
@given(documents())
def test_members_are_those_of_the_reference(body: bytes) -> None:
    found = members(body)
    assert [(key.text, json.loads(bytes(value), object_pairs_hook=list)) for key, value in found.items()] == reference(body)


@settings(max_examples=300, deadline=None)
@given(documents(), TEXTS)
def test_only_the_model_changes(body: bytes, name: str) -> None:
    found = members(body)
    changed = replace_model(body, found, name)
    before, after = reference(body), reference(changed)
    keys = [key for key, _ in before]
    if "model" in keys:
        at = keys.index("model")
        assert after == [*before[:at], ("model", name), *before[at + 1 :]]
        span = value_span(body, found, "model")
        assert span is not None
        assert changed[: span[0]] == body[: span[0]] and changed.endswith(body[span[1] :])
    else:
        assert after == [("model", name), *before]
        assert value_span(body, found, "model") is None


def test_number_formats_and_order_survive_to_the_byte() -> None:
    body = b'{"top_k":1.0, "seed":123456789012345678901234567890,\n"mod\\u0065l" : "a\\"b" ,"x":1e2}'
    assert replace_model(body, members(body), "ü") == body.replace(b'"a\\"b"', '"ü"'.encode())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"[]",
        b'"x"',
        b"null",
        b"{} x",
        b"{}{}",
        b'{"a":1,}',
        b'{"a":NaN}',
        b'{"a":tru}',
        b'{"a":01}',
        b"{'a':1}",
        b'{"a":"\\ud800"}',
        b'{"a":["\\udc00\\ud800"]}',
        b'{"\\ud800":1}',
        b'{"a":"\xff"}',
        b'{"a":["\xc0\xaf"]}',
        b'{"a":"\xed\xa0\x80"}',
        b'{"a":"\n"}',
        b'\xef\xbb\xbf{"a":1}',
        '{"a":1}'.encode("utf-16"),
        '{"a":1}'.encode("utf-16-le"),
        b"[" * 100_000,
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":' * 100_000,
    ],
)
def test_anything_else_is_no_object(body: bytes) -> None:
    with pytest.raises(ValueError, match="not a JSON object"):
        members(body)


def test_the_number_of_members_is_bounded() -> None:
    def keys(count: int) -> bytes:
        return b"{" + b",".join(b'"k%d":0' % n for n in range(count)) + b"}"

    assert len(members(keys(MEMBERS_MAX))) == MEMBERS_MAX
    for count in (MEMBERS_MAX + 1, 100_000):
        with pytest.raises(ValueError, match="not a JSON object"):
            members(keys(count))
    assert len(members(keys(MEMBERS_MAX))) == MEMBERS_MAX


def test_a_huge_integer_is_kept_as_it_is_spelt() -> None:
    digits = b"1" + b"0" * 5_000_000
    assert [bytes(value) for value in members(b'{"a":' + digits + b"}").values()] == [digits]


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_random_bytes_are_an_object_or_a_value_error(body: bytes) -> None:
    try:
        found = members(body)
    except ValueError:
        return
    assert [key.text for key in found] == [key for key, _ in reference(body)]


def test_a_large_body_is_checked_to_be_utf_8_across_the_slices_it_is_checked_in() -> None:
    text = "x" * (_SLICE_BYTES - 8)
    for letters in ("é" * 20, "狐" * 20, "🦊" * 20):  # somewhere a slice ends within one
        good = f'{{"messages":[],"x":"{text}{letters}"}}'.encode()
        assert [key.text for key in members(good)] == ["messages", "x"]
        for broken in (good[:-3] + b'"}', good.replace(b"x" * 100, b"\xff" * 100, 1), good[:-2] + b"\xe7\x8b" + good[-2:]):
            with pytest.raises(ValueError):
                members(broken)
