"""How much text is in a prompt, in every shape that prompts come in."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.json_spans import members
from proxy.prompts import Message, Prompt, plain_prompt, read_prompt


def prompt(document: dict[str, Any], key: str | None = "messages", *, needs_text: bool = True, ascii_only: bool = False) -> Prompt:
    body = json.dumps(document, ensure_ascii=ascii_only).encode()
    return read_prompt({key.text: value for key, value in members(body).items()}, key, needs_text)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def test_a_chat() -> None:
    said = prompt(
        {"messages": [{"role": "system", "content": "Be brief."}, user("Hi\n"), {"role": "assistant", "content": "Yes?"}, user("né")]}
    )
    assert (said.ascii_bytes, said.other_chars) == (9 + 3 + 4 + 1, 1)
    assert (said.turns, said.images, said.text, said.opening) == (2, False, "né", "Be brief.Hi\n")


def test_parts_and_images() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 10_000}}
    said = prompt({"messages": [user([{"type": "text", "text": "What is"}, picture, {"type": "text", "text": "this?"}])]})
    assert (said.ascii_bytes, said.images, said.text, said.opening) == (12, True, "What is\nthis?", "What is")


def test_anthropic_system_and_tool_results() -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "12345"}, {"type": "image", "source": {}}]}
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}]}
    said = prompt({"system": [{"type": "text", "text": "Sys"}], "messages": [user("Go"), call, user([result])]})
    assert (said.ascii_bytes, said.turns, said.images, said.opening) == (3 + 2 + len('{"a": 1}') + 5, 2, True, "SysGo")


def test_the_responses_api() -> None:
    items = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "function_call", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "output": "done"},
        {"type": "reasoning", "summary": [], "content": None},
    ]
    said = prompt({"instructions": "Sys", "input": items}, "input")
    assert (said.ascii_bytes, said.other_chars, said.turns) == (3 + 2 + 2 + 4, 0, 1)
    assert prompt({"input": "Hello"}, "input") == Prompt(5, 0, 1, False, "Hello", "Hello")


@pytest.mark.parametrize(
    ("value", "ascii_bytes"),
    [("abc", 3), (["abc", "de"], 5), ([1, 2, 3], 12), ([[1, 2], [3]], 12), (None, 0), ([], 0)],
)
def test_prompts_and_inputs(value: Any, ascii_bytes: int) -> None:
    said = prompt({"prompt": value}, "prompt")
    assert (said.ascii_bytes, said.other_chars, said.turns) == (ascii_bytes, 0, 1)


def test_escapes_count_as_the_characters_they_are() -> None:
    plain, escaped = (prompt({"messages": [user("日本語 🙂\t")]}, ascii_only=ascii_only) for ascii_only in (False, True))
    assert plain == escaped and (plain.ascii_bytes, plain.other_chars) == (2, 4)


def test_an_unknown_shape_is_measured_by_its_bytes() -> None:
    said = prompt({"messages": [{"role": 7, "content": {"deep": "text"}}]})
    assert said.ascii_bytes > 20 and said.turns == 1 and not said.images
    assert prompt({"documents": [{"text": "abc"}, {"title": {"x": "é"}, "text": 5}]}, "documents").other_chars == 1


def test_a_conversation_keeps_its_opening_as_it_grows() -> None:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "S" * 5000}, user("first")]
    openings = set()
    for turn in range(5):
        openings.add(prompt({"messages": messages}).opening)
        messages += [{"role": "assistant", "content": f"a{turn}"}, user(f"u{turn}")]
    assert openings == {"S" * 1024 + "first"}
    assert prompt({"messages": [user("other")]}).opening not in openings


def test_text_is_taken_only_where_a_route_asks() -> None:
    assert prompt({"messages": [user("x")]}, needs_text=False).text == ""
    assert prompt({"prompt": "x"}, "prompt", needs_text=False).text == ""


NAMES = st.sampled_from(["role", "content", "type", "text", "input", "output"])
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(JSON, st.booleans())
def test_any_shape_has_a_length(value: Any, needs_text: bool) -> None:
    said = prompt({"messages": value, "system": value}, needs_text=needs_text, ascii_only=True)
    assert said.ascii_bytes >= 0 and said.other_chars >= 0 and said.turns >= 0


@given(
    st.lists(st.fixed_dictionaries({"role": st.sampled_from(["user", "system", "assistant", "tool"]), "content": st.text(max_size=2000)})),
    st.booleans(),
)
def test_plain_messages_are_read_as_any_others(messages: list[dict[str, Any]], needs_text: bool) -> None:
    plain = [Message(message["role"], message["content"]) for message in messages]
    general = prompt({"messages": messages}, needs_text=needs_text)
    assert plain_prompt(plain, needs_text, True) == general
    assert plain_prompt(plain, needs_text, False) == msgspec.structs.replace(general, opening="")
