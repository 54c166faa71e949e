"""What does a stream of events say, seen from beside it? First token, finish, error, usage: read from a copy, nothing changed.

Every event is decoded, save the many that repeat one already understood: most of a stream is one event over and over with
another piece of text in it. Once a token's event has been decoded it is known (`event_shape`), and what differs from it in nothing but its
text is one more token. What is concluded never depends on how the bytes were cut into chunks.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, TypeGuard

import msgspec

from proxy.endpoints import Api
from proxy.event_shape import KnownEvent, learn

EVENT_MAX_BYTES = 256 * 1024  # a larger event is passed on unread; a Responses stream ends in one that repeats the whole answer
UNARY_MAX_BYTES = 64 * 1024  # of an answer that is not streamed: its end, where every engine writes `usage`
_COUNT_MAX = 2**40
Count = Annotated[int, msgspec.Meta(ge=0, le=_COUNT_MAX)]
_OPENAI_TEXTS = ("content", "reasoning_content", "reasoning", "refusal")
_ANTHROPIC_TEXTS = ("text", "thinking", "partial_json")
_OPENINGS = {
    key: (f'"{key}":"'.encode(), f'"{key}": "'.encode()) for key in (*_OPENAI_TEXTS, *_ANTHROPIC_TEXTS, "arguments", "delta")
}  # what stands before the text of a token
_LF = 0x0A
_LEARNT_MAX = 4  # events of one stream: one that changes its form all the time is decoded
_BOM = b"\xef\xbb\xbf"


class Usage(NamedTuple):
    """Tokens as the engine counted them."""

    prompt_tokens: int
    output_tokens: int


class StreamWatcher:
    """What has this stream said so far? Feed it every chunk; read the attributes whenever needed."""

    __slots__ = (
        "_after_cr",
        "_blind",
        "_inspect",
        "_latest",
        "_learnt",
        "_name",
        "_open",
        "done",
        "error",
        "events",
        "finished",
        "first_token",
        "gave_up",
        "known",
        "sequence",
        "tokens",
        "usage",
    )

    keeps_text = False  # what was said

    def __init__(self, api: Api) -> None:
        self.first_token = False  # content, reasoning, a tool call or text has come: more than a role
        self.events = 0  # events that said something else: with `tokens`, what tells progress from comments and pings
        self.tokens = 0  # events with content: an estimate of output tokens where no usage comes
        self.finished = False  # a finish reason has come
        self.done = False  # [DONE], message_stop, or a terminal event of the Responses API has come
        self.error: bytes | None = None  # data of the first error event
        self.usage: Usage | None = None  # the last one counts
        self.gave_up = False  # an event was too large to read: missing usage is unknown, not absent
        self.sequence = 0  # the number the next event would have in a stream of the Responses API
        self._inspect = _INSPECT[api]
        self._open = bytearray()  # bytes since the last blank line, line ends made LF
        self._after_cr = False  # the last byte was a CR: a LF to come belongs to it
        self._blind = False  # the open event is too large: only its last byte is kept
        self._name = b""  # of the open event, once blind
        self._latest: KnownEvent | None = None  # the latest token's
        self._learnt = 0
        self.known: KnownEvent | None = None  # between two events: what repeats it is one more token and nothing else, and need not be fed

    @property
    def open_event(self) -> bool:
        """Have bytes come since the last blank line?"""
        return bool(self._open)

    @property
    def whole(self) -> bool:
        """Did the answer come to its own end?"""
        return (self.finished or self.done) and self.error is None

    @property
    def closing(self) -> bytes:
        """What must be written before an event of ours, so that it begins as one? Nothing between events.

        After nothing but comments no blank line is added: one would dispatch an empty event in some decoders.
        """
        if not self._open:
            return b""
        line_end = b"" if self._open[-1] == _LF else b"\n"
        if not self._blind and all(line.startswith(b":") for line in bytes(self._open).removesuffix(b"\n").split(b"\n")):
            return line_end
        return b"\n\n" if line_end or self._after_cr else b"\n"

    def feed(self, data: bytes) -> None:
        """Watch the next bytes of the stream. Never raises, whatever they are."""
        known = self.known
        if known is not None and (known.repeated_by(data) or known.resembles(data)):
            self.tokens += 1
        else:
            self._feed(data)

    def _feed(self, data: bytes) -> None:
        if self._after_cr and data[:1] == b"\n":
            self._after_cr = False
            data = data[1:]
        if not data:
            return
        self._after_cr = data.endswith(b"\r")
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        self._split(data)
        rest = self._open
        if len(rest) > EVENT_MAX_BYTES and not self._blind and len(rest) - rest.endswith(b"\n") > EVENT_MAX_BYTES:
            self._go_blind(rest)
        if self._blind:
            del rest[:-1]
        self.known = None if rest else self._latest

    def _split(self, data: bytes) -> None:
        """Take the complete events out of `data`, and keep the rest open. Only new bytes are searched."""
        rest = self._open
        if rest:
            searched = len(rest) - 1
            rest += data
            if rest.find(b"\n\n", searched) < 0:
                return
            data = bytes(rest)
            rest.clear()
        *events, last = data.split(b"\n\n")
        for event in events:
            if self._blind:
                self._close_blind()
            else:
                self._event(event.lstrip(b"\n"))  # blank lines between events
        rest += last.lstrip(b"\n")

    def _event(self, event: bytes) -> None:
        if len(event) > EVENT_MAX_BYTES:
            self._go_blind(event)
            self._close_blind()
            return
        if self._latest is not None and self._latest.repeated_by(event + b"\n\n"):
            self.tokens += 1
            return
        name, data = _fields(event)
        if name == b"error":
            self._fail(data)
        elif data == b"[DONE]":
            self.done = True
        elif data:
            document = decoded(data)
            if document is not None:
                self.events += document.get("type") != "ping"
                self._inspect(self, document, data, event)

    def _token(self, event: bytes, key: str) -> None:
        """A token came: learn its event, with the text under `key` left out."""
        self.first_token = True
        self.tokens += 1
        if self._learnt == _LEARNT_MAX:
            return
        self._learnt += 1
        for opening in _OPENINGS[key]:
            # A string before a colon is a key, and inside a string its quotes would be escaped: what follows is a value's text.
            start = event.find(opening) + len(opening)
            if start < len(opening):
                continue
            stop = event.find(b'"', start)
            if stop >= 0 and event[stop - 1 : stop] != b"\\":
                self._latest = learn(event, start, stop)
            return

    def _fail(self, data: bytes) -> None:
        if self.error is None:
            self.error = data

    def _count(self, usage: Any) -> None:
        """Take the counts that are there; one that is not keeps its last value."""
        counted = _usage(usage, self.usage)
        if counted is not None:
            self.usage = counted

    def _go_blind(self, event: bytes | bytearray) -> None:
        """The open event is too large to read: keep its beginning, where its name is."""
        self._blind = self.gave_up = True
        self._name = bytes(event[:256])
        self.first_token = True  # too much to be only a role

    def _close_blind(self) -> None:
        """The end of an event that was not read. Its name may still say that it was the last."""
        name, _ = _fields(self._name)
        if name in (b"response.completed", b"response.incomplete"):
            self.finished = self.done = True
        else:
            self.tokens += 1
        self._blind = False


class UnaryWatcher:
    """What usage does an answer report that is not streamed? Keeps the end of it, at most twice `UNARY_MAX_BYTES` and one chunk."""

    __slots__ = ("_end",)

    def __init__(self) -> None:
        self._end = bytearray()

    def feed(self, data: bytes) -> None:
        """Watch the next bytes of the body. Never raises."""
        self._end += data
        if len(self._end) > 2 * UNARY_MAX_BYTES:
            del self._end[:-UNARY_MAX_BYTES]

    @property
    def usage(self) -> Usage | None:
        """The last usage in the body. None: it reports none, or not near its end."""
        return usage_in(self._end)


def usage_in(body: bytes | bytearray) -> Usage | None:
    """The usage that an answer reports, or the end of one. None: it reports none, or not near its end."""
    if len(body) <= 2 * UNARY_MAX_BYTES:  # most answers are short, and whole
        try:
            counted = _usage_of(_whole_answer(body).usage)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            counted = None
        if counted is not None:
            return counted
    kept = bytes(body[-UNARY_MAX_BYTES:])
    stop = len(kept)
    for _ in range(8):
        stop = kept.rfind(b'"usage"', 0, stop)
        if stop < 0:
            return None
        text = kept[stop + len(b'"usage"') :].decode("utf-8", "replace").lstrip(" \t\r\n:")
        try:
            counted = _usage(json.JSONDecoder().raw_decode(text)[0], None)
        except (ValueError, RecursionError):
            continue
        if counted is not None:
            return counted
    return None


# --- what an event says, by API ---------------------------------------------------------------------------------------


def _openai(watcher: StreamWatcher, document: dict[str, Any], data: bytes, event: bytes) -> None:
    if document.get("error") or document.get("object") == "error" or document.get("type") == "error":
        watcher._fail(data)
        return
    watcher._count(document.get("usage"))
    choices = document.get("choices")
    if not isinstance(choices, list):
        return
    token: str | None = None
    for choice in choices:
        if not isinstance(choice, dict):
            continue
        if choice.get("finish_reason"):
            watcher.finished = True
        token = token or _openai_token(choice)
    if token is not None:
        watcher._token(event, token)


def _openai_token(choice: dict[str, Any]) -> str | None:
    """Under which key does a choice carry a token, if it does?"""
    if _said(choice.get("text")):
        return "text"
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return None
    for key in _OPENAI_TEXTS:
        if _said(delta.get(key)):
            return key
    return "arguments" if delta.get("tool_calls") or delta.get("function_call") or delta.get("audio") else None


def _anthropic(watcher: StreamWatcher, document: dict[str, Any], data: bytes, event: bytes) -> None:
    kind = document.get("type")
    if kind == "error" or (kind is None and document.get("error")):
        watcher._fail(data)
    elif kind == "content_block_delta":
        delta = document.get("delta")
        if isinstance(delta, dict):
            for key in _ANTHROPIC_TEXTS:
                if _said(delta.get(key)):
                    watcher._token(event, key)
                    return
    elif kind == "content_block_start":
        block = document.get("content_block")
        if isinstance(block, dict) and (str(block.get("type")).endswith("tool_use") or _said(block.get("text"))):
            watcher._token(event, "text")  # the name of a tool is as much a token as what follows
    elif kind == "message_start":
        message = document.get("message")
        if isinstance(message, dict):
            watcher._count(message.get("usage"))
    elif kind == "message_delta":
        delta = document.get("delta")
        if isinstance(delta, dict) and delta.get("stop_reason"):
            watcher.finished = True
        watcher._count(document.get("usage"))
    elif kind == "message_stop":
        watcher.done = True


def _responses(watcher: StreamWatcher, document: dict[str, Any], data: bytes, event: bytes) -> None:
    number = document.get("sequence_number")
    if _is_count(number):
        watcher.sequence = number + 1
    kind = document.get("type")
    if kind in ("error", "response.failed") or (kind is None and document.get("error")):
        watcher._fail(data)
    elif isinstance(kind, str) and kind.endswith(".delta"):
        if _said(document.get("delta")):
            watcher._token(event, "delta")
    elif kind in ("response.completed", "response.incomplete"):
        watcher.finished = watcher.done = True
        answer = document.get("response")
        if isinstance(answer, dict):
            watcher._count(answer.get("usage"))


_INSPECT: dict[Api, Callable[[StreamWatcher, dict[str, Any], bytes, bytes], None]] = {
    Api.OPENAI: _openai,
    Api.ANTHROPIC: _anthropic,
    Api.RESPONSES: _responses,
}


class _Counts(msgspec.Struct):
    """`usage` of either vendor. Of another shape: the careful way."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    cache_read_input_tokens: Count | None = None
    cache_creation_input_tokens: Count | None = None


