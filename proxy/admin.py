"""What may an operator see and pull? The admin port: health, metrics, the snapshot, and the levers.

It knows nothing of the server but the callables it is given. Reading is open to whoever reaches the port; the levers need the
admin token, or without one a loopback address.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
from aiohttp import web

from proxy.telemetry.exposition import CONTENT_TYPE
from proxy.telemetry.view import Check

BODY_MAX_BYTES = 1024  # no lever takes a body
KEEP_ALIVE_S = 75.0
CLOSE_S = 1.0

PAGE_HEADERS = {  # the page asks this port and nobody else, and is nobody's frame
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ReloadResult(NamedTuple):
    """What became of a reload. Not ok: `problems` say why, and nothing has changed."""

    ok: bool
    problems: Sequence[str] = ()
    warnings: Sequence[str] = ()


class Levers(Protocol):
    """What can be pulled; each says what is so then. KeyError: no such name, ValueError: no such value, both with a message."""

    def drain(self, name: str, /) -> str: ...
    def undrain(self, name: str, /) -> str: ...
    def serve(self, pool: str, platform: str, /) -> str: ...
    def unpin(self, pool: str, /) -> str: ...
    def cap(self, backend: str, streams: str, /) -> str: ...
    def uncap(self, backend: str, /) -> str: ...
    def cancel(self, request_id: str, /) -> str: ...


class AdminPort:
    """The admin port's server."""

    def __init__(
        self,
        *,
        state: Callable[[], Mapping[str, Any]],
        ready: Callable[[], Sequence[Check]],
        metrics: Callable[[], bytes],
        reload: Callable[[], Awaitable[ReloadResult]],
        levers: Levers,
        requests: Callable[[], Mapping[str, Any]],
        page: Callable[[], bytes],
        token: Callable[[], str | None],
    ) -> None:
        self._state = state
        self._ready = ready
        self._metrics = metrics
        self._reload = reload
        self._levers = levers
        self._requests = requests
        self._page = page
        self._token = token
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Listens; returns the port, which the system chose if 0 was asked for. Raises OSError if it is taken."""
        application = web.Application(client_max_size=BODY_MAX_BYTES)
        application.on_response_prepare.append(_plain_head)
        add = application.router.add_route
        for path in ("/livez", "/healthz"):
            application.router.add_get(path, _alive)
        application.router.add_get("/readyz", self._readiness)
        application.router.add_get("/metrics", self._scrape)
        application.router.add_get("/", self._live_page)
        application.router.add_get("/debug/state", self._snapshot)
        application.router.add_get("/debug/requests", self._under_way)
        add("POST", "/-/reload", self._lever(self._pull_reload))
        levers = self._levers
        for path, lever in (
            ("/-/drain/{name}", levers.drain),
            ("/-/undrain/{name}", levers.undrain),
            ("/-/serve/{pool}/{platform}", levers.serve),
            ("/-/unpin/{pool}", levers.unpin),
            ("/-/cap/{backend}/{streams}", levers.cap),
            ("/-/uncap/{backend}", levers.uncap),
            ("/-/cancel/{request}", levers.cancel),
        ):
            add("POST", path, self._lever(_pull(lever)))
        runner = web.AppRunner(application, access_log=None, keepalive_timeout=KEEP_ALIVE_S, shutdown_timeout=CLOSE_S)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError:
            await runner.cleanup()
            raise
        self._runner = runner
        return int(runner.addresses[0][1])

    async def stop(self) -> None:
        """Ends all connections and listens no more."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    # --- seeing ---

    async def _readiness(self, request: web.Request) -> web.Response:
        checks = self._ready()
        ready = not any(check.fault and check.needed for check in checks)
        shown = checks if "verbose" in request.query else [check for check in checks if check.fault]
        return _text(200 if ready else 503, *map(_line, shown), "ready" if ready else "not ready")

    async def _scrape(self, request: web.Request) -> web.Response:
        return web.Response(body=self._metrics(), headers={"Content-Type": CONTENT_TYPE})

    async def _snapshot(self, request: web.Request) -> web.Response:
        return _json(200, self._state())

    async def _under_way(self, request: web.Request) -> web.Response:
        return _json(200, self._requests())

    async def _live_page(self, request: web.Request) -> web.Response:
        return web.Response(body=self._page(), content_type="text/html", charset="utf-8", headers=PAGE_HEADERS)

    # --- levers ---

    def _lever(self, pull: Handler) -> Handler:
        async def guarded(request: web.Request) -> web.StreamResponse:
            refusal = self._refusal(request)
            return _text(403, refusal) if refusal else await pull(request)

        return guarded

    def _refusal(self, request: web.Request) -> str:
        """Why this caller may not pull a lever; empty: it may."""
        token = self._token()
        if token is not None:
            given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
            return "" if hmac.compare_digest(given, b"Bearer " + token.encode()) else "the admin token is needed"
        if "Origin" in request.headers:  # some web page in the browser of someone who happens to sit at this machine
            return "not from a browser without an admin token"
        return "" if _is_loopback(request.remote) else "only from this machine without an admin token"

    async def _pull_reload(self, request: web.Request) -> web.Response:
        result = await self._reload()
        return _json(200 if result.ok else 422, result._asdict())


def _pull(lever: Callable[..., str]) -> Handler:
    """The parts of the path, in their order, are what the lever is given."""

    async def pull(request: web.Request) -> web.Response:
        try:
            return _text(200, lever(*request.match_info.values()))
        except KeyError as unknown:
            return _text(404, str(unknown.args[0]))
        except ValueError as wrong:
            return _text(400, str(wrong))

    return pull


def _line(check: Check) -> str:
    mark = ("-" if check.needed else "!") if check.fault else "+"
    return f"[{mark}] {check.name}: {check.fault or 'ok'}"


async def _alive(request: web.Request) -> web.Response:
    return _text(200, "ok")  # that the loop answers is the answer


async def _plain_head(request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = "fairlane"
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"


def _is_loopback(address: str | None) -> bool:
    try:
        found = ipaddress.ip_address(address or "")
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback


def _text(status: int, *lines: str) -> web.Response:
    return web.Response(status=status, text="".join(f"{line}\n" for line in lines))


def _json(status: int, value: object) -> web.Response:
    body = msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
    return web.Response(status=status, body=body, content_type="application/json")
