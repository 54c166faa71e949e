"""What must hold after every case, whatever the case was about? The oracles O-a to O-i, applied when the block ends.

O-a byte ledger, O-b conservation, O-c cap, O-d return to zero, O-e no idle slot, O-f attempts, O-g clean stderr, O-h secrets,
O-i alive. Each is a method of `Watch`; `watched` runs them all.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import h11

from tests.proxy.serving import Serving, serving
from tests.wire import ScriptedBackend, eventually, post, scripts

KEY_CANARY = "sk-CANARY-7f3a9c"
PROMPT_CANARY = "PROMPT-CANARY-7f3a"
CLOSE_NOTICED_S = 0.05  # between our close of a cancelled request and the backend's seeing it
IDLE_SLOT_S = 0.1
SLACK = 5  # descriptors and tasks
_FIELD = rb"[!#$%&'*+\-.^`|~0-9A-Za-z]+: [^\r\n\x00]*\r\n"  # no underscore: two readers could take it for a dash
_CANONICAL = re.compile(rb"[A-Z]+ /[\x21-\x7e]* HTTP/1\.1\r\n(?:" + _FIELD + rb")+\r\n")
_REPORT = re.compile(r"Traceback|never retrieved|never awaited|Unclosed|Task was destroyed|story_failed")


class Ledger:
    """All that one backend received, read by a parser that is not ours."""

    def __init__(self, backend: ScriptedBackend) -> None:
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []  # method, target, fields, body
        for connection in backend.connections:
            raw = bytes(connection.received)
            assert b"/canary" not in raw, "a smuggled request arrived"
            self.requests += _read_by_h11(raw)
        for seen in backend.requests:
            head = seen.raw[: len(seen.raw) - len(seen.body)]
            assert _CANONICAL.fullmatch(head), f"not one canonical head: {head!r}"
            lower = head.lower()
            assert lower.count(b"\r\ncontent-length:") == 1 and b"\r\ntransfer-encoding:" not in lower, head
            assert lower.count(b"\r\nhost:") == 1 and b"\r\nupgrade:" not in lower and b"\r\nexpect:" not in lower, head
        assert len(self.requests) == len(backend.requests), "the two readers of the ledger disagree"


def _read_by_h11(raw: bytes) -> list[tuple[str, str, dict[str, str], bytes]]:
    found = []
    reader = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 30)
    reader.receive_data(raw)
    request: h11.Request | None = None
    body = b""
    while True:
        event = reader.next_event()
        if isinstance(event, h11.Request):
            request, body = event, b""
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            assert request is not None
            fields = {name.decode(): value.decode("latin-1") for name, value in request.headers}
            found.append((request.method.decode(), request.target.decode("latin-1"), fields, body))
            reader.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
            reader.send(h11.EndOfMessage())
            if reader.our_state is not h11.DONE:
                return found
            reader.start_next_cycle()
        else:
            return found  # NEED_DATA, PAUSED or ConnectionClosed


class Watch:
    """A Fairlane under observation, with its backends."""

    def __init__(self, proxy: Serving, backends: tuple[ScriptedBackend, ...], complaints: list[str]) -> None:
        self.proxy = proxy
        self.backends = backends
        self.complaints = complaints
        self.attempts_max = 2
        self.alive = True  # a valid request afterwards is answered
        self.secrets = [KEY_CANARY, PROMPT_CANARY]
        self.internal = 0  # requests that were made to fail inside
        self.idle_slot_s = 0.0  # longest seen with a waiter
        self.said: list[bytes] = []  # lines of the process log
        self._descriptors, self._tasks = self._held()
        self._say = proxy.fairlane._writer.say
        proxy.fairlane._writer.say = self._overhear  # type: ignore[method-assign]

    def _overhear(self, line: bytes) -> None:
        self.said.append(line)
        self._say(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.proxy, name)

    def _held(self) -> tuple[int, int]:
        """Descriptors and tasks, without those of kept connections to backends (two each: both ends live here)."""
        kept = sum(len(backend.connections._idle) for backend in self.proxy.fairlane.service.edition.backends.values())
        return len(os.listdir("/proc/self/fd")) - 2 * kept, len(asyncio.all_tasks())

    # --- the log -------------------------------------------------------------------------------------------------

    def log_text(self) -> str:
        return self.proxy.log.read_text() if self.proxy.log.exists() else ""

    def lines(self) -> list[dict[str, Any]]:
        """The lines of requests, oldest first."""
        return [line for line in map(json.loads, self.log_text().splitlines()) if "outcome" in line]

    async def logged(self, count: int) -> list[dict[str, Any]]:
        """The lines, once there are that many."""
        await eventually(lambda: len(self.lines()) >= count)
        return self.lines()

    def outcomes(self) -> Counter[str]:
        return Counter(line["outcome"] for line in self.lines())

    # --- the oracles ----------------------------------------------------------------------------------------------

    async def check(self) -> None:
        """All of them."""
        await self.returns_to_zero()
        if self.alive:
            await self.is_alive()
        _, text = await self.proxy.admin("/metrics")
        held = re.findall(r"^(fairlane_(?:queue_waiting|backend_streams)\{[^}]*\}) (\S+)$", text, re.MULTILINE)
        assert held and all(float(value) == 0 for _, value in held), f"O-d: {held}"
        await self.conserves(text)
        self.keeps_the_ledger()
        self.keeps_attempts(text)
        self.keeps_caps()
        self.keeps_secrets(text)
        self.is_clean()
        assert self.idle_slot_s < IDLE_SLOT_S + 0.2, f"O-e: a free slot and a waiter for {self.idle_slot_s:.3f} s"

    def keeps_the_ledger(self) -> None:
        """O-a: what arrived is what the log says was sent, each with one canonical head."""
        known = {line["id"]: line for line in self.lines()}
        for backend in self.backends:
            for method, target, fields, body in Ledger(backend).requests:
                line = known.get(fields["x-request-id"])
                assert line is not None, f"O-a: {method} {target} is in no log"
                path = line["path"].removeprefix("/v1")
                assert method == line["method"] and target.partition("?")[0].endswith(path), (method, target, line)
                assert line["pool"], "O-a: it was sent without a pool"
                if line["attempts"] and not line["continued"] and '"model"' not in self.proxy.file.read_text():
                    assert len(body) <= line["bytes_in"] + 64, "O-a: the body grew"

    async def conserves(self, metrics: str) -> None:
        """O-b: every request ended once, under one name, and none inside."""
        total = int(sum(float(value) for value in re.findall(r"^fairlane_requests_total\{[^}]*\} (\S+)$", metrics, re.MULTILINE)))
        await eventually(lambda: len(self.lines()) >= total)
        outcomes = self.outcomes()
        assert sum(outcomes.values()) == total, f"O-b: {total} counted, {outcomes} logged"
        assert outcomes["internal"] == self.internal, f"O-b: {outcomes['internal']} internal"

    def keeps_caps(self) -> None:
        """O-c: as the backend counts, overlap ending when it had finished, or saw the close."""
        for backend in self.backends:
            cap = self._cap_of(backend)
            if cap is None:
                continue
            moments: list[tuple[float, int]] = []
            for seen in backend.requests:
                left_at = seen.close_seen_at - CLOSE_NOTICED_S if seen.close_seen_at is not None else None
                ended_at = min((at for at in (seen.finished_at, left_at) if at is not None), default=float("inf"))
                moments += [(seen.arrived_at, 1), (max(ended_at, seen.arrived_at), -1)]
            running = most = 0
            for _, step in sorted(moments, key=lambda moment: (moment[0], moment[1])):
                running += step
                most = max(most, running)
            assert most <= cap, f"O-c: {most} at once under a cap of {cap}"

    def _cap_of(self, backend: ScriptedBackend) -> int | None:
        found = re.search(rf'"{re.escape(backend.url)}[^"]*", max_streams: (\d+)', self.proxy.file.read_text())
        return int(found[1]) if found else None

    async def returns_to_zero(self) -> None:
        """O-d: within 2 s nothing is in flight, nothing waits, and descriptors and tasks are back where they were."""
        await self.proxy.at_rest()

        def back() -> bool:
            descriptors, tasks = self._held()
            return descriptors <= self._descriptors + SLACK and tasks <= self._tasks + SLACK

        try:
            await eventually(back, 4.0)
        except TimeoutError:
            raise AssertionError(f"O-d: {self._held()} descriptors and tasks, {self._descriptors, self._tasks} before") from None

    async def no_idle_slot(self, stop: Callable[[], bool]) -> None:
        """O-e: watch until `stop`; a free slot together with a waiter never lasts."""
        loop = asyncio.get_running_loop()
        since: float | None = None
        while not stop():
            state = self.proxy.state
            free = any(each.in_flight < each.cap for each in state.backends.values())
            since = (since or loop.time()) if state.waiting and free else None
            if since is not None:
                self.idle_slot_s = max(self.idle_slot_s, loop.time() - since)
            await asyncio.sleep(0.01)

    def keeps_attempts(self, metrics: str) -> None:
        """O-f: attempts within bounds, usage recorded once."""
        lines = self.lines()
        assert all(line["attempts"] <= self.attempts_max for line in lines), "O-f"
        counted = sum(float(value) for value in re.findall(r'fairlane_tokens_total\{[^}]*source="usage"[^}]*\} (\S+)', metrics))
        logged = sum(line["tokens_in"] + line["tokens_out"] for line in lines if line["tokens_source"] == "usage")
        assert counted == logged, f"O-f: {counted} tokens counted, {logged} logged"

    def keeps_secrets(self, metrics: str) -> None:
        """O-h: neither key nor prompt in any log or metric."""
        for secret in self.secrets:
            assert secret not in self.log_text(), f"O-h: {secret} in the log"
            assert secret.encode() not in b"".join(self.said), f"O-h: {secret} in the process log"
            assert secret not in metrics, f"O-h: {secret} in a metric"

    def is_clean(self) -> None:
        """O-g: nothing was reported that stderr would show."""
        assert self.complaints == [], f"O-g: {self.complaints}"
        if not self.internal:
            said = b"".join(self.said).decode()
            assert _REPORT.search(said) is None, "O-g: " + said

    async def is_alive(self) -> None:
        """O-i: a valid request is answered."""
        for backend in self.backends:
            backend.named.setdefault("alive", (scripts.ok(),))
        async with await self.proxy.connect() as caller:
            answer = await caller.ask(post(headers={"x-script": "alive", "connection": "close"}))
        assert answer.status == 200, f"O-i: {answer}"
        await self.proxy.at_rest()


@asynccontextmanager
async def watched(text: str, *backends: ScriptedBackend, server: str | None = None) -> AsyncIterator[Watch]:
    """Fairlane with this file, and the oracles over the block, once it has ended well."""
    loop = asyncio.get_running_loop()
    complaints: list[str] = []
    loop.set_exception_handler(lambda _, context: complaints.append(repr(context)))
    try:
        async with serving(text, access_log="on", server=server) as proxy:
            watch = Watch(proxy, backends, complaints)
            await watch.proxy.admin("/metrics")
            watch._descriptors, watch._tasks = watch._held()
            yield watch
            await watch.check()
    finally:
        loop.set_exception_handler(None)
    assert complaints == [], f"O-g: {complaints}"
