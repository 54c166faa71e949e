"""Is the simulator quick enough to be asked often? `make bench`: a timing is worth nothing on a machine that does other things."""

from __future__ import annotations

import os
import time

import pytest

from tests.lab.simulator.worlds import plan, simulated

REQUESTS, REQUESTS_PER_S = 400_000, 40_000.0


@pytest.mark.skipif(not os.environ.get("FAIRLANE_CAPACITY"), reason="make bench")
@pytest.mark.parametrize("rates", [{"fast": 3.0, "slow": 6.0}, {"fast": 12.0, "slow": 3.0}], ids=["load of 90 %", "overload"])
def test_it_simulates_40000_requests_a_second_on_one_core(rates: dict[str, float]) -> None:
    took_s = []
    for seed in range(3):
        began_s = time.process_time()
        simulated(plan(80, places=96 if sum(rates.values()) > 10 else 1_000_000), rates, REQUESTS, seed)
        took_s.append(time.process_time() - began_s)
    print(f"{REQUESTS:,} requests in {min(took_s):.2f} to {max(took_s):.2f} s: {REQUESTS / min(took_s):,.0f} a second at best")
    assert min(took_s) < REQUESTS / REQUESTS_PER_S
