"""How does Fairlane start, take a new file, and end? The composition root: all that runs is built here and passed on."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import ssl
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import uvloop

from policies.failover import Proving
from proxy import clock, floors, page, under_way, wiring
from proxy.admin import AdminPort, ReloadResult
from proxy.clock import Deadlines
from proxy.dispatch import Lobby
from proxy.edition import Edition
from proxy.http1.outbox import Outbox
from proxy.http1.server import Door
from proxy.levers import Levers
from proxy.prober import Prober
from proxy.service import Service
from proxy.settings.loader import Loaded, load
from proxy.settings.problems import SettingsError
from proxy.settings.root import Settings
from proxy.smoke import Result
from proxy.smoke_rounds import SmokeRounds
from proxy.telemetry import view
from proxy.telemetry.access_log import line as access_line
from proxy.telemetry.events import ProcessLog
from proxy.telemetry.log_writer import LogWriter, Sink, open_sink
from proxy.telemetry.recent import Recent
from proxy.telemetry.recorder import Recorder
from proxy.telemetry.telemetry import Telemetry
from proxy.telemetry.traces import Traces
from proxy.telemetry.view import State

BACKLOG = 4096


def run(path: str) -> int:
    """Serve the file until SIGTERM or SIGINT. 0: drained; 1: the file is invalid, or a port is taken (said on stderr)."""
    try:
        loaded = load(path, os.environ)
    except SettingsError as error:
        for problem in error.problems:
            print(problem, file=sys.stderr)
        return 1
    _raise_descriptor_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(_serve(path, loaded))
        except OSError as error:
            print(
                f"{path}: cannot listen: {error.strerror or error}; another process has the port, or the address is not this machine's",
                file=sys.stderr,
            )
            return 1


async def _serve(path: str, loaded: Loaded) -> int:
    async with Fairlane(path, loaded) as fairlane:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, fairlane.drain)
        loop.add_signal_handler(signal.SIGHUP, fairlane.reload_soon)
        gc.collect()
        gc.freeze()  # what was built at start stays: the collector need not look at it again
        gc.set_threshold(20_000, 20, 50)  # a request makes few cycles; a pass in the middle of a thousand streams costs each of them
        await fairlane.ended.wait()
    return 0


class Fairlane:
    """One process: the door, what stands behind it, and the admin port beside it."""

    def __init__(self, path: str, loaded: Loaded, environ: Mapping[str, str] = os.environ) -> None:
        settings = loaded.settings
        self.path = path
        self.settings = settings
        self.ended = asyncio.Event()
        self.draining = False
        self._environ = environ
        self._loop = loop = asyncio.get_running_loop()
        self._started_at = clock.now()
        self._tokens = wiring.token_estimate()
        self._writer = LogWriter(open_sink(settings.server.access_log), access_line)
        self._recorder = Recorder(_record_sink(settings))
        self._recent = Recent(clock.wall)
        self._log = ProcessLog(self._writer, clock.wall, recent=self._recent)
        self._deadlines = Deadlines(loop)
        self.telemetry = Telemetry(
            wiring.inventory(settings),
            self._writer,
            now=clock.now(),
            wall=clock.wall(),
            version=_version(),
            recent=self._recent,
            process_log=self._log,
        )
        self._deadlines.observe_lag = self.telemetry.swept
        dispatcher = wiring.dispatcher(settings, clock.now(), seed=int.from_bytes(os.urandom(8), "big"))
        self.lobby = Lobby(dispatcher, loop, self._note)
        self._outbox = Outbox(loop)
        edition = wiring.edition(settings, loop, self._outbox, self._tokens)
        self.service = Service(
            loop, self._deadlines, self.lobby, self.telemetry, self._tokens, self._log, edition, self._ready, self._recorder
        )
        self.door = Door(self.service, edition.limits, loop, self._deadlines, self._outbox)
        self._levers = Levers(self.lobby, self.service, self._log, loop)
        self._prober = Prober(self._probed)
        self._smokes = SmokeRounds(self.lobby, self.service.backend, self._in_service, self._smoked, int.from_bytes(os.urandom(8), "big"))
        self._tls = _server_tls(settings)
        self._admin = AdminPort(
            state=self._state,
            ready=lambda: view.checks(self._snapshot()),
            metrics=self._metrics,
            reload=self.reload,
            levers=self._levers,
            requests=self._requests,
            page=page.html,
            token=self._admin_token,
        )
        self._listener: asyncio.Server | None = None
        self._ending: asyncio.Task[None] | None = None
        self._reloading = asyncio.Lock()
        self._exit = AsyncExitStack()
        for warning in (*loaded.warnings, *floors.below()):
            self._log.warning("check", problem=str(warning))

    async def __aenter__(self) -> Fairlane:
        """Listen. Raises OSError if a port is taken; then nothing is left running."""
        server = self.settings.server
        try:
            self._writer.start()
            self._exit.callback(self._writer.close)
            self._exit.callback(self.telemetry.settle)
            self._recorder.start()
            self._exit.callback(self._close_recorder)
            self._deadlines.start()
            self._exit.callback(self._deadlines.stop)
            self.service.traces = self._traces(self.settings)
            self._exit.push_async_callback(self._close_traces)
            self._exit.callback(self.lobby.close)
            self._exit.callback(self._levers.close)
            self._exit.push_async_callback(self._prober.close)
            self._exit.push_async_callback(self._smokes.close)
            self.admin_port = await self._admin.start(server.admin.host, server.admin.port)
            self._exit.push_async_callback(self._admin.stop)
            self._listener = await self._loop.create_server(
                self.door.connection, server.listen.host, server.listen.port, ssl=self._tls, backlog=BACKLOG
            )
            self._exit.push_async_callback(self._close_door)
        except BaseException:
            await self._exit.aclose()
            raise
        self.port: int = self._listener.sockets[0].getsockname()[1]
        self._prober.watch(wiring.probes(self.settings))
        self._smokes.watch(wiring.smoke_tests(self.settings))
        self._log.info(
            "serving", listen=f"{server.listen.host}:{self.port}", admin=f"{server.admin.host}:{self.admin_port}", version=_version()
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exit.aclose()

    def _close_recorder(self) -> None:
        self._recorder.close()
        if self._recorder.dropped:
            self._log.warning("trace_incomplete", lines_dropped=self._recorder.dropped)

    async def _close_door(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self.door.abort()
        await self.service.all_told(within_s=1.0)
        self.service.close()
        await asyncio.sleep(0)  # the loop says goodbye to each transport in its next round

    # --- the end ------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """SIGTERM: not ready at once, still accepting for the grace, then only what is under way, until the timeout. Again: at once."""
        if self._ending is None:
            self.draining = True
            self._ending = self._loop.create_task(self._drain())
        else:
            self._log.info("drain_cut_short")
            self._cut_short.set()

    async def _drain(self) -> None:
        drain = self.settings.server.drain
        self._cut_short = asyncio.Event()
        over_at = clock.now() + drain.timeout_s
        self._log.info("draining", grace_s=drain.grace_s, timeout_s=drain.timeout_s, in_flight=len(self.service.stories))
        await _either(self._cut_short.wait(), drain.grace_s)
        if self._listener is not None:
            self._listener.close()
        self.lobby.apply(self.lobby.dispatcher.close)
        self.door.drain()
        told = asyncio.ensure_future(self.service.all_told(within_s=max(0.0, over_at - clock.now())))
        cut = asyncio.ensure_future(self._cut_short.wait())
        await asyncio.wait([told, cut], return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        cut.cancel()
        if self.service.stories:
            self._log.warning("drain_timeout", cut=len(self.service.stories))
            self.lobby.apply(self.lobby.dispatcher.expel)
            self.service.cut_all()
            await self.service.all_told(within_s=2.0)
        self._log.info("drained")
        self.ended.set()

    # --- a new file -----------------------------------------------------------------------------------------------

    def reload_soon(self) -> None:
        """SIGHUP."""
        self._reload_task = self._loop.create_task(self.reload())

    async def reload(self) -> ReloadResult:
        """Read the file again. All or nothing: what is wrong with it is logged with its place, and nothing has changed."""
        async with self._reloading:
            if self.draining:
                self._log.info("reload_ignored", why="draining")
                return ReloadResult(False, [f"{self.path}: not read: Fairlane is draining"])
            try:
                loaded = await asyncio.to_thread(load, self.path, self._environ)
                problems: Sequence[str] = self._unchangeable(loaded.settings)
                edition = wiring.edition(loaded.settings, self._loop, self._outbox, self._tokens, self.service.edition)
                tls = _server_tls(loaded.settings)
                traced = self.settings.server.traces == loaded.settings.server.traces
                traces = self.service.traces if traced or problems else await asyncio.to_thread(self._traces, loaded.settings)
                sink = open_sink(loaded.settings.server.access_log) if not problems else None
                recording = _record_sink(loaded.settings) if not problems else None
            except SettingsError as error:
                problems = [str(problem) for problem in error.problems]
            except (OSError, ssl.SSLError, ValueError) as error:
                problems = [f"{self.path}: {error}"]
            if problems:
                self.telemetry.reloaded(False, clock.wall())
                self._log.error("reload_refused", problems=list(problems))
                return ReloadResult(False, problems)
            self._adopt(loaded.settings, edition, tls)
            before, self.service.traces = self.service.traces, traces
            if before is not None and before is not traces:
                await asyncio.to_thread(before.close)
            self._writer.switch(sink)
            self._recorder.switch(recording)
            warnings = [str(warning) for warning in loaded.warnings]
            self._log.info("reloaded", warnings=warnings)
            return ReloadResult(True, (), warnings)

    def _traces(self, settings: Settings) -> Traces | None:
        traces = settings.server.traces
        if traces is None:
            return None
        return Traces(traces.url, traces.sample, _version(), lambda problem: self._log.warning("traces", problem=problem))

    async def _close_traces(self) -> None:
        if self.service.traces is not None:
            await asyncio.to_thread(self.service.traces.close)

    def _unchangeable(self, settings: Settings) -> list[str]:
        """What only a restart can change."""
        before, after = self.settings.server, settings.server
        changed = [key for key in ("listen", "admin") if getattr(before, key) != getattr(after, key)]
        if (before.tls is None) != (after.tls is None):
            changed.append("tls")
        return [f"{self.path}: server.{key}: cannot change while serving; put it back, or restart" for key in changed]

    def _adopt(self, settings: Settings, edition: Edition, tls: ssl.SSLContext | None) -> None:
        self.settings = settings
        self.telemetry.reconfigure(wiring.inventory(settings), clock.now())
        self.service.adopt(edition)
        self.door.limits = edition.limits
        self.lobby.apply(self.lobby.dispatcher.reconfigure, edition.plan)
        self._prober.watch(wiring.probes(settings))
        self._smokes.watch(wiring.smoke_tests(settings))
        if self._tls is not None and tls is not None and settings.server.tls is not None:
            self._tls.load_cert_chain(settings.server.tls.cert, settings.server.tls.key)  # for those who connect from now on
        self.telemetry.reloaded(True, clock.wall())

    # --- what the admin port shows and pulls -------------------------------------------------------------------------

    def _snapshot(self) -> State:
        """What the dispatcher knows; to the outside we drain from the first moment on, while it still accepts for the grace."""
        state = self.lobby.dispatcher.snapshot(clock.now())
        return replace(state, closed=True) if self.draining else state

    def _ready(self) -> bool:
        return not any(check.fault and check.needed for check in view.checks(self._snapshot()))

    def _state(self) -> Mapping[str, Any]:
        uptime_s = clock.now() - self._started_at
        recent = self._recent.document()
        return view.document(self._snapshot(), version=_version(), uptime_s=uptime_s, wall=clock.wall(), recent=recent)

    def _requests(self) -> Mapping[str, Any]:
        return under_way.document(self.service.stories, clock.now(), clock.wall())

    def _metrics(self) -> bytes:
        return self.telemetry.exposition(self._snapshot(), clock.now())

    def _admin_token(self) -> str | None:
        token = self.settings.server.admin_token
        return token.get_secret_value() if token is not None else None

    # --- what happens to backends and platforms -----------------------------------------------------------------------

    def _probed(self, backend: str, alive: bool) -> None:
        self.lobby.apply(self.lobby.dispatcher.probed, backend, alive)

    def _note(self, events: Sequence[Any]) -> None:
        self._log.events(events)
        self.telemetry.events(events)
        for event in events:
            if isinstance(event, Proving):
                self._smokes.prove(event.to)

    def _in_service(self, platform: str) -> bool:
        return any(platform in pool.in_service for pool in self._snapshot().pools.values())

    def _smoked(self, platform: str, backend: str, result: Result) -> None:
        self.telemetry.smoked(platform, result.ok)
        say = self._log.info if result.ok else self._log.warning
        say("smoke_passed" if result.ok else "smoke_failed", platform=platform, backend=backend, model=result.model, why=result.why)


async def _either(wait: Any, within_s: float) -> None:
    try:
        async with asyncio.timeout(within_s):
            await wait
    except TimeoutError:
        pass


def _record_sink(settings: Settings) -> Sink | None:
    return None if settings.server.trace is None else open_sink(str(settings.server.trace))


def _server_tls(settings: Settings) -> ssl.SSLContext | None:
    tls = settings.server.tls
    if tls is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    context.load_cert_chain(tls.cert, tls.key)
    return context


def _raise_descriptor_limit() -> None:
    """A stream is two descriptors: the soft limit of 1024 that shells come with would be 500 callers."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _version() -> str:
    try:
        return version("fairlane")
    except PackageNotFoundError:
        return "0+source"
