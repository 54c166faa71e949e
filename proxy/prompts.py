"""How long is a prompt, how many turns has it, does it hold images? Read from the body's fields, without a tokenizer.

What has another shape than the APIs describe is not refused here, for engines differ: it is measured by its bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

OPENING_CHARS = 1024  # of the system prompt and of the first message each: enough to tell conversations apart
_IMAGES = frozenset(["image_url", "input_image", "image"])
_TOKEN_BYTES = 4  # a prompt may come as token ids: each counts as so many ASCII bytes, the estimate's starting ratio


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """What decisions need to know of a prompt."""

    ascii_bytes: int = 0
    other_chars: int = 0
    turns: int = 0  # messages of the user
    images: bool = False
    opening: str = ""  # how the conversation begins: the same in all its requests
    text: str = ""  # the last message of the user, where a route asks for it


NO_PROMPT = Prompt()
_NONE = msgspec.Raw()


class _Part(msgspec.Struct):
    """A message, an item of a list of input, or a part of a message: they nest."""

    role: str | None = None
    type: str | None = None
    text: str | None = None
    content: str | list[_Part | str | int | list[Any]] | None = None
    output: str | list[_Part | str | int | list[Any]] | None = None  # of a tool, in the Responses API
    arguments: str | None = None  # of a tool call, there
    tool_calls: msgspec.Raw = _NONE
    input: msgspec.Raw = _NONE  # of a tool call, in Anthropic's API


class Message(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A message of plain text, which most are."""

    role: str
    content: str


_content = msgspec.json.Decoder(str | list[_Part | str | int | list[Any]] | None)


class _Tally:
    """Adds up text."""

    __slots__ = ("ascii_bytes", "images", "other_chars")

    def __init__(self) -> None:
        self.ascii_bytes = 0
        self.other_chars = 0
        self.images = False

    def text(self, text: str) -> None:
        if text.isascii():
            self.ascii_bytes += len(text)
        else:
            ascii_bytes = len(text.encode("ascii", "ignore"))
            self.ascii_bytes += ascii_bytes
            self.other_chars += len(text) - ascii_bytes

    def content(self, content: Any) -> None:
        if isinstance(content, str):
            self.text(content)
            return
        for part in content or ():
            if isinstance(part, _Part):
                self.part(part)
            elif isinstance(part, str):
                self.text(part)
            else:
                self.ascii_bytes += _TOKEN_BYTES * (len(part) if isinstance(part, list) else 1)

    def part(self, part: _Part) -> None:
        if part.type in _IMAGES:
            self.images = True
            return
        if part.text is not None:
            self.text(part.text)
        if part.arguments is not None:
            self.text(part.arguments)
        if isinstance(part.content, str):
            self.text(part.content)
        elif part.content is not None:
            self.content(part.content)
        if part.output is not None:
            self.content(part.output)
        for call in (part.tool_calls, part.input):
            if call is not _NONE:
                self.ascii_bytes += len(memoryview(call))

    def unread(self, value: msgspec.Raw) -> None:
        """By its bytes, each escaped character as one."""
        spelt = bytes(value)
        escaped = spelt.count(b"\\u")
        self.text(spelt.decode())
        self.ascii_bytes = max(self.ascii_bytes - 6 * escaped, 0)
        self.other_chars += escaped
        self.images = self.images or b'"image' in spelt or b'"input_image' in spelt


def read_prompt(fields: Mapping[str, msgspec.Raw], key: str | None, needs_text: bool) -> Prompt:
    """The prompt in a body's fields, of which `key` names the chief one. `needs_text`: the last user message is wanted."""
    tally = _Tally()
    opening = ""
    for name in ("system", "instructions"):
        if name in fields:
            opening = _first_text(_read(fields[name], tally))
    chief = fields.get(key or "", fields.get("messages"))  # tokenizing endpoints take either
    content = None if chief is None else _read(chief, tally)
    if not isinstance(content, list):
        text = content or ""
        turns = 0 if chief is None else 1
        return Prompt(tally.ascii_bytes, tally.other_chars, turns, tally.images, opening + text[:OPENING_CHARS], text if needs_text else "")
    turns = 0
    last: _Part | None = None
    for message in content:
        if isinstance(message, _Part):
            if message.role == "user":
                turns += 1
                last = message
            if last is None or (turns == 1 and last is message):
                opening += _first_text(message.content)
    text = _all_text(last.content) if needs_text and last is not None else ""
    return Prompt(tally.ascii_bytes, tally.other_chars, turns or 1, tally.images, opening, text)


def plain_prompt(messages: list[Message], needs_text: bool, needs_opening: bool) -> Prompt:
    """The prompt of messages of plain text: what `read_prompt` would say of them, with the opening only where it is wanted."""
    ascii_bytes = other_chars = turns = 0
    text = ""
    for message in messages:
        content = message.content
        ascii_bytes += len(content)
        if not content.isascii():
            outside = len(content) - len(content.encode("ascii", "ignore"))
            ascii_bytes -= outside
            other_chars += outside
        if message.role == "user":
            turns += 1
            text = content
    opening = _plain_opening(messages) if needs_opening else ""
    return Prompt(ascii_bytes, other_chars, turns or 1, False, opening, text if needs_text else "")


def _plain_opening(messages: list[Message]) -> str:
    opening = ""
    for message in messages:
        opening += message.content[:OPENING_CHARS]
        if message.role == "user":
            break
    return opening


def _read(value: msgspec.Raw, tally: _Tally) -> Any:
    """Decode and measure one field; None if it has another shape."""
    try:
        content = _content.decode(value)
    except msgspec.ValidationError:
        tally.unread(value)
        return None
    tally.content(content)
    return content


def _first_text(content: Any) -> str:
    if isinstance(content, list):
        content = next((part.text for part in content if isinstance(part, _Part) and part.text), "")
    return content[:OPENING_CHARS] if isinstance(content, str) else ""


def _all_text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(part.text for part in content if isinstance(part, _Part) and part.text)
    return content if isinstance(content, str) else ""
