"""Which of the eligible backends? The lowest load after the request, against a search through all of them."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from policies.selection import Ranked, Selection, withdraw


def backends(count: int) -> list[Ranked]:
    return [Ranked(f"b{number}", number) for number in range(count)]


def test_the_lowest_load_after_the_request_for_its_weight_goes_first() -> None:
    selection: Selection[Ranked] = Selection(random.Random(0))
    small, large, heavy = backends(3)
    selection.offer(small, 0, 2, 1.0)  # 1/2
    selection.offer(large, 3, 10, 1.0)  # 4/10
    selection.offer(heavy, 1, 2, 3.0)  # would be 2/6
    assert selection.best() is heavy
    selection.offer(heavy, 2, 2, 3.0)  # full
    assert selection.best() is large
    assert selection.best({"b1"}) is small
    withdraw(large)
    assert selection.best({"b0"}) is heavy, "a full one last, but it is there for requests without a slot"
    assert selection.best({"b0", "b2"}) is None


def test_ties_are_spread_evenly_and_the_same_for_the_same_seed() -> None:
    def chosen(seed: int) -> list[str]:
        selection: Selection[Ranked] = Selection(random.Random(seed))
        each = backends(10)
        names = []
        for _ in range(2000):
            for backend in each:
                selection.offer(backend, 0, 4, 1.0)
            best = selection.best()
            assert best is not None
            names.append(best.name)
        return names

    names = chosen(1)
    assert names == chosen(1)
    assert names != chosen(2)
    counts = [names.count(f"b{number}") for number in range(10)]
    assert min(counts) > 140
    assert max(counts) < 260


STEP = st.tuples(st.integers(0, 5), st.integers(-1, 4), st.integers(1, 4))


@given(st.lists(STEP, max_size=300), st.sets(st.sampled_from(["b0", "b1", "b2"])))
def test_it_agrees_with_a_search_through_all(steps: list[tuple[int, int, int]], excluded: set[str]) -> None:
    selection: Selection[Ranked] = Selection(random.Random(0))
    every = backends(6)
    loads: dict[str, float] = {}
    for index, in_flight, cap in steps:
        backend = every[index]
        if in_flight < 0:
            withdraw(backend)
            loads.pop(backend.name, None)
        else:
            selection.offer(backend, in_flight, cap, 1.0)
            loads[backend.name] = (in_flight + 1) / cap + (1000 if in_flight >= cap else 0)
        best = selection.best(excluded)
        left = {name: load for name, load in loads.items() if name not in excluded}
        assert (best is None) == (not left)
        assert best is None or left[best.name] == min(left.values())
    assert len(selection._heap) < 4 * 6 + 200
