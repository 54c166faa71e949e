"""How is a request spelt at each endpoint? Path, body and credential, and whose events answer it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from proxy.endpoints import Api

ANTHROPIC_VERSION = "2023-06-01"


@dataclass(frozen=True, slots=True)
class Form:
    """One endpoint of generation. `name` as `--endpoint` says it, `path` as a trace does."""

    name: str
    path: str
    api: Api = Api.OPENAI

    def body(self, model: str, text: str, output_tokens: int, *, stream: bool, ignore_eos: bool) -> bytes:
        """The request that asks for so many tokens; no fewer, where the target knows `ignore_eos`."""
        asked: dict[str, Any] = {"model": model, "max_tokens": output_tokens, "stream": stream}
        if self is COMPLETIONS:
            asked["prompt"] = text
        else:
            asked["messages"] = [{"role": "user", "content": text}]
        if stream and self.api is Api.OPENAI:
            asked["stream_options"] = {"include_usage": True}
        if ignore_eos:
            asked["ignore_eos"] = True
        return msgspec.json.encode(asked)

    def credential(self, key: str) -> str:
        """Header lines that present the key, as this API's own clients do."""
        if self.api is Api.ANTHROPIC:
            return f"anthropic-version: {ANTHROPIC_VERSION}\r\n" + (f"x-api-key: {key}\r\n" if key else "")
        return f"Authorization: Bearer {key}\r\n" if key else ""


CHAT = Form("chat", "/v1/chat/completions")
COMPLETIONS = Form("completions", "/v1/completions")
MESSAGES = Form("messages", "/v1/messages", Api.ANTHROPIC)
FORMS = {form.name: form for form in (CHAT, COMPLETIONS, MESSAGES)}
BY_PATH = {form.path: form for form in FORMS.values()}


def form(text: str) -> Form:
    """`chat`, `completions` or `messages`, or its path. ValueError: something else."""
    found = FORMS.get(text) or BY_PATH.get(text)
    if found is None:
        raise ValueError(f"--endpoint: {text!r} must be one of {', '.join(FORMS)}")
    return found