class _Answer(msgspec.Struct):
    usage: _Counts | None = None


_whole_answer = msgspec.json.Decoder(_Answer).decode


def _usage_of(counts: _Counts | None) -> Usage | None:
    if counts is None:
        return None
    prompt = counts.input_tokens if counts.prompt_tokens is None else counts.prompt_tokens
    output = counts.output_tokens if counts.completion_tokens is None else counts.completion_tokens
    if prompt is None and output is None:
        return None
    # Anthropic counts what its cache served apart from the rest of the prompt.
    cached = (counts.cache_read_input_tokens or 0) + (counts.cache_creation_input_tokens or 0)
    return Usage((prompt or 0) + (cached if prompt is not None else 0), output or 0)


# --- bytes and values -------------------------------------------------------------------------------------------------


def _fields(event: bytes) -> tuple[bytes, bytes]:
    """The name and the data of an event: lines that end in LF, no blank one among them."""
    if event.startswith(b"data: ") and b"\n" not in event:
        return b"", event[6:].strip()
    name = b""
    data: list[bytes] = []
    for line in event.removeprefix(_BOM).split(b"\n"):
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
        elif field == b"error":  # an old llama.cpp reports its errors in a field of this name
            return b"error", value.removeprefix(b" ")
    return name, b"\n".join(data).strip()


