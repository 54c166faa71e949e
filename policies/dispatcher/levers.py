"""What has an operator ordered that the file does not say, and since when?

Levers last until the process ends or they are taken back. They hold by name: over a reload, and for a name that the file loses and
brings back; while it is gone, the lever holds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from policies.dispatcher.room import Room
from policies.dispatcher.site import Site
from policies.dispatcher.state import LeverState

CAP_MAX = 1_000_000  # streams, as in the file


class Pin(NamedTuple):
    """This platform serves the pool, while it is available."""

    platform: str
    since_at: float


class Override(NamedTuple):
    """This cap instead of the file's."""

    streams: int
    since_at: float


@dataclass(slots=True)
class Levers:
    """Each kind by the name it was pulled on."""

    drained: dict[str, float] = field(default_factory=dict)  # backend or platform: since
    pins: dict[str, Pin] = field(default_factory=dict)  # by pool
    caps: dict[str, Override] = field(default_factory=dict)  # by backend

    def pinned(self, pool: str) -> str | None:
        """Which platform is this pool pinned to?"""
        pin = self.pins.get(pool)
        return None if pin is None else pin.platform

    def cap(self, backend: str) -> int | None:
        """Which cap overrides the file's?"""
        override = self.caps.get(backend)
        return None if override is None else override.streams

    def pin(self, pool: str, platform: str, now: float) -> None:
        """To the same one again changes nothing."""
        if self.pinned(pool) != platform:
            self.pins[pool] = Pin(platform, now)

    def override(self, backend: str, streams: int, now: float) -> None:
        """With the same again changes nothing. ValueError: no cap to hold a backend to."""
        if not 1 <= streams <= CAP_MAX:
            raise ValueError(f"a cap is from 1 to {CAP_MAX} streams; to send a backend nothing, drain it")
        if self.cap(backend) != streams:
            self.caps[backend] = Override(streams, now)

    def states(self, rooms: dict[str, Room], sites: dict[str, Site]) -> Iterator[LeverState]:
        """All that are pulled, and whether each holds anything at the moment."""
        names = {name for site in sites.values() for name in (site.name, *site.backends)}
        for name, since_at in self.drained.items():
            yield LeverState("drain", name, None, name in names, since_at)
        for pool, pin in self.pins.items():
            yield LeverState("pin", pool, pin.platform, pool in rooms and rooms[pool].failover.pin_holds, pin.since_at)
        for backend, override in self.caps.items():
            yield LeverState("cap", backend, override.streams, backend in names, override.since_at)
