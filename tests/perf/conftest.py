"""What does every micro-benchmark share? The speed of the machine around it, kept beside its figure."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any, Protocol

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tests.perf.calibration import calibrate

ROUNDS = 300
Fresh = Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]


class Timed(Protocol):
    """How a benchmark is asked for."""

    def __call__(self, act: Callable[..., object], *, times: int = 1, per: int = 1, fresh: Fresh | None = None) -> None:
        """Time `act`, `times` in a row, so that the clock's own time does not count. `per`: how many events one call of it is.

        `fresh` makes its arguments anew for each call, untimed.
        """


@pytest.fixture
def timed(benchmark: BenchmarkFixture) -> Timed:
    def time_it(act: Callable[..., object], *, times: int = 1, per: int = 1, fresh: Fresh | None = None) -> None:
        def in_a_row() -> None:
            for _ in repeat(None, times):
                act()

        before = calibrate()
        if fresh is None:
            benchmark(in_a_row if times > 1 else act)
        else:
            benchmark.pedantic(act, setup=fresh, rounds=ROUNDS, iterations=1, warmup_rounds=20)  # type: ignore[no-untyped-call]
        benchmark.extra_info.update(per=per * times, calibration_s=min(before, calibrate()))

    return time_it
