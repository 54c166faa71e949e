"""Which of the paths under /v1 do we serve, how is each treated, and which API's shapes does it speak?

The list is closed: a path that is not in it is not served, whatever its spelling. Nothing is normalised, so an encoded,
dotted, doubled or absolute spelling of a listed path is simply another path.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

import msgspec


class Api(enum.Enum):
    """Whose shapes: of errors, of stream events, of usage."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    RESPONSES = "responses"  # OpenAI's second API: its own events, OpenAI's errors


class Kind(enum.Enum):
    """How an endpoint is treated."""

    GENERATION = "generation"  # lane, pool, slot held to the last byte
    UNARY = "unary"  # lane and slot; no first token
    UPLOAD = "upload"  # multipart form; only its field `model` is read
    BINARY = "binary"  # the answer is passed through unread
    CATALOGUE = "catalogue"  # answered by us
    STATEFUL = "stateful"  # tied to the backend that made it: not routed
    REALTIME = "realtime"  # WebSocket: not done


class Endpoint(NamedTuple):
    """One row of the table. `path` is what conditions and logs see; `text_key` names the body's field that holds the prompt."""

    path: str
    kind: Kind
    api: Api = Api.OPENAI
    method: str = "POST"
    slotless: bool = False  # counts tokens, and takes no generation slot
    text_key: str | None = None  # None: no JSON body is read


def _row(
    name: str, kind: Kind, text_key: str | None = None, api: Api = Api.OPENAI, method: str = "POST", slotless: bool = False
) -> Endpoint:
    return Endpoint("/v1/" + name, kind, api, method, slotless, text_key)


_ROWS = (
    _row("chat/completions", Kind.GENERATION, "messages"),
    _row("completions", Kind.GENERATION, "prompt"),
    _row("responses", Kind.GENERATION, "input", Api.RESPONSES),
    _row("messages", Kind.GENERATION, "messages", Api.ANTHROPIC),
    _row("embeddings", Kind.UNARY, "input"),
    _row("moderations", Kind.UNARY, "input"),
    _row("rerank", Kind.UNARY, "documents"),
    _row("score", Kind.UNARY, "text_2"),
    _row("classify", Kind.UNARY, "input"),
    _row("images/generations", Kind.UNARY, "prompt"),
    _row("tokenize", Kind.UNARY, "prompt", slotless=True),
    _row("detokenize", Kind.UNARY, "tokens", slotless=True),
    _row("messages/count_tokens", Kind.UNARY, "messages", Api.ANTHROPIC, slotless=True),
    _row("responses/input_tokens", Kind.UNARY, "input", Api.RESPONSES, slotless=True),
    _row("audio/transcriptions", Kind.UPLOAD),
    _row("audio/translations", Kind.UPLOAD),
    _row("images/edits", Kind.UPLOAD),
    _row("images/variations", Kind.UPLOAD),
    _row("files", Kind.UPLOAD),
    _row("audio/speech", Kind.BINARY, "input"),
    _row("models", Kind.CATALOGUE, method="GET"),
    _row("realtime", Kind.REALTIME, method="GET"),
)
_BY_TARGET = {row.path.encode(): row for row in _ROWS}
_MODEL = _row("models/{id}", Kind.CATALOGUE, method="GET")
_PATTERNS = (
    (re.compile(rb"/v1/uploads/[A-Za-z0-9_-]{1,128}/parts"), _row("uploads/{id}/parts", Kind.UPLOAD)),
    (re.compile(rb"/v1/files/[A-Za-z0-9_-]{1,128}/content"), _row("files/{id}/content", Kind.BINARY, method="GET")),
    (re.compile(rb"/v1/models/[^?#]{1,512}"), _MODEL),
    (re.compile(rb"/v1/(?:responses|chat/completions|files|messages/batches)/.+"), _row("{stateful}", Kind.STATEFUL)),
    (re.compile(rb"/v1/(?:batches|conversations|uploads|assistants|threads|vector_stores)(?:/.+)?"), _row("{stateful}", Kind.STATEFUL)),
)


def classify(target: bytes) -> Endpoint | None:
    """Which endpoint does this request target name? None: none of ours. The method is the caller's to compare."""
    endpoint = _BY_TARGET.get(target)
    if endpoint is not None:
        return endpoint
    path = target.partition(b"?")[0]
    endpoint = _BY_TARGET.get(path)
    if endpoint is not None:
        return endpoint
    for pattern, row in _PATTERNS:
        if pattern.fullmatch(path):
            return row
    return None


def api_of(target: bytes) -> Api:
    """In which shape do we speak of a target, even of one that we do not serve?"""
    path = target.partition(b"?")[0]
    if path == b"/v1/messages" or path.startswith(b"/v1/messages/"):
        return Api.ANTHROPIC
    return Api.RESPONSES if path.startswith(b"/v1/responses") else Api.OPENAI


def model_asked(target: bytes) -> str | None:
    """Which model does `GET /v1/models/{id}` ask about? None for the whole list. Names may hold slashes, plain or encoded."""
    name = target.partition(b"?")[0].removeprefix(b"/v1/models").removeprefix(b"/")
    return unquote_to_bytes(name).decode("utf-8", "replace") if name else None


def models_answer(names: Iterable[str], api: Api) -> bytes:
    """The body of `GET /v1/models`: the names that this key may use, in the caller's API's shape, all on one page."""
    rows = [_model(name, api) for name in names]
    if api is Api.ANTHROPIC:
        ends = {"first_id": rows[0]["id"], "last_id": rows[-1]["id"]} if rows else {"first_id": None, "last_id": None}
        return msgspec.json.encode({"data": rows, "has_more": False, **ends})
    return msgspec.json.encode({"object": "list", "data": rows})


def model_answer(name: str, names: Sequence[str], api: Api) -> bytes | None:
    """The body of `GET /v1/models/{id}`; None (404) if this key has no such name."""
    return msgspec.json.encode(_model(name, api)) if name in names else None


def _model(name: str, api: Api) -> dict[str, object]:
    # We do not know when a model was made; both APIs allow the epoch for that.
    if api is Api.ANTHROPIC:
        return {"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z", "lifecycle": "active"}
    return {"id": name, "object": "model", "created": 0, "owned_by": "fairlane"}
