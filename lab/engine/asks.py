"""What does a request ask of the engine? The few fields of its body that matter, and an honest count of its tokens."""

from __future__ import annotations

from typing import Any

import msgspec

BYTES_PER_TOKEN = 4  # of English text, for the tokenizers of today's models


class AskError(Exception):
    """The body cannot be served: status 400, with this message."""


class StreamOptions(msgspec.Struct):
    """Of chat and completions."""

    include_usage: bool | None = False


class Ask(msgspec.Struct):
    """The union of the APIs' bodies; unknown fields are ignored."""

    model: str = ""
    messages: list[Any] | None = None
    prompt: Any = None
    input: Any = None
    system: Any = None
    instructions: Any = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None

    @property
    def output_tokens(self) -> int | None:
        """How long shall the answer be? None: not said."""
        return next((n for n in (self.max_completion_tokens, self.max_tokens, self.max_output_tokens) if n is not None), None)

    @property
    def wants_usage(self) -> bool:
        """Shall a stream of chat or completions end with usage?"""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def begun(self) -> str:
        """The answer that the last message has begun, and that is to be continued; empty: a new one is asked for."""
        last = self.messages[-1] if self.messages else None
        content = last.get("content") if isinstance(last, dict) and last.get("role") == "assistant" else None
        return content if isinstance(content, str) else ""

    def prompt_tokens(self, begun: int = 0) -> int:
        """How many tokens has the prompt? At least 1. `begun`: those of the answer that was begun, where they are known."""
        text_bytes, ids = _measure([self.messages, self.prompt, self.input, self.system, self.instructions])
        if begun:
            text_bytes -= len(self.begun.encode())
        return max(1, -(-text_bytes // BYTES_PER_TOKEN) + ids + begun)


_decoder = msgspec.json.Decoder(Ask)


def decode(body: bytes, required: str) -> Ask:
    """The body as an Ask. Raises AskError if it is malformed or lacks the field that its API requires."""
    try:
        ask = _decoder.decode(body)
        if getattr(ask, required) is None:
            raise AskError(f"Object missing required field `{required}`")
        if ask.output_tokens is not None and ask.output_tokens < 1:
            raise AskError("max_tokens must be at least 1")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise AskError(str(problem)) from problem
    return ask


def _measure(value: Any) -> tuple[int, int]:
    """UTF-8 bytes of text, and token ids given as numbers, anywhere in messages, prompts, parts."""
    text_bytes = ids = 0
    rest = [value]
    while rest:
        item = rest.pop()
        if isinstance(item, str):
            text_bytes += len(item.encode())
        elif isinstance(item, int):
            ids += 1
        elif isinstance(item, list):
            rest.extend(item)
        elif isinstance(item, dict):
            rest.extend(item[key] for key in ("content", "text") if key in item)
    return text_bytes, ids
