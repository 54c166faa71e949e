"""What can an operator order by hand, and who hears of it? The levers of the admin port, but for the reload.

They last until the process ends or they are taken back. Each pull is a line of the process log, and while any holds, a line every ten
minutes says so: what was pulled at night must not be forgotten by day. KeyError: no such name, ValueError: no such value; the message
is for the operator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from proxy import clock
from proxy.dispatch import Lobby
from proxy.service import Service
from proxy.telemetry.events import ProcessLog
from proxy.telemetry.view import State

REMIND_S = 600.0


class Levers:
    """What the admin port pulls. Each answers with what is so from now on."""

    def __init__(
        self, lobby: Lobby, service: Service, log: ProcessLog, loop: asyncio.AbstractEventLoop, remind_s: float = REMIND_S
    ) -> None:
        self._lobby = lobby
        self._service = service
        self._log = log
        self._loop = loop
        self._remind_s = remind_s
        self._timer: asyncio.TimerHandle | None = None

    def drain(self, name: str) -> str:
        """Nothing new goes to this backend, or platform."""
        state = self._state()
        self._known(name, [*state.platforms, *state.backends], "backend or platform")
        self._lobby.apply(self._lobby.dispatcher.drain, name)
        self._pulled("drain", name)
        return f"{name}: draining"

    def undrain(self, name: str) -> str:
        """Takes it back."""
        state = self._state()
        self._known(name, [*state.platforms, *state.backends, *self._pulled_on("drain")], "backend or platform")
        was = self._was("drain", name)
        self._lobby.apply(self._lobby.dispatcher.undrain, name)
        self._released("drain", name, was)
        after = self._state()
        holder = after.backends[name].platform if name in after.backends else name
        if holder != name and holder in self._pulled_on("drain"):
            return f"{name}: no longer drained, but its platform {holder} is"
        return f"{name}: in service"

    def serve(self, pool: str, platform: str) -> str:
        """Pins the pool to the platform."""
        pools = self._state().pools
        self._known(pool, pools, "pool")
        self._known(platform, pools[pool].platforms, f"platform of pool {pool}")
        self._lobby.apply(self._lobby.dispatcher.serve, pool, platform)
        self._pulled("pin", pool, platform=platform)
        now = self._state().pools[pool].in_service
        if platform in now:
            return f"{pool}: served by {platform}"
        return f"{pool}: pinned to {platform}, which is not available; until it is, served by {', '.join(now) or 'nobody'}"

    def unpin(self, pool: str) -> str:
        """Takes it back."""
        self._known(pool, [*self._state().pools, *self._pulled_on("pin")], "pool")
        was = self._was("pin", pool)
        self._lobby.apply(self._lobby.dispatcher.unpin, pool)
        self._released("pin", pool, was)
        seen = self._state().pools.get(pool)
        return f"{pool}: not pinned, served by {', '.join(seen.in_service if seen else ()) or 'nobody'}"

    def cap(self, backend: str, streams: str) -> str:
        """This cap instead of the file's."""
        before = self._state().backends
        self._known(backend, before, "backend")
        if not (streams.isascii() and streams.isdigit()):
            raise ValueError("a cap is a whole number of streams")
        self._lobby.apply(self._lobby.dispatcher.cap, backend, int(streams[:12]))
        self._pulled("cap", backend, max_streams=int(streams), was=before[backend].max_streams)
        return f"{backend}: capped at {int(streams)} streams, was {before[backend].max_streams}; {before[backend].in_flight} in flight"

    def uncap(self, backend: str) -> str:
        """Takes it back."""
        self._known(backend, [*self._state().backends, *self._pulled_on("cap")], "backend")
        was = self._was("cap", backend)
        self._lobby.apply(self._lobby.dispatcher.uncap, backend)
        self._released("cap", backend, was)
        seen = self._state().backends.get(backend)
        return f"{backend}: not overridden" + (f", capped at {seen.max_streams} streams by the file" if seen else "")

    def cancel(self, request_id: str) -> str:
        """Ends the requests of this id."""
        number = self._service.cancel(request_id)
        if not number:
            raise KeyError("no request of that id is waiting or in flight; GET /debug/requests lists those that are")
        self._log.warning("request_cancelled", id=request_id, requests=number)
        return f"{request_id}: cancelled" + (f", {number} requests of that id" if number > 1 else "")

    def close(self) -> None:
        """No reminder outlives the server."""
        if self._timer is not None:
            self._timer.cancel()

    # --- inside ---

    def _state(self) -> State:
        return self._lobby.dispatcher.snapshot(clock.now())

    def _pulled_on(self, lever: str) -> dict[str, str | int | None]:
        return {each.on: each.value for each in self._state().levers if each.lever == lever}

    def _was(self, lever: str, name: str) -> str | int | None:
        """What it was pulled to; empty: it was not pulled."""
        pulled = self._pulled_on(lever)
        return (pulled[name] or name) if name in pulled else ""

    def _known(self, name: str, names: Iterable[str], kind: str) -> None:
        known = sorted(set(names))
        if name not in known:
            near = get_close_matches(name, known, 1)
            meant = f"did you mean {near[0]}? " if near else ""
            raise KeyError(f"no {kind} of that name; {meant}there are: {', '.join(known)}")

    def _pulled(self, lever: str, name: str, **fields: Any) -> None:
        self._log.warning("lever_pulled", lever=lever, on=name, **fields)
        if self._timer is None:
            self._timer = self._loop.call_later(self._remind_s, self._remind)

    def _released(self, lever: str, name: str, was: str | int | None) -> None:
        if was != "":
            self._log.info("lever_released", lever=lever, on=name)

    def _remind(self) -> None:
        self._timer = None
        held = self._state().levers
        if held:
            said = [f"{each.lever} {each.on}" + ("" if each.value is None else f" {each.value}") for each in held]
            self._log.warning("levers_hold", levers=said)
            self._timer = self._loop.call_later(self._remind_s, self._remind)
