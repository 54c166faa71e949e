"""Is all that was spent attributed, to those who used it, whenever someone looks?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.telemetry.spend import Rent
from proxy.telemetry.tallies import Counter


class Ledger:
    """The cost counters of one platform, by pool."""

    def __init__(self) -> None:
        self.counters: dict[str, Counter] = {}

    def __call__(self, pool: str) -> Counter:
        return self.counters.setdefault(pool, Counter())

    def spent(self) -> dict[str, float]:
        return {pool: counter.n for pool, counter in self.counters.items()}


def rented(ledger: Ledger, per_hour: float = 3600.0, cap: int = 10, first: str = "chat") -> Rent:
    rent = Rent(ledger, 0.0)
    rent.agree(per_hour, {"a": cap, "b": cap}, first, 0.0)
    return rent


def test_an_idle_platform_costs_its_price_and_the_first_pool_pays() -> None:
    ledger = Ledger()
    rented(ledger, per_hour=2.10).settle(3600.0)
    assert ledger.spent() == pytest.approx({"chat": 4.20})  # two backends, one hour


def test_a_later_pool_pays_for_its_slot_seconds_and_the_first_for_the_rest() -> None:
    ledger = Ledger()
    rent = rented(ledger)  # 1 dollar per backend and second, 0.1 per slot and second
    rent.held("batch", "a", 30.0)
    rent.held("chat", "a", 50.0)
    rent.settle(10.0)
    assert ledger.spent() == pytest.approx({"batch": 3.0, "chat": 17.0})


def test_what_a_long_stream_owes_beyond_the_interval_is_paid_in_the_next() -> None:
    ledger = Ledger()
    rent = rented(ledger)
    rent.settle(99.0)
    rent.held("batch", "a", 100.0)  # 10 dollars, while an interval of one second costs 2
    rent.settle(100.0)
    assert ledger.spent()["batch"] == pytest.approx(2.0)
    rent.settle(110.0)
    assert ledger.spent() == pytest.approx({"batch": 10.0, "chat": 210.0})


def test_a_new_price_holds_from_then_on() -> None:
    ledger = Ledger()
    rent = rented(ledger)
    rent.agree(7200.0, {"a": 10}, "large", 10.0)
    rent.settle(20.0)
    assert ledger.spent() == pytest.approx({"chat": 20.0, "large": 20.0})


def test_a_backend_whose_cap_is_zero_still_costs() -> None:
    ledger = Ledger()
    rent = Rent(ledger, 0.0)
    rent.agree(3600.0, {"a": 0}, "chat", 0.0)
    rent.held("batch", "a", 5.0)
    rent.settle(10.0)
    assert ledger.spent() == pytest.approx({"batch": 0.0, "chat": 10.0})


Use = tuple[float, str, float]  # after how long, which pool, held for how long


@given(
    st.lists(st.tuples(st.floats(0.01, 10), st.sampled_from(["chat", "batch", "bulk"]), st.floats(0, 30)), max_size=30),
    st.lists(st.floats(0.1, 20), max_size=10),
)
def test_the_sum_is_exact_and_no_counter_falls(uses: list[Use], pauses: list[float]) -> None:
    ledger = Ledger()
    rent = rented(ledger)
    now, before = 0.0, 0.0
    for pause, pool, seconds in [*uses, *((pause, "chat", 0.0) for pause in pauses)]:
        now += pause
        rent.held(pool, "a", seconds)
        was = ledger.spent()
        rent.settle(now)
        assert all(spent >= was.get(pool, 0.0) for pool, spent in ledger.spent().items())
        before = now
    assert sum(ledger.spent().values()) == pytest.approx(2.0 * before)


@given(st.lists(st.floats(0.05, 1.0), min_size=1, max_size=20))
def test_how_often_it_is_scraped_changes_no_share(intervals: list[float]) -> None:
    often, once = Ledger(), Ledger()
    for ledger in (often, once):
        rent = rented(ledger)
        now = 0.0
        for interval in intervals:
            now += interval
            rent.held("batch", "a", interval)  # one slot, all the time
            if ledger is often:
                rent.settle(now)
        rent.settle(now)
    assert often.spent() == pytest.approx(once.spent())
