"""Has this backend room? A semaphore whose leases come back once."""

from __future__ import annotations

import pytest

from policies.model import Lease
from policies.slots import LeaseReturned, Slots


def lease(number: int) -> Lease:
    return Lease(number, "chat", "own", "a", 0.0, 0, probe=False, slotless=False)


def test_in_flight_is_what_was_taken_and_has_not_come_back() -> None:
    slots = Slots(2)
    first, second = lease(1), lease(2)
    slots.take(first)
    slots.take(second)
    assert (slots.in_flight, slots.free) == (2, 0)
    slots.give_back(first)
    assert (slots.in_flight, slots.free, first.live) == (1, 1, False)


def test_the_second_return_raises_and_changes_nothing() -> None:
    slots = Slots(2)
    only = lease(1)
    slots.take(only)
    slots.take(lease(2))
    slots.give_back(only)
    with pytest.raises(LeaseReturned):
        slots.give_back(only)
    assert slots.in_flight == 1


def test_a_lowered_cap_leaves_nothing_free_until_it_is_kept() -> None:
    slots = Slots(3)
    leases = [lease(number) for number in range(3)]
    for each in leases:
        slots.take(each)
    slots.cap = 1
    free = []
    for each in leases:
        slots.give_back(each)
        free.append(slots.free)
    assert free == [0, 0, 1]


def test_a_slotless_lease_comes_back_without_having_been_taken() -> None:
    slots = Slots(1)
    slots.take(lease(1))
    slotless = lease(2)
    slots.give_back(slotless)
    assert (slots.in_flight, slotless.live) == (1, False)