def decoded(data: bytes) -> dict[str, Any] | None:
    """The JSON object in an event's data; None if it is something else. Takes what engines get wrong: see below."""
    document: Any
    try:
        document = msgspec.json.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        try:  # halves of surrogate pairs, half characters, NaN among the logprobs
            document = json.loads(data.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            return None
    return document if isinstance(document, dict) else None


def _said(value: Any) -> bool:
    """Is this text, or a list of parts, and not empty?"""
    return isinstance(value, str | list) and bool(value)


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _COUNT_MAX


def _usage(usage: Any, before: Usage | None) -> Usage | None:
    """The counts in a `usage` object of either vendor. None: it has none."""
    if not isinstance(usage, dict):
        return None
    prompt = usage.get("prompt_tokens", usage.get("input_tokens"))
    output = usage.get("completion_tokens", usage.get("output_tokens"))
    if not _is_count(prompt) and not _is_count(output):
        return None
    known_prompt, known_output = before or Usage(0, 0)
    if _is_count(prompt):
        # Anthropic counts what its cache served apart from the rest of the prompt.
        cached = [usage.get(key) for key in ("cache_read_input_tokens", "cache_creation_input_tokens")]
        known_prompt = prompt + sum(count for count in cached if _is_count(count))
    return Usage(known_prompt, output if _is_count(output) else known_output)
