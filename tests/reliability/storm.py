"""What if everything ends in every way at once? A storm of requests, each with an ending of its own, against one Fairlane."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import ClassVar

from tests.reliability.corpora import corpus
from tests.wire import JS, A, J, RawClient, WireError, ev, post, scripts
from tests.wire.backend import Script

ENDINGS = (
    "stream",
    "stream",
    "stream",
    "whole",
    "leave",
    "leave",
    "reset",
    "half",
    "fault",
    "fault",
    "malformed",
    "unknown",
    "no-key",
    "partial",
)
_STATUSES = {200, 400, 401, 404, 405, 408, 413, 414, 415, 417, 429, 431, 500, 501, 502, 503, 504}


class Storm:
    """Requests with mixed endings: good streams, callers who leave at a random moment, faults of the backend, malformed bytes."""

    SCRIPTS: ClassVar[dict[str, Script]] = {
        "ok": (scripts.ok(8, gap_s=0.004),),
        "slow": (scripts.delay(0.05), scripts.ok(20, gap_s=0.01)),
        "error": (scripts.status(500),),
        "busy": (scripts.status(429),),
        "rst": (scripts.rst(),),
        "role-rst": (scripts.head(), scripts.chunked(scripts.ROLE), scripts.rst()),
        "cut": (scripts.head(), scripts.event("a"), scripts.event("b"), scripts.fin()),
        "cut-rst": (scripts.head(), scripts.event("a"), scripts.delay(0.01), scripts.rst()),
        "lie": (scripts.head(), scripts.event("a"), scripts.end()),
        "stall": (scripts.head(), scripts.event("a"), scripts.hang()),
        "in-band": (scripts.head(), scripts.event("a"), scripts.chunked(b'data: {"error":{"code":500}}\n\n'), scripts.end()),
        "garbage": (scripts.garbage(),),
        "refused": (scripts.status(400),),
    }
    FAULTS = ("error", "rst", "role-rst", "cut", "cut-rst", "lie", "stall", "in-band", "garbage", "refused")

    def __init__(self, port: int, chance: random.Random) -> None:
        self.port = port
        self.chance = chance
        self.seen: Counter[str] = Counter()  # what came of it
        self.problems: list[str] = []
        self.latencies_s: list[float] = []  # of good streams
        self._broken = [entry.raw for entry in corpus("requests") if entry.verdict == "refused" and entry.more.get("then", True)]

    async def run(self, count: int, at_once: int) -> None:
        """`count` requests, at most `at_once` under way."""
        left = iter(range(count))

        async def worker() -> None:
            for _ in left:
                await self.one(self.chance.choice(ENDINGS))

        await asyncio.gather(*(worker() for _ in range(at_once)))

    async def one(self, ending: str) -> None:
        """One request with this ending."""
        try:
            async with await RawClient.connect(self.port, timeout_s=30.0) as caller:
                await getattr(self, "_" + ending.replace("-", "_"))(caller)
            self.seen[ending] += 1
        except (EOFError, OSError, TimeoutError, WireError) as problem:
            self.problems.append(f"{ending}: {problem!r}")

    def _key(self) -> str:
        return "sk-A" if self.chance.random() < 0.5 else "sk-B"

    async def _stream(self, caller: RawClient) -> None:
        began = asyncio.get_running_loop().time()
        for _ in range(self.chance.choice((1, 1, 3))):
            answer = await caller.ask(post(JS, key=self._key(), headers={"x-script": self.chance.choice(("ok", "slow"))}))
            self._hold(answer.status in (200, 429, 503), f"stream: {answer.status}")
            if answer.status == 200:
                self._hold(
                    answer.whole and answer.body.endswith(scripts.DONE) and b'"error"' not in answer.body,
                    f"a good stream was cut: {answer.body[-160:]!r}",
                )
                self._hold(answer.body.count(b'"role"') == 1, "two roles")
        self.latencies_s.append(asyncio.get_running_loop().time() - began)

    async def _whole(self, caller: RawClient) -> None:
        answer = await caller.ask(post(J, key=self._key(), headers={"x-script": "ok"}))
        self._hold(answer.status in (200, 429, 503) and answer.whole, f"whole: {answer.status}")

    async def _leave(self, caller: RawClient) -> None:
        await caller.send(post(self.chance.choice((J, JS)), key=self._key(), headers={"x-script": "slow"}))
        await asyncio.sleep(self.chance.uniform(0, 0.3))

    async def _reset(self, caller: RawClient) -> None:
        await self._leave(caller)
        caller.reset()

    async def _half(self, caller: RawClient) -> None:
        await self._leave(caller)
        try:
            caller.half_close()
        except OSError:
            return  # refused and closed before
        await caller.until_closed()

    async def _fault(self, caller: RawClient) -> None:
        fault = self.chance.choice(self.FAULTS)
        answer = await caller.ask(
            post(JS if fault == "stall" else self.chance.choice((J, JS)), key=self._key(), headers={"x-script": fault})
        )
        self._hold(answer.status in _STATUSES, f"{fault}: {answer.status}")
        if fault in ("cut", "cut-rst", "lie", "stall", "in-band") and answer.status == 200 and ev("a") in answer.body:
            whole_unary = b"delta" not in answer.body
            self._hold(whole_unary or b"[DONE]" not in answer.body, f"{fault} looks whole")

    async def _malformed(self, caller: RawClient) -> None:
        await caller.send(self.chance.choice(self._broken))
        answer = await caller.response()
        self._hold(answer.status in _STATUSES and answer.status >= 400, f"malformed: {answer.status}")

    async def _unknown(self, caller: RawClient) -> None:
        answer = await caller.ask(post(J, path=f"/v1/{self.chance.randrange(10**6)}"))
        self._hold(answer.status == 404, f"unknown: {answer.status}")

    async def _no_key(self, caller: RawClient) -> None:
        answer = await caller.ask(post(J, key=f"sk-{self.chance.randrange(10**6)}"))
        self._hold(answer.status == 401, f"no key: {answer.status}")

    async def _partial(self, caller: RawClient) -> None:
        raw = A + b"Content-Length: 57\r\n\r\n" + J
        await caller.send(raw[: self.chance.randrange(1, len(raw))])
        await asyncio.sleep(self.chance.uniform(0, 0.05))

    def _hold(self, good: bool, problem: str) -> None:
        if not good:
            self.problems.append(problem)
