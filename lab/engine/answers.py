"""What does an answer look like on the wire? One class per API: its events, its whole body, its errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from lab.engine.asks import Ask

# One word is one token. Plain ASCII without anything that JSON escapes: events are put together from bytes.
WORDS = (" the", " quick", " brown", " fox", " jumps", " over", " a", " lazy", " dog", " and", " runs", " back", " home", ".")
WORD_BYTES = tuple(word.encode() for word in WORDS)
EMBEDDING_SIZE = 8
JSON = dict[str, Any]


def text(tokens: int) -> str:
    """What an answer of so many tokens says."""
    return "".join(WORDS[n % len(WORDS)] for n in range(tokens))


def tokens_in(said: str) -> int:
    """How many tokens are these words of ours? 0: they are not ours."""
    at = count = 0
    while at < len(said) and said.startswith(WORDS[count % len(WORDS)], at):
        at += len(WORDS[count % len(WORDS)])
        count += 1
    return count if at == len(said) else 0


def error_body(message: str, status: int) -> bytes:
    """An error in OpenAI's shape, as vLLM words it."""
    kind = "BadRequestError" if 400 <= status < 500 else "InternalServerError"
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": str(status)}})


def message_error_body(message: str, status: int) -> bytes:
    """An error in Anthropic's shape."""
    kind = {429: "rate_limit_error", 529: "overloaded_error"}.get(status, "invalid_request_error" if status < 500 else "api_error")
    return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message}})


def _data(value: JSON) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def _named(value: JSON) -> bytes:
    return f"event: {value['type']}\n".encode() + _data(value)


class Form:
    """The answer to one request: `opening` events, one `token` event each, `closing` events; or `whole`."""

    error_body = staticmethod(error_body)

    def __init__(self, ask: Ask, number: int, created: int, model: str, prompt_tokens: int) -> None:
        self.ask = ask
        self.number = f"{number:08x}"
        self.created = created
        self.model = ask.model or model
        self.begun = tokens_in(ask.begun)  # of this answer, by another engine: it goes on behind them
        self.prompt_tokens = ask.prompt_tokens(self.begun) if self.begun else prompt_tokens
        # A token event is the same bytes around a different word: encoded once, by the word "@", the last "@" in it.
        self._before, self._after = self._token_event("@").rsplit(b"@", 1)

    def opening(self) -> list[bytes]:
        """The events before the first token."""
        return []

    def token(self, index: int) -> bytes:
        """The event of one token, counted from 0."""
        return self._before + WORD_BYTES[(self.begun + index) % len(WORD_BYTES)] + self._after

    def closing(self, tokens: int) -> list[bytes]:
        """The events after the last token."""
        raise NotImplementedError

    def whole(self, tokens: int, *, finished: bool = True) -> bytes:
        """The body of an answer that is not streamed; `finished` False leaves out the finish reason."""
        raise NotImplementedError

    def error_event(self, message: str) -> bytes:
        """A failure in mid-stream."""
        return b"data: " + self.error_body(message, 500) + b"\n\n"

    def _token_event(self, word: str) -> bytes:
        return word.encode()

    def _usage(self, tokens: int) -> JSON:
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": tokens, "total_tokens": self.prompt_tokens + tokens}


