"""What does the dispatcher say of platforms that are slow, cold, or to be proven? Plays in which nothing is simply broken."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from policies.dispatcher import Ejected
from policies.failover import FailedBack, FailedOver, Proving, Ramping
from policies.model import Lease
from tests.policies.stage import OK, RESET, Play, plan, platform, pool


def slo(own: int = 30, rented: int = 30, **more: Any) -> Play:
    return Play(plan(platform("own", a=own), platform("rented", r=rented), pool("chat", "own", "rented", slo_ttft_s=1.0, **more)))


def ask(play: Play, number: int, after_s: float, prefix: str = "x") -> None:
    """So many requests, whose first tokens come after this long."""
    names = [f"{prefix}{each}" for each in range(number)]
    play.arrive(*names)
    play.at(play.now + after_s)
    for name in names:
        play.speak(name)
        play.end(name)


# -- slow


def test_a_primary_whose_first_tokens_come_too_late_gives_way_to_the_standby() -> None:
    play = slo()
    ask(play, 19, 8.0)
    assert play.arrive("ann") == ["ann -> a"], "19 say nothing"
    play.at(play.now + 8.0)
    play.speak("ann")
    assert play.arrive("bob") == ["bob -> r"]
    assert play.on("a") == ["ann"], "no stream is moved"
    (event,) = play.dispatcher.take_events()
    assert isinstance(event, FailedOver) and (event.from_, event.to, event.reason) == ("own", "rented", "slow")


def test_half_of_them_late_is_not_enough_and_neither_is_an_slo_just_missed() -> None:
    play = slo()
    ask(play, 15, 2.9)
    ask(play, 15, 3.1, "y")
    assert play.arrive("ann") == ["ann -> a"]
    assert play.dispatcher.take_events() == []


def test_who_waits_for_a_slow_primary_goes_to_the_standby_at_once() -> None:
    play = slo(own=20, max_wait_s=60.0)
    names = [f"x{number}" for number in range(20)]
    play.arrive(*names)
    assert play.arrive("ann") == ["ann waits"]
    play.at(8.0)
    assert play.speak(*names) == ["ann -> r"]


def test_a_slow_primary_serves_on_where_nobody_stands_behind_it() -> None:
    play = Play(plan(platform("own", a=30), pool("chat", "own", slo_ttft_s=1.0)))
    ask(play, 30, 8.0)
    assert play.arrive("ann") == ["ann -> a"]
    play = slo()
    play.drain("rented")
    ask(play, 30, 8.0)
    assert play.arrive("ann") == ["ann -> a"]


def test_a_slow_primary_comes_back_through_hold_and_ramp_and_is_left_again_if_it_is_still_slow() -> None:
    play = slo(hold_s=100.0, ramp_s=10.0)
    ask(play, 20, 8.0)
    play.dispatcher.take_events()
    play.at(107.0)
    assert play.arrive("ann") == ["ann -> r"]
    play.at(119.0)
    assert [type(event) for event in play.dispatcher.take_events()] == [Ramping, FailedBack]
    assert play.arrive("bob") == ["bob -> a"]
    ask(play, 20, 8.0, "y")
    assert [type(event) for event in play.dispatcher.take_events()] == [FailedOver]
    play = slo(hold_s=100.0, ramp_s=1000.0)
    ask(play, 20, 8.0)
    play.at(900.0)
    for number in range(4):  # most of these go to the ramping primary
        ask(play, 20, 8.0, f"z{number}-")
    assert isinstance(play.dispatcher.take_events()[-1], FailedOver)
    assert play.dispatcher._floor.rooms["chat"].failover._platforms[0].hold_s == 200.0, "a setback on the way doubles the hold"


def test_a_standby_that_fails_gives_the_pool_back_to_the_slow_primary() -> None:
    play = slo()
    ask(play, 20, 8.0)
    play.probe("r", True)
    for _ in range(3):
        play.probe("r", False)
    assert play.arrive("ann") == ["ann -> a"]


# -- warm


def warm(share: str, own: int = 1000, rented: int = 10, **more: Any) -> Play:
    return Play(plan(platform("own", a=own), platform("rented", r=rented), pool("chat", "own", "rented", warm=Fraction(share), **more)))


def went(play: Play, number: int, lane: str, prefix: str = "x") -> list[str]:
    lines = []
    for each in range(number):
        lines += play.arrive(f"{prefix}{each}", lane=lane)
        play.end(f"{prefix}{each}")
    return [line.split()[-1] for line in lines]


def test_a_warm_standby_gets_its_part_of_the_slow_requests_and_none_of_the_fast() -> None:
    play = warm("1/100")
    assert went(play, 1000, "slow").count("r") == 10
    assert went(play, 1000, "fast", "y").count("r") == 0


def test_a_full_warm_standby_keeps_nobody_waiting_and_makes_no_burst_later() -> None:
    play = warm("1/2", rented=1)
    play.arrive("x", lane="slow")
    assert play.arrive("y", lane="slow") == ["y -> r"]
    assert [play.arrive(f"z{number}", lane="slow") for number in range(4)] == [[f"z{number} -> a"] for number in range(4)]
    play.end("y")
    assert went(play, 4, "slow", "w") == ["r", "a", "r", "a"]


def test_who_waits_may_be_the_one_that_warms_the_standby() -> None:
    play = warm("1/2", own=1, places=5)
    assert play.arrive("ann", lane="slow") == ["ann -> a"]
    assert play.arrive("bob", lane="slow") == ["bob -> r"]
    assert play.arrive("cid", lane="slow") == ["cid waits"]
    assert play.end("ann") == ["cid -> a"]


def test_a_request_that_fails_on_the_warm_standby_is_answered_by_the_primary() -> None:
    play = warm("1")
    assert play.arrive("ann", lane="slow") == ["ann -> r"]
    assert play.fail("ann") == ["ann -> a"]


def test_nothing_is_warmed_where_nothing_was_asked_for_nor_a_platform_that_is_out() -> None:
    assert set(went(warm("0"), 300, "slow")) == {"a"}
    play = warm("1/2")
    play.drain("rented")
    assert set(went(play, 10, "slow")) == {"a"}


# -- smoke


def proven() -> Play:
    own = replace(platform("own", a=2), smoke=True)
    play = Play(plan(own, platform("rented", r=9), pool("chat", "own", "rented", hold_s=100.0, ramp_s=10.0)))
    play.probe("a", True)
    for _ in range(3):
        play.probe("a", False)
    play.probe("a", True), play.probe("a", True)
    play.at(1.0)
    for name in ("x", "y", "z"):
        assert play.arrive(name) == [f"{name} -> a (probe)"]
        play.end(name)
    return play


def smoke(play: Play, ok: bool) -> None:
    lease = play.dispatcher.smoke("a", play.now)
    assert isinstance(lease, Lease) and lease.live
    play.dispatcher.first_token(lease, play.now)
    play.dispatcher.give_back(lease, OK if ok else RESET, play.now)
    play.dispatcher.smoked("own", ok, play.now)


def provings(play: Play) -> int:
    return sum(isinstance(event, Proving) for event in play.dispatcher.take_events())


def test_a_platform_with_smoke_tests_passes_three_before_it_is_given_requests_again() -> None:
    play = proven()
    assert provings(play) == 0
    play.at(100.9)
    assert provings(play) == 0, "in its hold"
    play.at(101.0)
    for _ in range(3):
        assert provings(play) == 1, "one at a time"
        assert play.arrive("ann") == ["ann -> r"]
        smoke(play, ok=True)
    assert [type(event) for event in play.dispatcher.take_events()] == [Ramping]
    play.at(112.0)
    assert play.arrive("bob") == ["bob -> a"]


def test_a_smoke_that_fails_begins_the_count_anew_after_a_while() -> None:
    play = proven()
    play.at(101.0)
    smoke(play, ok=True)
    smoke(play, ok=False)
    play.dispatcher.take_events()
    play.at(115.9)
    assert provings(play) == 0
    play.at(116.0)
    for _ in range(3):
        assert provings(play) == 1
        smoke(play, ok=True)
    assert [type(event) for event in play.dispatcher.take_events()] == [Ramping]


def test_a_smoke_holds_a_slot_and_counts_for_no_pool() -> None:
    play = Play(plan(platform("own", a=1), pool("chat", "own", places=3)))
    lease = play.dispatcher.smoke("a", 0.0)
    assert lease is not None
    assert play.arrive("ann") == ["ann waits"]
    assert play.dispatcher.smoke("a", 0.0) is None, "full"
    assert play.dispatcher.snapshot(0.0).pools["chat"].in_flight == 0
    play.dispatcher.give_back(lease, OK, 0.0)
    assert isinstance(play.ticket("ann").answer, Lease)
    assert play.dispatcher.smoke("nobody", 0.0) is None


def test_a_smoke_may_be_the_probe_of_a_backend_that_nobody_else_asks() -> None:
    play = Play(plan(platform("own", a=1), platform("rented", r=1, q=1), pool("chat", "own", "rented")))
    play.probe("r", True)
    for _ in range(3):
        play.probe("r", False)
    assert play.dispatcher.smoke("r", 0.0) is None
    play.probe("r", True), play.probe("r", True)
    lease = play.dispatcher.smoke("r", play.now)
    assert lease is not None and lease.probe
    play.dispatcher.give_back(lease, RESET, play.now)
    assert any(isinstance(event, Ejected) and event.why == "probe: reset" for event in play.dispatcher.take_events())


# -- a probe that needs longer than its caller can wait


def test_a_probe_whose_caller_went_on_elsewhere_may_still_prove_its_backend() -> None:
    play = Play(plan(platform("own", a=2), platform("rented", r=2), pool("chat", "own", "rented")))
    for number in range(5):
        play.arrive(f"x{number}")
        play.end(f"x{number}", how=RESET)
    play.at(20.0)
    assert play.arrive("ann") == ["ann -> a (probe)"]
    probe = play.lease("ann")
    assert probe.probe_until_at == play.now + 60.0
    play.dispatcher.again(play.ticket("ann"), RESET, True, play.now)
    assert play.lease("ann").backend == "r"
    assert play.arrive("bob") == ["bob -> r"], "the probe is still out: at most one"
    play.at(50.0)
    play.dispatcher.first_token(probe, play.now)
    play.dispatcher.give_back(probe, OK, play.now)
    assert play.arrive("cid") == ["cid -> a (probe)"]
    play.end("cid"), play.arrive("dan"), play.end("dan")
    assert play.dispatcher.snapshot(play.now).backends["a"].why == "slow start"
