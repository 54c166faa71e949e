"""What does the path of a request cost, whatever else the machine is doing? The whole proxy between two transports in memory.

No socket, no system call: what remains is our own code, to be counted in Python calls (the same on every machine) or timed.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from proxy.http1.client import BackendConnection
from tests.proxy.serving import Serving, serving
from tests.wire import ev, post, scripts

FILE = """
lanes: {fast: {}, slow: {share: 10%}}
keys: [{name: A, secret: sk-A, lane: fast}]
platforms: {p: {probe: none, backends: {b: {url: "http://127.0.0.1:1", max_streams: 100}}}}
pools: {main: {primary: p}}
routes: [{pool: main}]
"""
ANSWER = scripts.answer(scripts.chat_body(8))


class MemoryTransport:
    """A socket that is always ready: what is written goes to `written`."""

    def __init__(self, written: Callable[[bytes], None]) -> None:
        self.write = written
        self.closing = False

    def writelines(self, pieces: Any) -> None:
        self.write(b"".join(pieces))

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closing

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        self.closing = True

    abort = close

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Path:
    """One caller and one backend connection, with the proxy between them."""

    def __init__(self, proxy: Serving) -> None:
        self.proxy = proxy
        self.answer: list[bytes] = [ANSWER]  # what the backend sends, a read each
        self._reads = iter(self.answer)
        self._ended = asyncio.Event()
        self._end = b""
        self._loop = asyncio.get_running_loop()
        self.caller = proxy.fairlane.door.connection()
        self.caller.connection_made(MemoryTransport(self._to_caller))  # type: ignore[arg-type]
        kept = proxy.fairlane.service.backend("b").connections
        self._backend = BackendConnection(kept)
        self._backend.connection_made(MemoryTransport(self._to_backend))  # type: ignore[arg-type]
        kept.put(self._backend)

    def _to_backend(self, _: bytes) -> None:
        self._reads = iter(self.answer)
        self._read()

    def _read(self) -> None:
        read = next(self._reads, None)
        if read is not None:
            self._loop.call_soon(self._backend.data_received, read)

    def _to_caller(self, data: bytes) -> None:
        if data.endswith(self._end):
            self._ended.set()
        else:
            self._read()  # as tokens come: the next one when the one before has gone on

    async def ask(self, request: bytes, end: bytes) -> None:
        """One request, until what goes to the caller ends so."""
        self._end = end
        self._ended.clear()
        self._backend.idle_until = self._loop.time() + 60.0
        self.caller.data_received(request)
        await self._ended.wait()


@asynccontextmanager
async def path() -> AsyncIterator[Path]:
    """A proxy with one backend, and the two transports."""
    async with serving(FILE) as proxy:
        yield Path(proxy)


def counted(frames: list[str] | None = None) -> Callable[[], int]:
    """Count calls of Python and C functions from now on; the result stops the count and tells it."""
    count = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        if event in ("call", "c_call") and frame.f_code.co_filename != __file__:
            count += 1
            if frames is not None:
                code = frame.f_code
                frames.append(
                    f"{code.co_filename.rpartition('/')[2]}:{code.co_name}" + (f" -> {argument.__name__}" if event == "c_call" else "")
                )

    def stop() -> int:
        sys.setprofile(None)
        return count

    sys.setprofile(profile)
    return stop


PLAIN = post(b'{"model": "m", "messages": [{"role": "user", "content": "' + b"x" * 100 + b'"}], "max_tokens": 16, "stream": false}')
STREAMED = post(b'{"model": "m", "messages": [{"role": "user", "content": "' + b"x" * 100 + b'"}], "max_tokens": 16, "stream": true}')
LARGE = post(b'{"model": "m", "messages": [{"role": "user", "content": "' + b"x" * 32768 + b'"}], "max_tokens": 16, "stream": false}')


def stream_of(chunks: int) -> list[bytes]:
    """An event stream, each event a read of its own."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return [
        head + scripts.chunk(ev("t")),
        *([scripts.chunk(ev("t"))] * (chunks - 1)),
        scripts.chunk(scripts.finish() + scripts.DONE) + b"0\r\n\r\n",
    ]


async def calls_per_request(request: bytes = PLAIN, frames: list[str] | None = None) -> float:
    """Calls for one short request, once everything is warm."""
    async with path() as one:
        for _ in range(50):
            await one.ask(request, b"}")
        stop = counted(frames)
        for _ in range(50):
            await one.ask(request, b"}")
        return stop() / 50


async def calls_per_chunk() -> float:
    """Calls for one more chunk of a stream."""
    async with path() as one:
        totals = []
        for chunks in (50, 250):
            one.answer = stream_of(chunks)
            await one.ask(STREAMED, b"0\r\n\r\n")
            stop = counted()
            await one.ask(STREAMED, b"0\r\n\r\n")
            totals.append(stop())
        return (totals[1] - totals[0]) / 200


async def seconds_per_request(request: bytes = PLAIN, batches: int = 40, size: int = 100) -> float:
    """The best batch's mean: other load makes batches slower, never faster."""
    async with path() as one:
        best = float("inf")
        for _ in range(batches):
            began = time.process_time()
            for _ in range(size):
                await one.ask(request, b"}")
            best = min(best, (time.process_time() - began) / size)
        return best


async def seconds_per_chunk(batches: int = 20) -> float:
    """The best of many streams of 500 chunks."""
    async with path() as one:
        one.answer = stream_of(500)
        best = float("inf")
        for _ in range(batches):
            began = time.process_time()
            await one.ask(STREAMED, b"0\r\n\r\n")
            best = min(best, (time.process_time() - began) / 500)
        return best


async def garbage_per_request(request: bytes, answer: list[bytes], end: bytes) -> float:
    """Objects that only the collector can free, for each request. What waits for it goes cold, and each pass halts every stream."""
    async with path() as one:
        one.answer = answer
        for _ in range(20):
            await one.ask(request, end)
        gc.collect()
        gc.disable()
        try:
            for _ in range(20):
                await one.ask(request, end)
            await asyncio.sleep(0)  # the last task ends
            return gc.collect() / 20
        finally:
            gc.enable()
