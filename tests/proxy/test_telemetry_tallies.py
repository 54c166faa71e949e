"""Does a histogram that sorts many values at once count as one that counts each?"""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from proxy.telemetry.tallies import Histogram

BOUNDS = (0.001, 0.01, 0.1, 1.0)
VALUES = st.one_of(st.sampled_from(BOUNDS), st.floats(min_value=-1.0, max_value=10.0))


@given(st.lists(st.lists(VALUES)))
def test_every_value_is_in_its_bucket_whenever_it_is_folded(batches: list[list[float]]) -> None:
    histogram = Histogram(BOUNDS)
    observe = histogram.observe
    counts = [0] * (len(BOUNDS) + 1)
    for batch in batches:
        for value in batch:
            observe(value)
            counts[bisect_left(BOUNDS, value)] += 1
        histogram.fold()
    assert histogram.counts == counts
    assert abs(histogram.sum - sum(sum(batch) for batch in batches)) < 1e-6


def test_what_is_observed_is_counted_when_it_is_read_and_not_after_new_boundaries() -> None:
    histogram = Histogram(BOUNDS)
    observe = histogram.observe
    observe(0.5)
    assert histogram.counts == [0, 0, 0, 1, 0] and histogram.sum == 0.5
    observe(0.5)
    histogram.rebound((1.0,))
    assert histogram.counts == [0, 0] and histogram.sum == 0.0
    observe(2.0)
    assert histogram.counts == [0, 1]
