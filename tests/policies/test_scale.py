"""Does a decision cost the same with a hundred thousand waiting as with a thousand? Counted, not timed: the machine may do what it likes.

Calls, as the path of a request is counted, and executed instructions of Python, which a loop inside one call does not escape. The lists
behind the heaps are cleared now and then of what has left: paid for by those who left, and kept out by the median.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median

import pytest

from tests.policies.crowd import Crowd, steps
from tests.proxy.path import counted

STEPS = (
    "arrive",
    "finish",
    "arrive_and_finish",
    "first_token",
    "leave_oldest",
    "leave_newest",
    "tick",
    "probed",
    "fail_and_again",
)
EVENTS = 30
GROWTH_MAX = 1.3  # from 1,000 waiting to 100,000: log n alone would be 1.7, and heapq's part of it is not Python's
# What was counted when the ceiling was last set, and a twentieth above it. Lower it with the count; raise it with a reason.
ARRIVE_AND_FINISH_CALLS_MAX = 106
STORM_GROWTH_MAX = 2.0


def costs(crowd: Crowd, names: Sequence[str] = STEPS) -> dict[str, tuple[float, float]]:
    """Calls and instructions of each step, typically."""
    return {name: (median(calls(getattr(crowd, name))), median(instructions(getattr(crowd, name)))) for name in names}


def calls(act: Callable[[], object]) -> Iterator[int]:
    for _ in range(EVENTS):
        stop = counted()
        act()
        yield stop()


def instructions(act: Callable[[], object]) -> Iterator[int]:
    return (steps(act) for _ in range(EVENTS))


def grown(before: dict[str, tuple[float, float]], after: dict[str, tuple[float, float]], limit: float) -> list[str]:
    """Which steps cost more than so many times what they did?"""
    return [name for name in after if any(now > limit * then for now, then in zip(after[name], before[name], strict=True))]


def settled(waiting: int, backends: int = 1_000, models: int = 0) -> Crowd:
    """A crowd in which enough streams have ended for the waits to be estimated."""
    crowd = Crowd(waiting, backends, models)
    for _ in range(2 * backends + 100):
        crowd.arrive_and_finish()
    return crowd


@pytest.fixture(scope="module")
def with_a_thousand() -> dict[str, tuple[float, float]]:
    return costs(settled(1_000))


@pytest.mark.parametrize("waiting", [10_000, 100_000])
def test_no_step_grows_with_those_who_wait(waiting: int, with_a_thousand: dict[str, tuple[float, float]]) -> None:
    assert grown(with_a_thousand, costs(settled(waiting)), GROWTH_MAX) == []


def test_no_step_grows_with_those_who_wait_for_one_of_several_models() -> None:
    assert grown(costs(settled(1_000, models=10)), costs(settled(20_000, models=10)), GROWTH_MAX) == []


def test_no_step_grows_with_the_backends() -> None:
    names = STEPS[:-1]  # three failures eject one of few, and not one of many
    assert grown(costs(settled(2_000, backends=100), names), costs(settled(2_000), names), GROWTH_MAX) == []


def test_a_request_through_a_full_house_costs_no_more_calls_than_agreed(with_a_thousand: dict[str, tuple[float, float]]) -> None:
    assert with_a_thousand["arrive_and_finish"][0] <= ARRIVE_AND_FINISH_CALLS_MAX


def test_nobody_looks_at_each_of_the_retries_that_wait() -> None:
    """A whole platform breaks at once: its requests wait for the retry budget, each in the line of those who tried its backend."""
    found = {}
    for backends in (50, 500):
        crowd = settled(100, backends)
        crowd.outage()
        assert sum(lane.waiting for lane in crowd.dispatcher.snapshot(crowd.now).pools["chat"].lanes.values()) > backends
        found[backends] = costs(crowd, ("finish", "arrive"))
    assert grown(found[50], found[500], STORM_GROWTH_MAX) == []
