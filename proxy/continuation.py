"""What has a stream said, how is another backend asked for the rest, and how does the rest become part of the same stream?

Only plain text is continued: of a request all of whose fields are known to leave the answer plain (a field that nobody knew when this was
written may mean anything), and of an answer in which nothing but text has come. What has been said is kept as text while it passes; the
other backend gets it as the last, unfinished message of the conversation. Its events take the first one's identity; the role that opens
them is left out, and its counts become those of an answer that was never cut.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from policies.continuation import tokens_left
from proxy import json_spans
from proxy.endpoints import Api
from proxy.intake import Reading
from proxy.sse import StreamWatcher, Usage, decoded

TEXT_MAX_CHARS = 1 << 20  # a longer answer is not kept, and not continued
_CHAT = "/v1/chat/completions"
_LINE_END = rb"(?>\r\n|\n|\r)"
_LINE = re.compile(_LINE_END)
_BLANK = re.compile(_LINE_END + _LINE_END)
_JOINED = 64  # pieces of text

# What a body may say without its answer becoming anything but one text. `response_format` and the like are checked by value.
_HARMLESS = frozenset([
    "model", "messages", "stream", "stream_options", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p",
    "seed", "stop", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "ignore_eos", "user", "metadata", "store",
    "service_tier", "priority", "safety_identifier", "prompt_cache_key", "cache_salt", "cache_prompt",
])  # fmt: skip
_NOTHING = frozenset([b"null", b"false", b"[]", b"{}", b"0"])
_TRIVIAL = {"n": (1,), "best_of": (1,), "modalities": (["text"],), "response_format": ({"type": "text"},), "tool_choice": ("none",)}
_IDENTITY = ("id", "created", "model", "system_fingerprint")


def forbids(reading: Reading) -> str:
    """Which field keeps the answer to this request from being continued? Empty: none does."""
    if reading.endpoint.path != _CHAT or reading.members is None:
        return "path"
    for key, value in reading.members.items():
        name = key.text
        if name in _HARMLESS or bytes(value) in _NOTHING:
            continue
        if name not in _TRIVIAL or msgspec.json.decode(value) not in _TRIVIAL[name]:
            return name
    return ""


class Listener(StreamWatcher):
    """A watcher that also keeps what was said, and notices whatever is more than text."""

    __slots__ = ("_parts", "_read", "_said", "identity", "plain")
    keeps_text = True

    def __init__(self) -> None:
        super().__init__(Api.OPENAI)
        self.plain = True  # nothing but one text has come
        self.identity: dict[str, Any] = {}  # of the stream: what each of its events repeats
        self._said = ""
        self._parts: list[str] = []
        self._read = self._inspect
        self._inspect = _heard

    def _token(self, event: bytes, key: str) -> None:
        """Every event is read: none is learnt by heart, for its text would then pass unread."""
        self.first_token = True
        self.tokens += 1

    def hear(self, document: dict[str, Any]) -> None:
        """One event."""
        if not self.plain:
            return
        if not self.identity and document.get("id"):
            self.identity = {key: document[key] for key in _IDENTITY if key in document}
        choices = document.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            self._hear_choice(choice)

    def _hear_choice(self, choice: Any) -> None:
        delta = choice.get("delta") if isinstance(choice, dict) else None
        if not isinstance(delta, dict) or choice.get("index", 0) != 0 or choice.get("logprobs"):
            self.plain = False
            return
        content = delta.get("content")
        if any(delta.get(key) for key in delta if key not in ("role", "content")) or not isinstance(content, str | None):
            self.plain = False
        elif content:
            self._parts.append(content)
            if len(self._parts) == _JOINED:
                self._join()

    def _join(self) -> None:
        self._said += "".join(self._parts)
        self._parts.clear()
        if not self.plain or len(self._said) > TEXT_MAX_CHARS:
            self.plain = False
            self._said = ""

    @property
    def said(self) -> str:
        """All of the text so far."""
        self._join()
        return self._said

    @property
    def said_tokens(self) -> int:
        """How many tokens that was: as the backend counts them if it does so on the way, else one per event."""
        return self.tokens if self.usage is None else max(self.tokens, self.usage.output_tokens)

    @property
    def can_be_continued(self) -> bool:
        """Did it break off in the middle of a text?"""
        done = self.done and self.error is None  # behind an error it ends nothing
        return self.plain and not (self.gave_up or self.finished or done) and bool(self.said)


def _heard(watcher: StreamWatcher, document: dict[str, Any], data: bytes, event: bytes) -> None:
    assert isinstance(watcher, Listener)
    if watcher.error is None:  # nothing behind an error is relayed
        watcher._read(watcher, document, data, event)
        if watcher.error is None:
            watcher.hear(document)


def rest_of(reading: Reading, listener: Listener, *, flags: bool) -> Reading | None:
    """The request for the rest. None: there is none to ask for: no token is left, or the conversation ends in an answer already."""
    found, body = reading.members, reading.body
    left = tokens_left(reading.request.max_tokens, listener.said_tokens)
    text = _whole_characters(listener.said)
    if found is None or left == 0 or text is None:
        return None
    edits: list[tuple[int, int, bytes]] = []
    for name in ("max_tokens", "max_completion_tokens"):
        span = json_spans.value_span(body, found, name)
        if left is not None and span is not None and msgspec.json.decode(body[span[0] : span[1]]) is not None:
            edits.append((*span, b"%d" % left))
    span = json_spans.value_span(body, found, "messages")
    if span is None or not _ends_in_a_question(body[span[0] : span[1]]):
        return None
    end = span[1] - 1  # where the list closes
    begun = json.dumps({"role": "assistant", "content": text}, separators=(",", ":")).encode()
    edits.append((end, end, b"," + begun))
    if flags:
        end = body.rindex(b"}")
        edits.append((end, end, b',"continue_final_message":true,"add_generation_prompt":false'))
    for start, stop, value in sorted(edits, reverse=True):
        body = body[:start] + value + body[stop:]
    return msgspec.structs.replace(reading, body=body, members=json_spans.members(body))


class _Message(msgspec.Struct):
    role: str | None = None


_messages = msgspec.json.Decoder(list[_Message])


def _ends_in_a_question(value: bytes) -> bool:
    """Is there a message, and is the last one not an answer that the caller has begun itself?"""
    try:
        messages = _messages.decode(value)
    except msgspec.MsgspecError:
        return False
    return bool(messages) and messages[-1].role not in ("assistant", None)


def _whole_characters(text: str) -> str | None:
    """The text with halves of characters put together. None: one is missing its half."""
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        return None


# --- events -----------------------------------------------------------------------------------------------------------


def whole_events(data: bytes) -> tuple[bytes, bytes]:
    """What of this ends with a blank line, and what is left open behind it?"""
    if data.endswith(b"\n\n"):
        return data, b""
    end = 0
    for blank in _BLANK.finditer(data):
        end = blank.end()
    return data[:end], data[end:]


def split(data: bytes) -> list[bytes]:
    """The events in this, each with the blank line that ends it."""
    events, start = [], 0
    for blank in _BLANK.finditer(data):
        events.append(data[start : blank.end()])
        start = blank.end()
    return events if start == len(data) else [*events, data[start:]]


def before_error(data: bytes) -> tuple[bytes, bytes]:
    """The events before the one that reports an error, and that one."""
    sound = b""
    for event in split(data):
        watcher = StreamWatcher(Api.OPENAI)
        watcher.feed(event)
        if watcher.error is not None:
            return sound, event
        sound += event
    return sound, b""


class Rewriter:
    """The rest's events as those of the stream that broke."""

    __slots__ = ("_before", "_counted", "_identity")

    def __init__(self, listener: Listener) -> None:
        self._identity = listener.identity
        self._before = listener.said_tokens
        self._counted = listener.usage

    def rewritten(self, data: bytes) -> bytes:
        """Whole events, one after another."""
        return b"".join(map(self._event, split(data)))

    def summed(self, usage: Usage) -> Usage:
        """The counts of both as of one answer. What was said stands in the rest's prompt, and is no part of the caller's."""
        prompt = self._counted.prompt_tokens if self._counted is not None else max(1, usage.prompt_tokens - self._before)
        return Usage(prompt, self._before + usage.output_tokens)

    def _event(self, event: bytes) -> bytes:
        lines = [line for line in _LINE.split(event) if line]
        data = b"\n".join(line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:"))
        document = decoded(data) if data.startswith(b"{") else None
        if document is None or "choices" not in document:
            return event  # a comment, [DONE], an error: as it came
        if not self._adopt(document):
            return b""
        others = [line for line in lines if not line.startswith(b"data:")]
        return b"".join(line + b"\n" for line in others) + b"data: " + _encoded(document) + b"\n\n"

    def _adopt(self, document: dict[str, Any]) -> bool:
        """Make it one of the stream's events. False: it says nothing but who speaks."""
        document.update((key, value) for key, value in self._identity.items() if key in document)
        usage = document.get("usage")
        if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int) and isinstance(usage.get("prompt_tokens"), int):
            prompt, output = self.summed(Usage(usage["prompt_tokens"], usage["completion_tokens"]))
            usage.update(prompt_tokens=prompt, completion_tokens=output, total_tokens=prompt + output)
        choices = document["choices"]
        if not isinstance(choices, list) or not choices:
            return True
        more = [_says_more_than_who(choice) for choice in choices]
        return any(more)


def _says_more_than_who(choice: Any) -> bool:
    delta = choice.get("delta") if isinstance(choice, dict) else None
    if not isinstance(delta, dict) or "role" not in delta:
        return True
    del delta["role"]
    return bool(choice.get("finish_reason")) or any(delta.values())


def _encoded(document: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:  # halves of characters: escaped, as they came
        return json.dumps(document, separators=(",", ":")).encode()
