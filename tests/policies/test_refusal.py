"""What Retry-After is honest? From 1 to 60, around the estimate, and longer for those further back."""

from __future__ import annotations

import random
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from policies.refusal import effective_share, estimate_s, retry_after_s


class Middle(random.Random):
    """Draws no jitter."""

    def random(self) -> float:
        return 0.5


def test_the_estimate() -> None:
    assert estimate_s(0, 2.0) == 0.5
    assert estimate_s(9, 0.5) == 20.0
    assert estimate_s(0, 0.0) == inf


def test_a_lane_gets_its_guarantee_or_what_is_left() -> None:
    assert effective_share(0.1, 0.75) == 0.25
    assert effective_share(0.1, 1.0) == 0.1
    assert effective_share(0.0, 0.0) == 1.0


@given(st.floats(0, 1e6) | st.just(inf), st.integers(0, 2**32))
def test_it_is_a_whole_number_from_1_to_60_within_a_fifth_of_the_estimate(wait_s: float, seed: int) -> None:
    told = retry_after_s(wait_s, random.Random(seed))
    assert 1 <= told <= 60
    assert told == 60 or told >= 0.8 * wait_s
    assert told == 1 or told <= 1.2 * wait_s + 1


@given(st.integers(0, 1000), st.integers(0, 1000), st.floats(0.01, 100))
def test_before_the_jitter_it_never_falls_with_the_place(place: int, more: int, rate_rps: float) -> None:
    near, far = (retry_after_s(estimate_s(each, rate_rps), Middle()) for each in (place, place + more))
    assert near <= far


def test_those_refused_together_are_not_told_the_same() -> None:
    generator = random.Random(0)
    assert {retry_after_s(10.0, generator) for _ in range(200)} == {9, 10, 11, 12} | {8 + 1}
