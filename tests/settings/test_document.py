"""What does the YAML say? Scalars by YAML 1.2, places kept, and nothing that a settings file does not need."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.settings.document import DEPTH_MAX, FILE_BYTES_MAX, NODES_MAX, Mark, Node, Substituted, core_scalar, decode, parse

Found = tuple[Mark, str, str]


def read(text: str, **environ: str) -> tuple[Node | None, list[Found]]:
    found: list[Found] = []
    return parse(text, environ, lambda *finding: found.append(finding)), found


def plain(text: str, **environ: str) -> Any:
    node, found = read(text, **environ)
    assert node is not None and not found
    return node.plain()


def only(text: str, **environ: str) -> tuple[int, int, str, str]:
    _, found = read(text, **environ)
    [(mark, path, message)] = found
    return (*mark, path, message)


@pytest.mark.parametrize(
    "word",
    [
        "on",
        "off",
        "yes",
        "no",
        "y",
        "n",
        "1:30",
        "12:30:45",
        "010",
        "0o17",
        "0x1F",
        "1_000",
        ".inf",
        ".nan",
        "1.",
        "+",
        ".",
        "e3",
        "-e3",
        "2001-01-01",
        "=",
        "tRUE",
        "1e999",
        "9" * 40,
    ],
)
def test_words_that_are_only_text(word: str) -> None:
    assert plain(f"a: {word}") == {"a": word}
    assert type(core_scalar(word)) is str


@pytest.mark.parametrize(
    ("word", "value"),
    [("true", True), ("False", False), ("0", 0), ("-7", -7), ("+7", 7), ("1.5", 1.5), ("-.5", -0.5), ("1e3", 1000.0), ("0.0", 0.0)],
)
def test_words_that_are_more(word: str, value: Any) -> None:
    assert plain(f"a: {word}") == {"a": value} and type(plain(f"a: {word}")["a"]) is type(value)


@pytest.mark.parametrize("word", ["true", "16", "1.5", "null", "~", ""])
def test_what_is_quoted_is_text(word: str) -> None:
    assert plain(f'a: "{word}"') == {"a": word} == plain(f"a: '{word}'")


def test_keys_are_text() -> None:
    assert plain("{1: a, true: b, null: c, on: d}") == {"1": "a", "true": "b", "null": "c", "on": "d"}


def test_places_of_keys_and_values() -> None:
    root, _ = read("a:\n  b: [x,  {c: 1}]\n")
    assert root is not None and root.children is not None
    a = root.children["a"]
    assert a.children is not None
    b = a.children["b"]
    assert b.children is not None
    item = b.children[1]
    assert item.children is not None
    assert (a.key_mark, a.mark) == (Mark(1, 1), Mark(2, 3))
    assert (b.key_mark, b.mark) == (Mark(2, 3), Mark(2, 6))
    assert (item.mark, item.children["c"].key_mark, item.children["c"].mark) == (Mark(2, 11), Mark(2, 12), Mark(2, 15))
    assert item.children["c"].path == ".a.b[1].c"


def test_columns_count_characters() -> None:
    assert only("äöü: 1\n{äöü: 2, 日本: 3, 日本: 4}"[7:])[:2] == (1, 17)


@pytest.mark.parametrize("word", ["", "~", "null", "NULL"])
def test_an_empty_value_is_a_problem(word: str) -> None:
    line, _, path, message = only(f"a:\n  b: {word}\n")
    assert (line, path) == (2, "a.b") and "has no value" in message


def test_duplicate_keys_are_told_at_the_second_and_the_first_counts() -> None:
    root, found = read("a: 1\nb: {c: 1, c: {x: 1}}\na: 2\n")
    assert [(*mark, path, message) for mark, path, message in found] == [
        (2, 11, "b.c", "is given twice; the first is on line 2"),
        (3, 1, "a", "is given twice; the first is on line 1"),
    ]
    assert root is not None and root.plain() == {"a": 1, "b": {"c": 1}}


@pytest.mark.parametrize(
    ("text", "place", "word"),
    [
        ("a: &x 1", (1, 4), "anchor"),
        ("a: &x {b: 1}", (1, 4), "anchor"),
        ("a: *x", (1, 4), "alias"),
        ("a: !!str 1", (1, 4), "tag"),
        ("a: !!python/object/apply:os.system ['x']", (1, 4), "tag"),
        ("! a: 1", (1, 1), "tag"),
        ("a:\n  <<: {b: 1}", (2, 3), "merge key"),
        ("a: 1\n---\nb: 2", (2, 1), "second document"),
        ("? [a]\n: 1", (1, 3), "plain word for a key"),
        ("? {a: 1}\n: 1", (1, 3), "plain word for a key"),
        ("a: {b: 1\nc: 2", (2, 2), "cannot be read"),
        ("a: b: c", (1, 5), "cannot be read"),
        ("a: @b", (1, 4), "cannot be read"),
        ('a: "x', (1, 6), "cannot be read"),
        ("a: 1\n\tb: 2", (2, 1), "cannot be read"),
        ("a: " + "[" * 40, (1, 4 + DEPTH_MAX - 1), "nested too deeply"),
        ("", (1, 1), "is empty"),
        ("# nothing\n", (1, 1), "is empty"),
    ],
)
def test_what_is_not_read(text: str, place: tuple[int, int], word: str) -> None:
    _, found = read(text)
    assert any(mark == place and word in message for mark, _, message in found), found


def test_billion_laughs_end_at_the_first_alias() -> None:
    text = "a: &a [x, x]\n" + "".join(
        f"{new}: &{new} [{', '.join(['*' + old] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
    )
    root, found = read(text)
    assert root is None and len(found) == 3


def test_the_number_of_parts_is_bounded() -> None:
    root, found = read(f"[{'a,' * (NODES_MAX + 5)}]")
    assert root is None and "too large" in found[-1][2]


def test_variables_are_put_into_values_and_keys() -> None:
    content = plain("a: ${X}\nb: '${N:-16}'\n${X}: z\nc: p${X}q\nd: $$", X="on")
    assert content == {"a": "on", "b": "16", "on": "z", "c": "ponq", "d": "$"}
    assert type(content["b"]) is Substituted


def test_variables_cannot_bring_structure() -> None:
    assert plain("a: ${X}", X="{b: 1}\nc: 2") == {"a": "{b: 1}\nc: 2"}


def test_an_unset_variable_is_told_at_its_value() -> None:
    assert only("a:\n  - ${NONE}")[:3] == (2, 5, "a[0]")
    assert only("a:\n  ${NONE}: 1")[:2] == (2, 3)


def test_an_odd_key_cannot_forge_a_line() -> None:
    _, found = read('"x\\ny: z": {b: ~}')
    assert found[0][1] == '"x\\ny: z".b'


@pytest.mark.parametrize(
    ("data", "place", "word"),
    [
        (b"a: 1\nbc: \xff", (2, 5), "not UTF-8"),
        (b"\xff\xfea\x00", (1, 1), "not UTF-8"),
        (b"a: 1\nb\x00", (2, 2), "U+0000"),
        (b"a: \x1b[0m", (1, 4), "U+001B"),
        ("a\r\nb: \ufeff".encode(), (2, 4), "U+FEFF"),
        (b"#" * (FILE_BYTES_MAX + 1), (1, 1), "larger than 1 MiB"),
    ],
)
def test_what_is_no_text(data: bytes, place: tuple[int, int], word: str) -> None:
    found: list[Found] = []
    assert decode(data, lambda *finding: found.append(finding)) is None
    [(mark, path, message)] = found
    assert mark == place and path == "file" and word in message


def test_a_byte_order_mark_is_passed_over() -> None:
    assert decode(b"\xef\xbb\xbfa: 1", lambda *_: None) == "a: 1"


@given(st.text(max_size=200))
def test_any_text_is_read_or_told(text: str) -> None:
    root, found = read(text)
    assert root is not None or found
