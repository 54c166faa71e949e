"""Which waiting request goes next? Precedence, shares, lines, against counts and a search through all."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.lanes import Lane, Line, Seat, pick
from policies.model import Request, Ticket

NOTHING: frozenset[str] = frozenset()


def seat(order: int, lane: Lane) -> Seat:
    made = Seat(order, lane.name)
    made.ticket = Ticket(Request(str(order), "t", lane.index), "chat", 0.0)
    return made


def lanes_of(*shares: Fraction) -> tuple[Lane, ...]:
    return tuple(Lane(index, f"lane{index}", 4.0, share, 0) for index, share in enumerate(shares))


def anywhere(_line: Line, _seat: Seat) -> str:
    return "a"


def go(lanes: tuple[Lane, ...]) -> Lane:
    """One dispatch."""
    picked = pick(lanes, anywhere)
    assert picked is not None
    line = picked[0].line
    assert line is not None
    line.lane.remove(picked[0])
    return line.lane


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([Fraction(0), Fraction(1, 10), Fraction(1, 7), Fraction(1, 4), Fraction(3, 10)]), min_size=1, max_size=3))
def test_while_all_wait_each_shared_lane_gets_its_part(shares: list[Fraction]) -> None:
    lanes = lanes_of(Fraction(0), *shares)
    for lane in lanes:
        for order in range(1000):
            lane.add(seat(order * 10 + lane.index, lane), None, NOTHING)
    gone = [go(lanes) for _ in range(400)]
    shared_above = 0
    for lane in lanes[1:]:
        if not lane.share:
            assert lane not in gone
            continue
        turns = [number for number, each in enumerate(gone) if each is lane]
        assert len(turns) >= floor(400 * lane.share) - 1 - shared_above, "S11"
        between = [gone[first + 1 : then] for first, then in zip([-1, *turns], turns, strict=False)]
        above = [sum(each.index < lane.index for each in run) for run in between]
        assert max(above) <= ceil(1 / lane.share) - 1 + shared_above, "S10"
        shared_above += 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["fast", "slow", "go", "go"]), st.integers(1, 6)), max_size=120))
def test_a_lower_lane_goes_before_a_ready_higher_one_only_when_owed(steps: list[tuple[str, int]]) -> None:
    fast, slow = lanes = lanes_of(Fraction(0), Fraction(1, 4))
    order, passed = 0, 0
    for what, count in steps:
        for _ in range(count):
            order += 1
            if what == "fast":
                fast.add(seat(order, fast), None, NOTHING)
            elif what == "slow":
                slow.add(seat(order, slow), None, NOTHING)
            elif fast.waiting or slow.waiting:
                both = fast.waiting and slow.waiting
                gone = go(lanes)
                if both and gone is slow:
                    assert passed == 3, "S9: exactly when a whole dispatch is owed"
                if gone is slow or not slow.waiting:
                    passed = passed if gone is slow and slow.waiting and not both else 0
                elif both:
                    passed += 1
                assert passed <= 3


def test_who_nothing_free_can_serve_is_passed_and_keeps_his_place() -> None:
    (lane,) = lanes_of(Fraction(0))
    stuck, other = seat(1, lane), seat(2, lane)
    lane.add(stuck, frozenset({"x"}), NOTHING)
    lane.add(other, frozenset({"y"}), NOTHING)

    def only_y(line: Line, _seat: Seat) -> str | None:
        return "b" if line.serves == frozenset({"y"}) else None

    assert pick([lane], only_y) == (other, "b")
    lane.remove(other)
    assert pick([lane], only_y) is None
    assert pick([lane], anywhere) == (stuck, "a")


def test_a_retry_goes_to_the_head_and_takes_no_place() -> None:
    (lane,) = lanes_of(Fraction(0))
    for order in (5, 6):
        lane.add(seat(order, lane), None, NOTHING)
    retry = seat(2, lane)
    lane.add(retry, None, frozenset({"a"}))
    assert (lane.waiting, len(lane.ordinary)) == (3, 2)
    assert lane.oldest() is retry
    assert pick([lane], anywhere) == (retry, "a")
    newest = lane.newest()
    assert newest is not None
    assert newest.order == 6


STEP = st.tuples(st.integers(0, 3), st.integers(0, 20), st.sets(st.sampled_from("ab"), max_size=1))


@settings(max_examples=80, deadline=None)
@given(st.lists(STEP, max_size=150), st.sets(st.sampled_from("xy")))
def test_ready_is_the_oldest_that_can_go(steps: list[tuple[int, int, set[str]]], free: set[str]) -> None:
    (lane,) = lanes_of(Fraction(0))
    here: dict[int, tuple[Seat, str, frozenset[str]]] = {}

    def find(line: Line, _seat: Seat) -> bool | None:
        return True if line.serves is not None and line.serves & free and "a" not in line.tried else None

    for number, (what, which, tried) in enumerate(steps):
        order = number if what else -number - 1  # now and then somebody comes back who was there before
        if what == 3 and here:
            key = sorted(here)[which % len(here)]
            lane.remove(here.pop(key)[0])
        else:
            place = "xyz"[which % 3]
            here[order] = (seat(order, lane), place, frozenset(tried))
            lane.add(here[order][0], frozenset({place}), frozenset(tried))
        able = [order for order, (_, place, behind) in here.items() if place in free and "a" not in behind]
        ready = lane.ready(find)
        assert (ready and ready[0].order) == (min(able) if able else None)
        assert lane.waiting == len(here)
        assert [each.order for each in lane.seats()] == sorted(here)
