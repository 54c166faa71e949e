"""What does a backend do with the requests it is given? Alive, dead, hanging or slow; by drawn times, or by the engine's model."""

from __future__ import annotations

import enum
from math import inf

from lab.engine.model import Answer, Batch, Latency
from lab.simulator.tally import LaneTally
from lab.simulator.workload import Caller
from policies.model import Lease, Ticket

NOTHING_TRIED: frozenset[str] = frozenset()


class Mode(enum.Enum):
    """Does it answer?"""

    UP = "up"
    DEAD = "dead"  # refuses connections
    HUNG = "hung"  # accepts, and says nothing


class Passage(Ticket):
    """One caller on its way through, over all its attempts: the ticket that the dispatcher is shown, and what the host knows of it."""

    __slots__ = ("caller", "counted", "first_at", "lane", "over", "station", "stuck", "work")

    def __init__(self, caller: Caller, pool: str, now: float, lane: LaneTally, counted: bool) -> None:
        # As Ticket's own, which would be one call more for each caller.
        self.request = caller.request
        self.pool = pool
        self.arrived_at = now
        self.slotless = False
        self.host = None
        self.answer = None
        self.tried = NOTHING_TRIED
        self.attempts = 0
        self.waited_s = 0.0
        self.last_ending = None
        self.seat = None
        self.caller = caller
        self.lane = lane
        self.counted = counted
        self.station: Station | None = None
        self.work: Answer | None = None  # the engine's
        self.first_at = -1.0  # first token
        self.stuck: Lease | None = None  # the lease whose stream will not end by itself
        self.over = False

    @property
    def lease(self) -> Lease:
        """Of its latest attempt."""
        assert isinstance(self.answer, Lease)
        return self.answer


class Station:
    """One backend of the simulated world."""

    __slots__ = ("at_most", "attempts", "batch", "batch_at", "factor", "failing_ratio", "live", "mode", "name", "stream_s", "troubled")

    def __init__(self, name: str, latency: Latency | None) -> None:
        self.name = name
        self.attempts = 0
        self.at_most = 0  # streams at once
        self.stream_s = 0.0  # stream-seconds in the measured time
        self.mode = Mode.UP
        self.factor = 1.0  # on all its times
        self.failing_ratio = 0.0
        self.troubled = False  # not every attempt comes to something
        self.live: set[Passage] = set()
        self.batch = Batch(latency, 0.0) if latency is not None else None
        self.batch_at = inf  # when the engine's model is next due, as entered in the agenda

    @property
    def engine(self) -> Batch:
        """The model; only where there is one."""
        assert self.batch is not None
        return self.batch

    def recover(self) -> None:
        """As at the start."""
        self.mode = Mode.UP
        self.factor = 1.0
        self.failing_ratio = 0.0
        self.troubled = False

    def turn(self, mode: Mode) -> None:
        """It answers in this way from now on."""
        self.mode = mode
        self.troubled = True

    def fail(self, ratio: float) -> None:
        """So many of its attempts fail from now on."""
        self.failing_ratio = ratio
        self.troubled = self.mode is not Mode.UP or ratio > 0.0
