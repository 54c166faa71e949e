"""What does a decision take, with nobody and with a hundred thousand waiting? 1,000 backends, 10,000 tenants."""

from __future__ import annotations

import pytest

from policies.model import Ticket
from tests.perf.conftest import Timed
from tests.policies.crowd import BETWEEN_EVENTS_S, Crowd, lease
from tests.policies.stage import OK

pytestmark = pytest.mark.perf
BATCH = 100


def tickets(crowd: Crowd) -> tuple[tuple[list[Ticket]], dict[str, object]]:
    """Requests are made by the host: not part of what is timed."""
    return ([crowd.ticket() for _ in range(BATCH)],), {}


def test_arrive_grant_and_return_on_an_idle_platform(timed: Timed) -> None:
    crowd = Crowd(0)
    while crowd.running:
        crowd.finish()
    dispatcher, now = crowd.dispatcher, crowd.now

    def pass_through(arriving: list[Ticket]) -> None:
        for ticket in arriving:
            dispatcher.arrive(ticket, now)
            dispatcher.give_back(lease(ticket), OK, now)

    timed(pass_through, per=BATCH, fresh=lambda: tickets(crowd))


@pytest.mark.parametrize("waiting", [1_000, 100_000])
def test_arrive_and_finish_in_a_full_house(timed: Timed, waiting: int) -> None:
    crowd = Crowd(waiting)
    for _ in range(5_000):
        crowd.arrive_and_finish()
    dispatcher, running = crowd.dispatcher, crowd.running

    def one_comes_and_one_goes(arriving: list[Ticket]) -> None:
        now = crowd.now
        for ticket in arriving:
            now += BETWEEN_EVENTS_S
            dispatcher.arrive(ticket, now)
            running.extend(dispatcher.give_back(lease(running.popleft()), OK, now))
        crowd.now = now

    timed(one_comes_and_one_goes, per=BATCH, fresh=lambda: tickets(crowd))


def test_the_oldest_of_a_hundred_thousand_leaves(timed: Timed) -> None:
    timed(Crowd(100_000).leave_oldest, times=20)
