"""When is a second attempt worth its price? The percentile, and what may be spent."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.hedging import SAMPLES_MAX, SPAN_S, Hedging, may_hedge
from policies.model import Hedge, Lease, Request

P95 = Hedge(percent=95)
ASKED = Request("r", "t", 0, streamed=True)


def lease(at: float = 0.0, platform: str = "own", *, probe: bool = False, slotless: bool = False) -> Lease:
    return Lease(1, "chat", platform, "a", at, 0, probe=probe, slotless=slotless)


def spoken(hedging: Hedging, ttfts: list[float], at: float = 0.0, platform: str = "own") -> Hedging:
    for ttft_s in ttfts:
        hedging.spoke(lease(at, platform), at + ttft_s)
    return hedging


def test_a_percentile_is_known_once_there_are_samples_enough_for_it() -> None:
    ttfts = [number / 100 for number in range(1, 101)]
    assert spoken(Hedging(P95), ttfts[:19]).after_s("own", 1.0) is None
    assert spoken(Hedging(P95), ttfts[:20]).after_s("own", 1.0) == 0.19
    assert spoken(Hedging(P95), ttfts).after_s("own", 1.0) == 0.95
    assert spoken(Hedging(Hedge(percent=99)), ttfts[:99]).after_s("own", 1.0) is None
    assert spoken(Hedging(Hedge(percent=99)), ttfts).after_s("own", 1.0) == 0.99


def test_each_platform_is_late_by_its_own_measure_and_a_fixed_time_needs_none() -> None:
    hedging = spoken(spoken(Hedging(P95), [0.5] * 20), [2.0] * 20, platform="rented")
    assert (hedging.after_s("own", 1.0), hedging.after_s("rented", 1.0), hedging.after_s("third", 1.0)) == (0.5, 2.0, None)
    assert Hedging(Hedge(after_s=0.8)).after_s("own", 0.0) == 0.8


@given(ttfts=st.lists(st.floats(0.001, 60.0), min_size=20, max_size=700), percent=st.integers(50, 99))
def test_the_percentile_is_the_nearest_rank_of_the_latest(ttfts: list[float], percent: int) -> None:
    hedging = Hedging(Hedge(percent=percent))
    for ttft_s in ttfts:
        hedging.spoke(lease(), ttft_s)  # all at one instant, as far as age goes
    latest = sorted(ttfts[-SAMPLES_MAX:])
    found = hedging.after_s("own", 0.0)
    if len(latest) < max(20, ceil(100 / (100 - percent))):
        assert found is None
    else:
        assert found == latest[ceil(percent * len(latest) / 100) - 1]


def test_old_first_tokens_are_forgotten() -> None:
    hedging = spoken(Hedging(P95), [9.0] * 20)
    assert hedging.after_s("own", 9.0 + SPAN_S) == 9.0
    assert hedging.after_s("own", 9.1 + SPAN_S) is None
    spoken(hedging, [1.0] * 20, at=400.0)
    assert hedging.after_s("own", 401.0) == 1.0


def test_an_attempt_that_lost_counts_with_the_time_it_had() -> None:
    hedging = spoken(Hedging(P95), [1.0] * 19, at=0.0)
    first, beside = lease(0.0), lease(1.5, "rented")
    hedging.began(first, beside)
    hedging.spoke(beside, 7.0)
    assert hedging.after_s("own", 7.0) == 1.0, "twenty samples: the one that lost is the twentieth"
    spoken(hedging, [1.0, 7.5], at=0.0)
    assert hedging.after_s("own", 8.0) == 7.0


def test_one_in_twenty_attempts_is_paid_for_and_nothing_before() -> None:
    hedging = Hedging(P95)
    assert not hedging.allows(20, 5), "the hedge is an attempt itself"
    assert hedging.allows(21, 5)
    first, beside = lease(), lease()
    hedging.began(first, beside)
    assert not hedging.allows(41, 5)
    beside.live = False
    assert not hedging.allows(41, 5)
    assert hedging.allows(42, 5)


def test_a_quiet_day_pays_for_no_storm() -> None:
    hedging = Hedging(P95)
    for number in range(2):
        assert hedging.allows(10_000, 45) is True, number
        hedging.began(lease(), lease())
    assert not hedging.allows(10_000, 45)


@pytest.mark.parametrize(("in_flight", "at_once"), [(1, 1), (39, 1), (40, 2), (200, 10)])
def test_few_run_at_a_time(in_flight: int, at_once: int) -> None:
    hedging, ended, pairs = Hedging(P95), 0, []
    for _ in range(30):
        ended += 1000
        if hedging.allows(ended, in_flight):
            pairs.append((lease(), lease()))
            hedging.began(*pairs[-1])
    assert len(pairs) == at_once
    pairs[0][0].first_token_at = 1.0
    assert hedging.allows(ended + 1000, in_flight), "one that is decided costs nothing more"


@given(st.lists(st.tuples(st.integers(0, 60), st.booleans(), st.integers(0, 400)), max_size=60))
def test_it_is_never_above_five_percent(events: list[tuple[int, bool, int]]) -> None:
    hedging, ended, hedges = Hedging(P95), 0, 0
    running: list[Lease] = []
    for more, decided, in_flight in events:
        ended += more
        if decided and running:
            running.pop().live = False
            ended += 1  # it is an attempt that ends, too
        if hedging.allows(ended, in_flight):
            running.append(lease())
            hedging.began(lease(), running[-1])
            hedges += 1
        assert hedges <= 0.05 * max(0, ended - (hedges - len(running))), "of the others"


def test_who_may_be_hedged() -> None:
    assert may_hedge(ASKED, lease(), 1, 2)
    assert not may_hedge(ASKED, lease(), 1, 1)
    assert not may_hedge(ASKED, lease(), 2, 3)
    for request in (ASKED._replace(streamed=False), ASKED._replace(lane=1), ASKED._replace(traffic="batch")):
        assert not may_hedge(request, lease(), 1, 2)
    assert not may_hedge(ASKED, lease(probe=True), 1, 2)
    assert not may_hedge(ASKED, lease(slotless=True), 1, 2)
    said = lease()
    said.first_token_at = 1.0
    assert not may_hedge(ASKED, said, 1, 2)
