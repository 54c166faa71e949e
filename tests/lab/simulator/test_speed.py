"""Is the simulator quick enough to be asked often? `make bench`: a timing is worth nothing on a machine that does other things."""

from __future__ import annotations

import os
import time

import pytest

from tests.lab.simulator.worlds import plan, simulated

REQUESTS = 400_000


@pytest.mark.skipif(not os.environ.get("FAIRLANE_CAPACITY"), reason="make bench")
@pytest.mark.parametrize(
    ("rates", "places", "requests_per_s"),
    [
        ({"fast": 3.0, "slow": 6.0}, 1_000_000, 40_000.0),
        # Where everybody waits and a third is turned away, each arrival is decided about twice or three times.
        ({"fast": 12.0, "slow": 3.0}, 96, 20_000.0),
    ],
    ids=["load of 90 %", "overload"],
)
def test_so_many_requests_a_second_on_one_core(rates: dict[str, float], places: int, requests_per_s: float) -> None:
    took_s = []
    for seed in range(5):
        began_s = time.process_time()
        simulated(plan(80, places=places), rates, REQUESTS, seed)
        took_s.append(time.process_time() - began_s)
    print(f"{REQUESTS:,} requests in {min(took_s):.2f} to {max(took_s):.2f} s: {REQUESTS / min(took_s):,.0f} a second at best")
    assert min(took_s) < REQUESTS / requests_per_s
