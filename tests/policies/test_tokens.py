"""How many tokens is this prompt, without a tokenizer?"""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.tokens import MODELS_MAX, TokenEstimate


def test_before_anything_is_learnt() -> None:
    tokens = TokenEstimate()
    assert tokens.estimate("m", 400, 0) == 100
    assert tokens.estimate("m", 0, 170) == 100
    assert tokens.estimate("m", 400, 170) == 200
    assert tokens.estimate(None, 1, 0) == 1  # rounded up
    assert tokens.estimate(None, 0, 0) == 0


@pytest.mark.parametrize("bytes_per_token", [2.0, 4.0, 5.5])
def test_it_learns_a_models_ratio(bytes_per_token: float) -> None:
    tokens, rng = TokenEstimate(), random.Random(4)
    for _ in range(100):
        size = rng.randint(200, 8000)
        tokens.learn("m", size, 0, round(size / bytes_per_token * rng.uniform(0.9, 1.1)))
    assert tokens.estimate("m", 4000, 0) == pytest.approx(4000 / bytes_per_token, rel=0.05)


def test_models_are_learnt_apart() -> None:
    tokens = TokenEstimate()
    for _ in range(50):
        tokens.learn("dense", 4000, 0, 2000)
    assert tokens.estimate("other", 4000, 0) == 1000


def test_short_prompts_that_are_mostly_template_hardly_move_it() -> None:
    tokens = TokenEstimate()
    for _ in range(50):
        tokens.learn("m", 4000, 0, 1000)
        tokens.learn("m", 2, 0, 12)
    assert tokens.estimate("m", 4000, 0) == pytest.approx(1000, rel=0.01)


def test_what_it_learnt_gives_way_to_what_it_sees_now() -> None:
    tokens = TokenEstimate()
    for _ in range(1000):
        tokens.learn("m", 4000, 0, 1000)
    for _ in range(150):
        tokens.learn("m", 4000, 0, 2000)
    assert tokens.estimate("m", 4000, 0) == pytest.approx(2000, rel=0.05)


def test_absurd_reports_bend_it_four_times_at_most() -> None:
    tokens = TokenEstimate()
    for _ in range(50):
        tokens.learn("m", 4000, 0, 1000)
    tokens.learn("m", 4000, 0, 10**9)
    assert tokens.estimate("m", 4000, 0) < 1100
    for _ in range(1000):
        tokens.learn("m", 4000, 0, 10**9)
    assert tokens.estimate("m", 4000, 0) <= 4000
    for _ in range(2000):
        tokens.learn("m", 4000, 0, 1)
    assert tokens.estimate("m", 4000, 0) >= 250


def test_reports_without_meaning_are_ignored() -> None:
    tokens = TokenEstimate()
    for ascii_bytes, other_chars, reported in [(0, 0, 50), (400, 0, 0), (400, 0, -3)]:
        tokens.learn("m", ascii_bytes, other_chars, reported)
    assert tokens.estimate("m", 400, 0) == 100


def test_callers_cannot_make_it_grow_without_bound() -> None:
    tokens = TokenEstimate()
    for index in range(3 * MODELS_MAX):
        tokens.learn(f"m{index}", 4000, 0, 2000)
    assert len(tokens._sums) == MODELS_MAX
    assert tokens.estimate("m0", 4000, 0) == 1000  # forgotten
    assert tokens.estimate(f"m{3 * MODELS_MAX - 1}", 4000, 0) > 1000


sizes = st.integers(0, 10**8)


@given(st.lists(st.tuples(sizes, sizes, st.integers(-1, 10**12)), max_size=20), sizes, sizes, sizes, sizes)
def test_estimates_are_bounded_and_grow_with_the_prompt(
    reports: list[tuple[int, int, int]], ascii_bytes: int, other: int, more: int, still: int
) -> None:
    tokens = TokenEstimate()
    bare = TokenEstimate().estimate("m", ascii_bytes, other)
    for report in reports:
        tokens.learn("m", *report)
    estimate = tokens.estimate("m", ascii_bytes, other)
    assert bare // 4 - 1 <= estimate <= 4 * bare + 1
    assert tokens.estimate("m", ascii_bytes + more, other + still) >= estimate


@given(st.lists(st.tuples(sizes, sizes, st.integers(-1, 10**12)), max_size=60))
def test_what_is_learnt_is_the_ratio_of_two_decayed_sums_each_report_bounded(reports: list[tuple[int, int, int]]) -> None:
    tokens, reported, computed = TokenEstimate(), 1000.0, 1000.0
    for ascii_bytes, other, told in reports:
        tokens.learn("m", ascii_bytes, other, told)
        bare = ascii_bytes / 4 + other / 1.7
        if bare > 0 and told > 0:
            reported = 0.98 * reported + min(4.0, max(0.25, told / bare)) * bare
            computed = 0.98 * computed + bare
    assert tokens.estimate("m", 4 * 10**12, 0) == pytest.approx(10**12 * reported / computed, rel=1e-9)
