"""What do the backends make of an attempt, where the engine's model says how long it takes? First token, end, and deadlines between."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from lab.engine.model import Answer, Progress
from lab.simulator.endings import LATE_TOKEN, OUT_OF_TIME
from lab.simulator.station import Passage, Station
from policies.model import Lease

if TYPE_CHECKING:
    from lab.simulator.host import Host


class Engines:
    """The models of one run's backends, in the host's agenda."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def generate(self, passage: Passage, station: Station, lease: Lease, now: float) -> None:
        """The model takes it from here."""
        caller, host = passage.caller, self._host
        tokens = caller.output_tokens
        passage.work = Answer(caller.prompt_tokens, tokens, every=tokens, pace=station.factor, host=passage)
        station.engine.arrive(passage.work, now)
        self._watch(station)
        host.enter(now + host.scenario.pools[passage.pool].first_token_s, self._overdue, passage, lease)

    def drop(self, passage: Passage, now: float) -> None:
        """The backend sees its connection close."""
        station, work = passage.station, passage.work
        if work is not None and station is not None:
            passage.work = None
            station.engine.leave(work, now)
            self._watch(station)

    def _overdue(self, passage: Passage, lease: Lease, now: float) -> None:
        """The deadline of the first token, then of the whole."""
        host = self._host
        if not lease.live:
            return
        if passage.first_at < 0.0:
            host.fail(passage, (lease, LATE_TOKEN), now)
            return
        total_at = lease.granted_at + host.scenario.pools[passage.pool].total_s
        if now >= total_at:
            host.fail(passage, (lease, OUT_OF_TIME), now)
        else:
            host.enter(total_at, self._overdue, passage, lease)

    def _watch(self, station: Station) -> None:
        """It is due at another time, perhaps."""
        due_at = station.engine.next_at()
        at = inf if due_at is None else due_at
        if at != station.batch_at:
            station.batch_at = at
            if due_at is not None:
                self._host.enter(at, self._produce, station, at)

    def _produce(self, station: Station, at: float, now: float) -> None:
        if station.batch_at != at:
            return
        station.batch_at = inf
        for progress in station.engine.advance(now):
            self._progress(progress)
        self._watch(station)

    def _progress(self, progress: Progress) -> None:
        passage: Passage = progress.answer.host
        if passage.work is not progress.answer:
            return
        lease = passage.lease
        if passage.first_at < 0.0:
            self._host.first_token(passage, lease, progress.at)
        if progress.produced >= progress.answer.output_tokens:
            self._host.end(passage, lease, progress.at)
