"""Does a batch finish in time? Its jobs are handed in at the start; what is refused or breaks is handed in again, when told to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lab.simulator.station import Passage
from lab.simulator.tally import Batch, LaneTally
from policies.model import Refusal

if TYPE_CHECKING:
    from lab.simulator.host import Host

AGAIN_S = 60.0  # after a refusal that names no time, and after a failure


class Jobs:
    """The batch of one run. The run is over when the batch is, or at its deadline."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.lane = LaneTally("batch")  # apart from the lanes': jobs that come back would count as callers
        scenario = host.scenario
        self.batch = Batch(scenario.jobs, scenario.deadline_s)
        if scenario.jobs:
            host.tally.batch = self.batch
        if scenario.deadline_s is not None:
            host.enter(scenario.deadline_s, self._give_up, None, None)

    def done(self, now: float) -> None:
        """One more is finished."""
        batch = self.batch
        batch.finished += 1
        if batch.finished == batch.jobs:
            batch.finished_at = now
            self._host.stopped = True

    def again_later(self, passage: Passage, refusal: Refusal, now: float) -> None:
        """It was refused, or broke."""
        if refusal.retry_after_s is None:
            self.batch.failures += 1
        else:
            self.batch.refusals += 1
        self._host.enter(now + (refusal.retry_after_s or AGAIN_S), self._hand_in, passage, None)

    def _hand_in(self, passage: Passage, _: None, now: float) -> None:
        again = Passage(passage.caller, passage.pool, now, passage.lane, passage.counted)
        self._host.settle(self._host.dispatcher.arrive(again, now), now)

    def _give_up(self, *_: object) -> None:
        self._host.stopped = True
