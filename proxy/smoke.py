"""Does a backend generate? A smoke test asks it for a few tokens, by the key and the model name of the file, and waits for all of them.

What an answer means is what it means for any request: the attempt judges it. Nothing of the answer is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from policies.model import Ending, Outcome, Verdict
from proxy import clock
from proxy.attempt import Attempt
from proxy.edition import Backend
from proxy.endpoints import Api
from proxy.http1.answer_head import AnswerHead
from proxy.http1.faults import BackendFault
from proxy.intake import new_request_id
from proxy.sse import StreamWatcher

TOKENS = 16
CONNECT_S = 3.0
REST_S = 60.0  # from the first token to the last
LISTING_BYTES = 256 * 1024

_TEXT = "Reply with the word OK."
_FIELDS = {
    Api.OPENAI: [(b"content-type", b"application/json")],
    Api.ANTHROPIC: [(b"content-type", b"application/json"), (b"anthropic-version", b"2023-06-01")],
}
_PATHS = {Api.OPENAI: b"/v1/chat/completions", Api.ANTHROPIC: b"/v1/messages"}
_LATE = Ending(Verdict.FAILED, Outcome.FIRST_TOKEN_TIMEOUT, why="no first token")
_CUT = Ending(Verdict.FAILED, Outcome.TRUNCATED, why="truncated")
_STALLED = Ending(Verdict.FAILED, Outcome.IDLE_TIMEOUT, why="no end")


@dataclass(frozen=True, slots=True)
class SmokeTest:
    """What to ask of a platform's backends. `models`: under these names; empty: under the first that the backend lists."""

    platform: str
    backends: tuple[str, ...]
    models: tuple[str, ...] = ()
    api: Api = Api.OPENAI
    first_token_s: float = 60.0
    every_s: float | None = None  # None: only by hand


class Result(NamedTuple):
    """What came of one test. `ending`: what it says about the backend."""

    ok: bool
    ending: Ending
    model: str = ""
    ttft_s: float | None = None  # sent to first token
    tokens: int = 0

    @property
    def why(self) -> str:
        """What went wrong, in a word."""
        return "" if self.ok else self.ending.why


async def test(backend: Backend, asks: SmokeTest, model: str | None) -> Result:
    """Ask one backend. `model` None: whichever it lists first. Never raises for what the backend does."""
    if model is None:
        model = await _first_listed(backend, asks.first_token_s)
    body: dict[str, object] = {"messages": [{"role": "user", "content": _TEXT}], "max_tokens": TOKENS, "stream": True}
    if model:
        body["model"] = model
    watcher = StreamWatcher(asks.api)
    attempt = _attempt(backend, watcher, model)
    heads = backend.messages_heads if asks.api is Api.ANTHROPIC else backend.heads
    data = msgspec.json.encode(body)
    head = heads.build(b"POST", _PATHS[asks.api], _FIELDS[asks.api], len(data), new_request_id().encode(), trusted=False)
    try:
        async with asyncio.timeout(asks.first_token_s):
            failed = await attempt.first_token(head, data, CONNECT_S)
        if failed is not None:
            return Result(False, failed, model)
        ttft_s = attempt.token_at - attempt.sent_at
        async with asyncio.timeout(REST_S):
            whole = await _Rest(attempt).body()
    except TimeoutError:
        return Result(False, _STALLED if attempt.token_at else _LATE, model)
    finally:
        attempt.abandon()
    if whole is None or (attempt.watching and not watcher.whole):
        return Result(False, _CUT, model, ttft_s, watcher.tokens)
    return Result(True, Ending(Verdict.OK, Outcome.OK), model, ttft_s, watcher.tokens)


async def _first_listed(backend: Backend, within_s: float) -> str:
    """The first name of `GET /v1/models`; empty if it lists none. An engine that serves one model mostly takes any name, and none."""
    attempt = _attempt(backend, None, None)
    head = backend.heads.build(b"GET", b"/v1/models", (), 0, new_request_id().encode(), trusted=False)
    try:
        async with asyncio.timeout(within_s):
            if await attempt.first_token(head, b"", CONNECT_S) is not None:
                return ""
            listed = await _Rest(attempt).body()
        return msgspec.json.decode(listed or b"", type=_Listing).data[0].id
    except (TimeoutError, msgspec.DecodeError, IndexError):
        return ""
    finally:
        attempt.abandon()


def _attempt(backend: Backend, watcher: StreamWatcher | None, model: str | None) -> Attempt:
    # The model's name is the file's or the backend's own: if it is not known there, that is a refusal of us.
    return Attempt(backend, watcher, first_token_at=clock.NEVER, total_at=clock.NEVER, model=model, model_is_ours=model is not None)


class _Model(msgspec.Struct):
    id: str


class _Listing(msgspec.Struct):
    data: Sequence[_Model]


class _Rest:
    """Takes in what follows the first token, to the end of the answer."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._pieces = list(attempt.held)
        self._bytes = attempt.held_bytes
        self._over: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

    async def body(self) -> bytes | None:
        """The body, as far as it is bounded, once it has ended properly; None: it was cut."""
        attempt = self._attempt
        if attempt.ended:
            return b"".join(self._pieces)
        if attempt.connection is None:
            return None
        attempt.connection.hand_over(self)
        return await self._over

    def head(self, head: AnswerHead, length_bytes: int | None) -> None:
        raise AssertionError("the head comes before the first token")

    def whole(self, head: AnswerHead, body: bytes) -> None:
        raise AssertionError("the head comes before the first token")

    def chunk(self, chunk: bytes, start: int) -> None:
        self.data(chunk[start:-2])

    def data(self, piece: bytes) -> None:
        if self._attempt.watching and self._attempt.watcher is not None:
            self._attempt.watcher.feed(piece)
        elif self._bytes < LISTING_BYTES:
            self._bytes += len(piece)
            self._pieces.append(piece)

    def end(self) -> None:
        self._settle(b"".join(self._pieces))

    def lost(self, fault: BackendFault) -> None:
        self._settle(None)

    def _settle(self, body: bytes | None) -> None:
        self._attempt.connection = None
        if not self._over.done():
            self._over.set_result(body)
