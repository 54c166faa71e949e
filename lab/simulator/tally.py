"""What became of the callers? Counts and samples, taken while a run goes on; nothing in here is looked at by a decision.

Those who arrived before the warm-up was over, or after the last arrival, load the system and are not counted. Counts are by arrival: each
counted caller ends in exactly one of them. Rates are by time: what ended between the two instants.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field

from policies.model import Outcome


class LaneTally:
    """One lane, or the jobs of a batch."""

    __slots__ = (
        "abandoned", "answered", "completed", "dispatched_at", "ended_at", "failed", "good", "good_completed", "name", "offered", "refused",
        "refused_rate", "tpots", "ttfts", "unfinished", "waiting_s", "waits",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        self.offered = 0
        self.answered = 0
        self.good = 0  # answered within every target there is
        self.abandoned = 0  # left before the first token, or before being refused
        self.unfinished = 0  # under way when the run was cut off
        self.refused: Counter[Outcome] = Counter()  # never had an attempt
        self.failed: Counter[Outcome] = Counter()  # the last attempt's ending
        self.completed = 0  # answers that ended in the measured time, whenever asked for
        self.good_completed = 0
        self.waiting_s = 0.0  # spent waiting by all, in the measured time
        self.waits = array("d")  # of those dispatched, in order of dispatch
        self.dispatched_at = array("d")
        self.ended_at = array("d")  # of whole answers, where the run is sampled
        self.ttfts = array("d")
        self.tpots = array("d")


@dataclass(frozen=True, slots=True)
class StationTally:
    """One backend. `at_most` and `attempts` over the whole run, `stream_s` in the measured time."""

    at_most: int = 0
    attempts: int = 0
    stream_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Sample:
    """How it looked at one instant: waiting by lane, in flight by backend and by lane."""

    at: float
    waiting: dict[str, int]
    in_flight: dict[str, int]
    in_flight_of: dict[str, int]


@dataclass(frozen=True, slots=True)
class Happened:
    """Something about backends or platforms, in words."""

    at: float
    kind: str
    text: str


@dataclass(slots=True)
class Batch:
    """`--jobs`: how the batch went."""

    jobs: int
    deadline_s: float | None
    finished: int = 0
    refusals: int = 0  # each was handed in again after its Retry-After
    failures: int = 0  # so was each of these
    finished_at: float | None = None  # all of them


@dataclass(slots=True)
class Tally:
    """One run."""

    lanes: list[LaneTally]
    stations: dict[str, StationTally]
    caps: dict[str, int]
    batch: Batch | None = None
    requests: int = 0
    began_at: float = 0.0  # of the measured time
    ended_at: float = 0.0
    over_at: float = 0.0  # nobody was under way any more
    failovers: int = 0
    happened: list[Happened] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)

    @property
    def measured_s(self) -> float:
        return max(0.0, self.ended_at - self.began_at)
