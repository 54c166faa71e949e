"""What does one caller of the demo get? A streamed or a whole answer, told apart from a refusal and from a failure."""

from __future__ import annotations

import asyncio
import enum
import json
import time
from dataclasses import dataclass

import aiohttp

from lab.demo.llama import MODEL_NAME

ANSWER_TOKENS = 24
TIMEOUT_S = 60.0
SUBJECTS = ("the sea", "bread", "a lighthouse", "winter", "a clock", "horses", "the moon", "a market", "rivers", "glass")


class Got(enum.StrEnum):
    """How a call ended, as its caller sees it."""

    ANSWER = "answered"
    REFUSAL = "refused"  # told when to come back
    FAILURE = "failed"


@dataclass(slots=True)
class Call:
    """One call. Instants in seconds, monotonic; `sent_at` is when it was meant to be sent, as open-loop load counts."""

    lane: str
    sent_at: float
    got: Got | None = None
    why: str = ""  # the refusal's reason, or what failed
    first_token_at: float | None = None
    ended_at: float | None = None
    tokens_in: int = 0
    tokens_out: int = 0

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_token_at is None else self.first_token_at - self.sent_at


def question(number: int, streamed: bool) -> dict[str, object]:
    body: dict[str, object] = {
        "model": MODEL_NAME,
        "messages": [{"role": "user", "content": f"Question {number}: say something about {SUBJECTS[number % len(SUBJECTS)]}."}],
        "max_tokens": ANSWER_TOKENS,
    }
    return {**body, "stream": True, "stream_options": {"include_usage": True}} if streamed else body


async def ask(session: aiohttp.ClientSession, url: str, key: str, call: Call, body: dict[str, object]) -> None:
    """Makes the call and fills `call` in. Raises nothing: whatever goes wrong is what the caller got."""
    try:
        async with (
            asyncio.timeout(TIMEOUT_S),
            session.post(f"{url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"}) as response,
        ):
            if response.status in (429, 503) and "retry-after" in response.headers:
                call.got, call.why = Got.REFUSAL, response.headers.get("x-fairlane-reason", str(response.status))
            elif response.status != 200:
                call.got, call.why = Got.FAILURE, f"{response.status} {(await response.text())[:200]}"
            elif body.get("stream"):
                await _read_stream(response, call)
            else:
                _take(call, await response.json())
                call.got = Got.ANSWER
    except (aiohttp.ClientError, TimeoutError, ValueError) as problem:
        call.got, call.why = Got.FAILURE, f"{type(problem).__name__} {problem}"
    call.ended_at = time.monotonic()


async def _read_stream(response: aiohttp.ClientResponse, call: Call) -> None:
    """An answer is whole when [DONE] was seen; an error event, or an end without it, is a failure."""
    whole = False
    async for line in response.content:
        if line.startswith(b"data:"):
            data = line[5:].strip()
            whole = data == b"[DONE]"
            if not whole:
                _take(call, json.loads(data))
    call.got, call.why = (Got.ANSWER, "") if whole else (Got.FAILURE, "the stream ended without [DONE]")


def _take(call: Call, chunk: dict[str, object]) -> None:
    match chunk:
        case {"error": error}:
            raise ValueError(f"error event: {error}")
        case {"choices": [{"delta": {"content": str(text)}}, *_]} if text and call.first_token_at is None:
            call.first_token_at = time.monotonic()
    match chunk:
        case {"usage": {"prompt_tokens": int(tokens_in), "completion_tokens": int(tokens_out)}}:
            call.tokens_in, call.tokens_out = tokens_in, tokens_out
