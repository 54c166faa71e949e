"""Who is late, when the sweep that asks is late itself?"""

from __future__ import annotations

import asyncio

from proxy import clock
from proxy.clock import AWAY_S, SWEEP_S, Deadlines


class Patient:
    """Counts how often it was told that its time is over."""

    def __init__(self, deadline_at: float) -> None:
        self.deadline_at = deadline_at
        self.told = 0

    def overdue(self, at: float) -> None:
        self.told += 1


async def test_a_sweep_that_is_late_judges_nobody_and_the_next_one_does() -> None:
    deadlines = Deadlines(asyncio.get_running_loop())
    lags: list[float] = []
    deadlines.observe_lag = lags.append
    patient = Patient(clock.now() - 1)
    deadlines.watch(patient)
    for expected in (0, 1, 1, 2):  # late every time: every second one judges, so that nobody escapes
        deadlines._due_at = clock.now() - 2 * AWAY_S
        deadlines._sweep()
        deadlines.stop()
        assert patient.told == expected
    deadlines._due_at = clock.now() - SWEEP_S
    deadlines._sweep()
    deadlines.stop()
    assert patient.told == 3
    assert len(lags) == 5 and min(lags) >= SWEEP_S