class Chat(Form):
    """`/v1/chat/completions`."""

    kind: ClassVar[str] = "chat.completion.chunk"
    whole_kind: ClassVar[str] = "chat.completion"
    prefix: ClassVar[str] = "chatcmpl"

    def opening(self) -> list[bytes]:
        return [_data(self._body([self._choice({"role": "assistant", "content": ""}, None)]))]

    def closing(self, tokens: int) -> list[bytes]:
        events = [_data(self._body([self._choice({}, "stop")]))]
        if self.ask.wants_usage:
            events.append(_data({**self._body([]), "usage": self._usage(tokens)}))
        return [*events, b"data: [DONE]\n\n"]

    def whole(self, tokens: int, *, finished: bool = True) -> bytes:
        body = self._body([self._whole_choice(text(tokens), "stop" if finished else None)])
        return msgspec.json.encode({**body, "object": self.whole_kind, "usage": self._usage(tokens)})

    def _token_event(self, word: str) -> bytes:
        return _data(self._body([self._choice({"content": word}, None)]))

    def _choice(self, delta: JSON, finish_reason: str | None) -> JSON:
        return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}

    def _whole_choice(self, content: str, finish_reason: str | None) -> JSON:
        return {"index": 0, "message": {"role": "assistant", "content": content}, "logprobs": None, "finish_reason": finish_reason}

    def _body(self, choices: Sequence[JSON]) -> JSON:
        return {
            "id": f"{self.prefix}-{self.number}",
            "object": self.kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


class Completion(Chat):
    """`/v1/completions`."""

    kind = "text_completion"
    whole_kind = "text_completion"
    prefix = "cmpl"

    def opening(self) -> list[bytes]:
        return []

    def _choice(self, delta: JSON, finish_reason: str | None) -> JSON:
        return {"index": 0, "text": delta.get("content", ""), "logprobs": None, "finish_reason": finish_reason}

    def _whole_choice(self, content: str, finish_reason: str | None) -> JSON:
        return {"index": 0, "text": content, "logprobs": None, "finish_reason": finish_reason}


class Message(Form):
    """`/v1/messages`: Anthropic's API, every event named."""

    error_body = staticmethod(message_error_body)

    def opening(self) -> list[bytes]:
        start = self._message([], None, 0)
        return [
            _named({"type": "message_start", "message": start}),
            _named({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
            _named({"type": "ping"}),
        ]

    def closing(self, tokens: int) -> list[bytes]:
        delta = {"stop_reason": "end_turn", "stop_sequence": None}
        return [
            _named({"type": "content_block_stop", "index": 0}),
            _named({"type": "message_delta", "delta": delta, "usage": {"output_tokens": tokens}}),
            _named({"type": "message_stop"}),
        ]

    def whole(self, tokens: int, *, finished: bool = True) -> bytes:
        return msgspec.json.encode(self._message([{"type": "text", "text": text(tokens)}], "end_turn" if finished else None, tokens))

    def error_event(self, message: str) -> bytes:
        return b"event: error\n" + super().error_event(message)

    def _token_event(self, word: str) -> bytes:
        return _named({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}})

    def _message(self, content: list[JSON], stop_reason: str | None, tokens: int) -> JSON:
        return {
            "id": f"msg_{self.number}",
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": None,
            "usage": {"input_tokens": self.prompt_tokens, "output_tokens": tokens},
        }


class Response(Form):
    """`/v1/responses`: OpenAI's newer API, every event named and numbered."""

    def opening(self) -> list[bytes]:
        response = self._response("in_progress", [], None)
        item = {"id": f"msg_{self.number}", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        return [
            _named({"type": "response.created", "sequence_number": 0, "response": response}),
            _named({"type": "response.in_progress", "sequence_number": 1, "response": response}),
            _named({"type": "response.output_item.added", "sequence_number": 2, "output_index": 0, "item": item}),
            _named({"type": "response.content_part.added", "sequence_number": 3, **self._place(), "part": self._part("")}),
        ]

    def token(self, index: int) -> bytes:
        return super().token(index).replace(b'"sequence_number":0', b'"sequence_number":%d' % (index + 4), 1)

    def closing(self, tokens: int) -> list[bytes]:
        n, said = tokens + 4, text(tokens)
        item = self._item(said)
        response = self._response("completed", [item], self._usage(tokens))
        return [
            _named({"type": "response.output_text.done", "sequence_number": n, **self._place(), "text": said, "logprobs": []}),
            _named({"type": "response.content_part.done", "sequence_number": n + 1, **self._place(), "part": self._part(said)}),
            _named({"type": "response.output_item.done", "sequence_number": n + 2, "output_index": 0, "item": item}),
            _named({"type": "response.completed", "sequence_number": n + 3, "response": response}),
        ]

    def whole(self, tokens: int, *, finished: bool = True) -> bytes:
        status = "completed" if finished else "in_progress"
        return msgspec.json.encode(self._response(status, [self._item(text(tokens))], self._usage(tokens)))

    def error_event(self, message: str) -> bytes:
        return _named({"type": "error", "sequence_number": 0, "code": "server_error", "message": message, "param": None})

    def _token_event(self, word: str) -> bytes:
        return _named({"type": "response.output_text.delta", "sequence_number": 0, **self._place(), "delta": word, "logprobs": []})

    def _usage(self, tokens: int) -> JSON:
        return {
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.prompt_tokens + tokens,
        }

    def _place(self) -> JSON:
        return {"item_id": f"msg_{self.number}", "output_index": 0, "content_index": 0}

    def _part(self, said: str) -> JSON:
        return {"type": "output_text", "text": said, "annotations": []}

    def _item(self, said: str) -> JSON:
        content = [self._part(said)]
        return {"id": f"msg_{self.number}", "type": "message", "role": "assistant", "status": "completed", "content": content}

    def _response(self, status: str, output: list[JSON], usage: JSON | None) -> JSON:
        return {
            "id": f"resp_{self.number}",
            "object": "response",
            "created_at": self.created,
            "status": status,
            "model": self.model,
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "error": None,
            "incomplete_details": None,
            "usage": usage,
        }


class Embedding(Form):
    """`/v1/embeddings`: one vector per input, never streamed."""

    def whole(self, tokens: int, *, finished: bool = True) -> bytes:
        given = self.ask.input
        count = len(given) if isinstance(given, list) and given and not isinstance(given[0], int) else 1  # numbers: one input's ids
        vectors = [{"object": "embedding", "index": n, "embedding": [1 / (n + k + 1) for k in range(EMBEDDING_SIZE)]} for n in range(count)]
        usage = {"prompt_tokens": self.prompt_tokens, "total_tokens": self.prompt_tokens}
        return msgspec.json.encode({"object": "list", "model": self.model, "data": vectors, "usage": usage})
