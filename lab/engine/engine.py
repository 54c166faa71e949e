"""What does the fake engine do with a request? Ties the latency model, the APIs' forms and the faults to a port.

One timer serves all answers: it wakes when the model's next token is due and writes what has been produced since. There is no
task per request and none per token, so 200 streams at 50 tokens a second cost a small part of one core.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field

import msgspec

from lab.engine.answers import Chat, Completion, Embedding, Form, Message, Response, error_body, message_error_body
from lab.engine.asks import AskError, decode
from lab.engine.exposition import Tallies, exposition
from lab.engine.faults import NONE, Fault, Faults
from lab.engine.job import Job, Step
from lab.engine.model import Batch, Latency, Phase, Progress
from lab.engine.wire import Asked, Connection, whole

TICK_S = 0.001  # finest step of the timer: what event loops resolve
SAMPLED_TOKENS_MAX = 4096
GARBAGE = b"\x16\x03\x01\x02\x00 this is not HTTP\r\n\r\n\x00\xff"

# Path of a generation: the form of its answer, and the field it cannot do without.
GENERATIONS: dict[str, tuple[type[Form], str]] = {
    "/v1/chat/completions": (Chat, "messages"),
    "/v1/completions": (Completion, "prompt"),
    "/v1/responses": (Response, "input"),
    "/v1/messages": (Message, "messages"),
    "/v1/embeddings": (Embedding, "input"),
}
# Path of a count of tokens, which needs no slot: the field it cannot do without, and the answer's own.
COUNTS: dict[str, tuple[str, dict[str, str]]] = {
    "/v1/messages/count_tokens": ("messages", {}),
    "/v1/responses/input_tokens": ("input", {"object": "response.input_tokens"}),
}


@dataclass
class Log:
    """What the engine saw since its start. `at_once`: requests being answered; `held`: those and the waiting ones together."""

    requests: int = 0
    at_once: int = 0
    at_most_at_once: int = 0
    waiting: int = 0
    at_most_waiting: int = 0
    held: int = 0
    at_most_held: int = 0
    aborted: int = 0  # the client left before its answer ended
    finished: int = 0  # whole answers given


@dataclass(eq=False, kw_only=True)
class Engine:
    """A fake inference engine on a port; 0 lets the system choose, and `port` then holds its choice.

    In a test: `async with Engine(slots=8).serving() as engine: engine.url, engine.log, engine.fault(Fault(fault="hang"))`.
    """

    host: str = "127.0.0.1"
    port: int = 0
    slots: int = 8
    ttft_s: float = 0.08
    tpot_s: float = 0.02
    prefill_rate: float = 4000.0  # prompt tokens per second
    load_factor: float = 2.3
    prefill_slowdown: float = 0.5
    startup_s: float = 0.0
    seed: int = 0
    model: str = "fake"
    output_mean_tokens: int = 128  # of answers whose request sets no maximum
    log: Log = field(default_factory=Log, init=False)

    def __post_init__(self) -> None:
        """Raises ValueError for an engine that cannot be."""
        if self.slots < 1 or self.prefill_rate <= 0 or self.output_mean_tokens < 1:
            raise ValueError("slots, prefill_rate and output_mean_tokens must be above 0")
        if min(self.ttft_s, self.tpot_s, self.load_factor, self.prefill_slowdown, self.startup_s) < 0:
            raise ValueError("times and factors must not be negative")
        latency = Latency(self.slots, self.ttft_s, self.tpot_s, self.prefill_rate, self.load_factor, self.prefill_slowdown)
        self._batch = Batch(latency, time.monotonic())
        self._faults = Faults(random.Random(self.seed))
        self._lengths = random.Random(self.seed)
        self._tallies = Tallies()
        self._jobs: dict[Connection, Job] = {}
        self._hanging: set[Connection] = set()
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._wake_at = 0.0
        self._reopen: asyncio.TimerHandle | None = None
        self._opening: asyncio.Task[None] | None = None
        self._ready_at = 0.0

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    async def start(self) -> None:
        """Listens; `startup_s` begins. May be called again after `stop`. Raises OSError if the port is taken."""
        self._ready_at = time.monotonic() + self.startup_s
        await self._open()

    async def stop(self) -> None:
        """Dies: the port closes, and every connection is cut."""
        self._close()
        if self._reopen is not None:
            self._reopen.cancel()
            self._reopen = None
        if self._opening is not None:
            await asyncio.wait([self._opening])
            self._close()
        for connection in list(self._connections):
            connection.reset()
            self._forget(connection)
        self._count()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Engine]:
        """Starts, and stops at the end of the block."""
        await self.start()
        try:
            yield self
        finally:
            await self.stop()

    def fault(self, fault: Fault) -> None:
        """From now on it fails like this. A port that `refuse` closed opens again on the loop's next turn."""
        now = time.monotonic()
        self._faults.set(fault, now)
        until_at = self._faults.until_at()
        if self._reopen is not None:
            self._reopen.cancel()
            self._reopen = None
            if not fault.closes_port:
                self._open_soon()
        if fault.closes_port and until_at is not None:
            self._close()
            self._reopen = asyncio.get_running_loop().call_later(until_at - now, self._open_soon)
            for connection in list(self._connections):
                if not connection.busy:
                    connection.end()

    async def _open(self) -> None:
        if self._server is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(
                lambda: Connection(self._handle, self._gone, self._connections), self.host, self.port, backlog=4096
            )
            self.port = self._server.sockets[0].getsockname()[1]

    def _open_soon(self) -> None:
        self._reopen = None
        self._opening = asyncio.get_running_loop().create_task(self._open())

    def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    # Requests.

    def _handle(self, connection: Connection, asked: Asked) -> None:
        match asked.method, asked.path:
            case "GET", "/health":
                self._health(connection)
            case "GET", "/metrics":
                connection.done(whole(200, self._exposition(), content_type="text/plain; version=0.0.4"))
            case "GET", "/_log":
                connection.done(whole(200, msgspec.json.encode(asdict(self.log))))
            case "GET", "/_fault":
                connection.done(whole(200, msgspec.json.encode(self._faults.current)))
            case "POST", "/_fault":
                self._set_fault(connection, asked)
            case "GET", "/v1/models":
                connection.done(whole(200, msgspec.json.encode({"object": "list", "data": [self._card(self.model)]})))
            case "GET", path if path.startswith("/v1/models/"):
                connection.done(whole(200, msgspec.json.encode(self._card(path.removeprefix("/v1/models/")))))
            case "POST", path if path in GENERATIONS or path in COUNTS:
                self._ask(connection, asked)
            case _, path if path in GENERATIONS or path in COUNTS or path in ("/health", "/metrics", "/v1/models", "/_log", "/_fault"):
                connection.done(whole(405, error_body("Method Not Allowed", 405)))
            case _:
                connection.done(whole(404, error_body("Not Found", 404)))

    def _health(self, connection: Connection) -> None:
        fault = self._faults.hit("health", time.monotonic())
        if fault.fault == "hang" or (fault is not NONE and self._fails_at_once(connection, fault, error_body)):
            return  # a health check that hangs is not a request held
        ready = time.monotonic() >= self._ready_at
        connection.done(whole(200, b"{}") if ready else whole(503, error_body("Loading model", 503)))

    def _set_fault(self, connection: Connection, asked: Asked) -> None:
        try:
            fault = msgspec.json.decode(asked.body, type=Fault)
        except msgspec.DecodeError as problem:
            connection.done(whole(400, error_body(str(problem), 400)))
            return
        self.fault(fault)
        answer = whole(200, msgspec.json.encode(fault))
        if self._opening is None or self._opening.done():
            connection.done(answer)
        else:  # once answered, the port is open
            self._opening.add_done_callback(lambda _: connection.done(answer))

    def _ask(self, connection: Connection, asked: Asked) -> None:
        now = time.monotonic()
        self.log.requests += 1
        error = message_error_body if asked.path.startswith("/v1/messages") else error_body
        if now < self._ready_at:
            connection.done(whole(503, error("Loading model", 503)))
            return
        fault = self._faults.hit("requests", now)
        if fault is not NONE and self._fails_at_once(connection, fault, error):
            return
        count = COUNTS.get(asked.path)
        try:
            ask = decode(asked.body, count[0] if count else GENERATIONS[asked.path][1])
        except AskError as problem:
            connection.done(whole(400, error(str(problem), 400)))
            return
        prompt_tokens = ask.prompt_tokens()
        if count:
            connection.done(whole(200, msgspec.json.encode({**count[1], "input_tokens": prompt_tokens})))
            return
        form = GENERATIONS[asked.path][0](ask, self.log.requests, int(time.time()), self.model, prompt_tokens)
        tokens = 1 if isinstance(form, Embedding) else ask.output_tokens or self._sampled_tokens()
        job = Job(connection, form, tokens, fault, now)
        self._jobs[connection] = job
        self._batch.arrive(job.answer, now)
        self._count()
        self._schedule()

    def _fails_at_once(self, connection: Connection, fault: Fault, error: Callable[[str, int], bytes]) -> bool:
        """Fails in the fault's way if that shows before any token."""
        match fault.fault:
            case "status":
                headers = {} if fault.retry_after is None else {"Retry-After": f"{fault.retry_after:g}"}
                connection.done(whole(fault.code, error("the engine failed on request", fault.code), headers))
            case "refuse" | "reset":
                connection.reset()
            case "hang":
                self._hanging.add(connection)
                self._count()
            case "garbage":
                connection.end(GARBAGE)
            case _:
                return False
        return True

    def _gone(self, connection: Connection) -> None:
        self.log.aborted += self._forget(connection)
        self._count()
        self._schedule()

    def _forget(self, connection: Connection) -> bool:
        """Ends what is being answered there; was there anything?"""
        job = self._jobs.pop(connection, None)
        if job is not None:
            self._batch.leave(job.answer, time.monotonic())
            return True
        if connection in self._hanging:
            self._hanging.remove(connection)
            return True
        return False

    # Progress.

    def _schedule(self) -> None:
        at = self._batch.next_at()
        if at is None or (self._timer is not None and self._wake_at <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        # Rounded up to whole ticks: an event loop that wakes too early would spin until the token is due.
        ticks = math.ceil(max(0.0, at - time.monotonic()) / TICK_S)
        self._wake_at = at
        self._timer = asyncio.get_running_loop().call_later(ticks * TICK_S, self._pump)

    def _pump(self) -> None:
        self._timer = None
        for progress in self._batch.advance(time.monotonic()):
            self._progressed(progress)
        self._count()
        self._schedule()

    def _progressed(self, progress: Progress) -> None:
        job: Job = progress.answer.host
        if self._jobs.get(job.connection) is not job or progress.answer.phase is Phase.HELD:
            return  # it ended, or stalled, since this token was produced
        self._tally(job, progress)
        match job.progressed(progress.produced):
            case Step.FINISHED:
                self._tallies.finished += 1
                self._tallies.total_s.observe(progress.at - job.arrived_at)
                self.log.finished += 1
                self._forget(job.connection)
            case Step.BROKEN:
                self._forget(job.connection)
            case Step.STALLED:
                self._batch.hold(progress.answer, time.monotonic())

    def _tally(self, job: Job, progress: Progress) -> None:
        tallies = self._tallies
        if progress.produced == 1:
            tallies.ttft_s.observe(progress.at - job.arrived_at)
            tallies.prompt_tokens += job.form.prompt_tokens
            tallies.generation_tokens += 1
        else:
            tokens = min(progress.answer.every, progress.produced - 1)
            tallies.gap_s.observe((progress.at - job.last_at) / tokens, tokens)
            tallies.generation_tokens += tokens
        job.last_at = progress.at

    def _count(self) -> None:
        log = self.log
        log.at_once = self._batch.taken + len(self._hanging)
        log.waiting = self._batch.waiting
        log.held = log.at_once + log.waiting
        log.at_most_at_once = max(log.at_most_at_once, log.at_once)
        log.at_most_waiting = max(log.at_most_waiting, log.waiting)
        log.at_most_held = max(log.at_most_held, log.held)

    def _sampled_tokens(self) -> int:
        length = self._lengths.expovariate(1.0 / self.output_mean_tokens)
        return min(SAMPLED_TOKENS_MAX, max(1, round(length)))

    def _card(self, name: str) -> dict[str, object]:
        return {"id": name, "object": "model", "created": 0, "owned_by": "fairlane"}

    def _exposition(self) -> bytes:
        taken = self._batch.taken
        return exposition(self._tallies, model=self.model, running=taken, waiting=self._batch.waiting, usage_ratio=taken / self.slots)
