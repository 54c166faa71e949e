"""How many may wait, and what is the measured load? Formulas, and windows against sums over every event."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.capacity import Load, Window, places
from policies.model import PlacesPlan


@pytest.mark.parametrize(
    ("plan", "streams", "expected"),
    [
        (PlacesPlan(), 80, 16),
        (PlacesPlan(), 10, 2),
        (PlacesPlan(), 1, 1),
        (PlacesPlan(), 11, 3),
        (PlacesPlan(fixed=0), 80, 0),
        (PlacesPlan(buffer=Fraction(3, 10)), 10, 3),
        (PlacesPlan(buffer=Fraction(0)), 10, 1),
        (PlacesPlan(demand_streams=Fraction(80)), 80, 16),
        (PlacesPlan(demand_streams=Fraction(80)), 70, 26),
        (PlacesPlan(demand_streams=Fraction(1)), 80, 16),
    ],
)
def test_places(plan: PlacesPlan, streams: int, expected: int) -> None:
    assert places(plan, streams) == expected


@given(st.lists(st.floats(0, 20, allow_nan=False), max_size=60))
def test_a_window_holds_the_last_of_what_was_added_within_one_step(gaps: list[float]) -> None:
    window = Window(30.0, 0.0)
    now, times = 0.0, []
    for gap in gaps:
        now += gap
        times.append(now)
        window.add(1, now)
        total = window.total(now)
        assert sum(at > now - 29.0 + 1e-6 for at in times) <= total <= sum(at > now - 30.0 - 1e-6 for at in times)


def test_the_rate_is_over_the_time_covered() -> None:
    window = Window(30.0, 100.0)
    assert window.rate(100.0) == 0.0
    for number in range(1, 200):
        window.add(1, 100.0 + number / 2)
    assert window.rate(199.5) == pytest.approx(2.0, rel=0.05)
    assert window.rate(1000.0) == 0.0


def test_little_s_law() -> None:
    load = Load(0.0)
    for number in range(600):
        load.arrived(number / 2)
        load.returned(8.0, number / 2)
    assert load.arrival_rps(300.0) == pytest.approx(2.0, rel=0.05)
    assert load.generation_s(300.0) == 8.0
    assert load.needed_streams(300.0) == pytest.approx(16.0, rel=0.05)
    assert load.drain_rps(16, 300.0) == pytest.approx(2.0, rel=0.1)


def test_after_a_quiet_time_the_drain_rate_is_that_of_the_streams_that_run() -> None:
    load = Load(0.0)
    load.returned(2.0, 100.0)
    assert load.drain_rps(10, 150.0) == 5.0
    assert load.drain_rps(10, 1000.0) == 0.0, "nothing measured any more"
