"""What does a JSON body ask for, and would every reader of it say the same?

Most bodies are chats of plain text whose values have the types that the API gives them: `plain_chat` reads those in one go. What it does
not take is read field by field, and understood or refused there. Of what both take they say the same.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Annotated, Any, NamedTuple

import msgspec

from proxy import json_spans
from proxy.prompts import Message

Fields = dict[str, msgspec.Raw]

# What decides here, or decides how a backend treats the request: spelt twice, two readers may see two requests.
_DECIDING = frozenset(
    [
        "model",
        "messages",
        "prompt",
        "input",
        "system",
        "instructions",
        "stream",
        "stream_options",
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "n",
        "tools",
        "functions",
        "response_format",
        "text",
        "service_tier",
        "priority",
    ]
)
_ASKING = frozenset(["tools", "functions", "response_format", "text", "service_tier", "priority"])
_HARMLESS = ["temperature", "top_p", "top_k", "stop", "stop_sequences", "seed", "user", "metadata", "presence_penalty", "frequency_penalty"]
# Each of these at most once, and no other: nothing is in doubt, and nothing asked for besides. Any other name costs a closer look.
PLAIN_NAMES = _DECIDING - _ASKING | frozenset(_HARMLESS)

_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_STREAM = (b"true", b"false", b"null")
_TOKENS_MAX = 2**31
_EMPTY = (b"null", b"[]")
_NULL = msgspec.Raw(b"null")
_ANY = msgspec.json.Decoder().decode
_IN_DOUBT = "is given twice, or in two spellings."
name_of = attrgetter("text")  # of a key


class Malformed(ValueError):
    """This field cannot be understood, and why."""

    def __init__(self, name: str, fault: str) -> None:
        super().__init__(name, fault)
        self.name = name[:64] if name.isprintable() else "a key"
        self.fault = fault


def fields_of(members: json_spans.Members) -> Fields:
    """The values by their names: of names given twice the last."""
    return {key.text: value for key, value in members.items()}


def undoubted(members: json_spans.Members) -> Fields:
    """The values by their names, if no deciding one is in doubt. Raises Malformed.

    In doubt is what another reader might see differently: given twice, or spelt so that one without regard to case takes it.
    """
    fields = fields_of(members)
    for name in fields.keys() - _DECIDING:
        if name.casefold() in _DECIDING:
            raise Malformed(name, _IN_DOUBT)
    if len(fields) < len(members):
        seen = set()
        for key in members:
            if key.text in seen and key.text in _DECIDING:
                raise Malformed(key.text, _IN_DOUBT)
            seen.add(key.text)
    return fields


_Limit = Annotated[int, msgspec.Meta(ge=0, le=_TOKENS_MAX)] | None


class _StreamOptions(msgspec.Struct, gc=False):
    include_usage: bool | None = None


class Chat(msgspec.Struct, gc=False):
    """A chat of plain text, in which every value that decides has the type that the API gives it."""

    messages: list[Message]
    model: str | None = None
    stream: bool | None = None
    max_tokens: _Limit = None
    max_completion_tokens: _Limit = None
    max_output_tokens: _Limit = None
    stream_options: _StreamOptions | None = None
    system: str | None = None
    instructions: None = None  # with these, field by field

    def limit(self) -> int | None:
        """The largest limit of tokens."""
        largest = self.max_tokens
        for limit in (self.max_completion_tokens, self.max_output_tokens):
            if limit is not None and (largest is None or limit > largest):
                largest = limit
        return largest


_chat = msgspec.json.Decoder(Chat).decode


def plain_chat(body: bytes) -> Chat | None:
    """The chat in this body. None: it is another, to be read field by field. Of names given twice it sees the last."""
    try:
        return _chat(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def model_in(fields: Fields) -> Any:
    """The model that is asked for, if it is one."""
    return _ANY(fields["model"]) if "model" in fields else None


class Values(NamedTuple):
    """What every body may say of its answer."""

    streamed: bool
    usage: bool  # of a stream: it is to be told
    max_tokens: int | None


def values_in(fields: Fields, text_key: str | None) -> Values:
    """Raises Malformed where a value that decides is unclear."""
    model = model_in(fields)
    if model is not None and not isinstance(model, str):
        raise Malformed("model", "must be a string.")
    stream = bytes(fields.get("stream", _NULL))
    if stream not in _STREAM:
        raise Malformed("stream", "must be true or false.")
    max_tokens = _limit_in(fields)
    if text_key == "messages" and bytes(fields.get("messages", _NULL))[:1] != b"[":
        raise Malformed("messages", "must be a list.")
    usage = "stream_options" in fields and _member(_ANY(fields["stream_options"]), "include_usage") is True
    return Values(stream == b"true", usage, max_tokens)


def _limit_in(fields: Fields) -> int | None:
    """The largest limit of tokens. Raises Malformed."""
    largest: int | None = None
    for name in _LIMITS:
        if name in fields:
            limit = _limit(fields[name])
            if limit is None:
                raise Malformed(name, "must be a whole number.")
            if limit >= 0:  # null, and llama.cpp's -1, are no limit
                largest = limit if largest is None else max(limit, largest)
    return largest


def _limit(value: msgspec.Raw) -> int | None:
    """A limit of tokens: -1 for none, None for what is not a whole number."""
    limit = _ANY(value)
    if type(limit) is float and limit.is_integer():
        limit = int(limit)
    if type(limit) is int:
        return limit if abs(limit) <= _TOKENS_MAX else None
    return -1 if limit is None else None


class Asks(NamedTuple):
    """What some requests ask for besides."""

    tools: bool = False
    json: bool = False
    flexible: bool = False  # it may wait: OpenAI's flex tier
    priority: bool = False


NOTHING = Asks()


def asks_in(fields: Fields) -> Asks:
    """What is asked for besides."""
    if fields.keys().isdisjoint(_ASKING):
        return NOTHING
    return Asks(
        tools=_holds(fields, "tools") or _holds(fields, "functions"),
        json=_wants_json(fields),
        flexible="service_tier" in fields and bytes(fields["service_tier"]) == b'"flex"',
        priority="priority" in fields,
    )


def _holds(fields: Fields, name: str) -> bool:
    """Is there something in this list?"""
    return name in fields and bytes(fields[name]) not in _EMPTY


def _wants_json(fields: Fields) -> bool:
    """Is the answer asked for as JSON? `response_format` in one API, `text.format` in the other."""
    if "response_format" in fields:
        chosen = _ANY(fields["response_format"])
    elif "text" in fields:
        chosen = _member(_ANY(fields["text"]), "format")
    else:
        return False
    return _member(chosen, "type") in ("json_object", "json_schema")


def _member(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None
