"""What does the dispatcher say when backends fail, rest, start, recover or are drained? Plays with a standby behind the stage."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policies.dispatcher import Ejected, PlatformRefuses, Recovered, Resting
from policies.failover import FailedBack, FailedOver
from policies.health import HealthState
from policies.model import Outcome, Refusal
from tests.policies.stage import GONE, OK, OUR_KEY, REFUSED, RESET, STARTING, Play, busy, plan, platform, pool


def with_standby(own: int = 1, rented: int = 1, places: int = 20, **more: object) -> Play:
    return Play(plan(platform("own", a=own), platform("rented", r=rented), pool("chat", "own", "rented", places=places, **more)))


def two(cap: int = 1, places: int = 20, **more: object) -> Play:
    """One platform of two backends; ann has shown on which of them she is."""
    return Play(plan(platform("own", a=cap, b=cap), pool("chat", "own", places=places, **more)))


def eject(play: Play, backend: str = "a") -> list[str]:
    """Five requests in a row fail there, for good."""
    lines = []
    for number in range(5):
        assert play.arrive(f"x{number}", lane="fast")[-1].startswith(f"x{number} -> {backend}")
        lines += play.end(f"x{number}", how=RESET)
    return lines


# -- failover


def test_the_standby_stays_idle_while_the_primary_only_is_full() -> None:
    play = with_standby()
    assert play.arrive("ann", "bob") == ["ann -> a", "bob waits"]
    assert play.end("ann") == ["bob -> a"]


def test_an_ejected_primary_sends_who_waits_and_who_comes_to_the_standby() -> None:
    play = with_standby(own=2, rented=5)
    for number in range(4):
        play.arrive(f"x{number}")
        play.end(f"x{number}", how=RESET)
    play.arrive("ann", "bob", "cid", "dan")
    assert play.on("a") == ["ann", "bob"]
    assert play.end("ann", how=RESET) == ["cid -> r", "dan -> r"]
    assert play.arrive("eve") == ["eve -> r"]
    events = play.dispatcher.take_events()
    assert [type(event) for event in events] == [Ejected, FailedOver]
    assert isinstance(events[1], FailedOver)
    assert (events[1].pool, events[1].from_, events[1].to, events[1].reason) == ("chat", "own", "rented", "ejected")
    assert play.dispatcher.snapshot(play.now).pools["chat"].in_service == ("rented",)
    assert play.dispatcher.take_events() == []


def test_a_failed_attempt_goes_to_the_standby_before_its_caller_notices() -> None:
    play = with_standby()
    play.arrive("ann")
    assert play.fail("ann") == ["ann -> r"]
    assert play.ticket("ann").attempts == 2
    assert play.end("ann") == []


def test_a_failed_attempt_prefers_another_backend_of_the_same_platform() -> None:
    play = Play(plan(platform("own", a=9, b=1), platform("rented", r=9), pool("chat", "own", "rented", places=9)))
    assert play.arrive("ann") == ["ann -> a"]
    assert play.fail("ann") == ["ann -> b"]


def test_one_request_at_a_time_proves_a_primary_that_comes_back_and_the_hold_keeps_the_rest_away() -> None:
    play = with_standby(own=10, rented=10, hold_s=300.0, ramp_s=120.0)
    eject(play)
    play.at(40.0)
    assert play.dispatcher.snapshot(40.0).backends["a"].state is HealthState.PROBING
    assert play.arrive("ann", "bob") == ["ann -> a (probe)", "bob -> r"]
    assert play.speak("ann") == []
    assert play.arrive("cid") == ["cid -> r"]
    assert play.end("ann") == []
    assert play.arrive("dan") == ["dan -> a (probe)"]
    play.end("dan")
    assert play.arrive("eve") == ["eve -> a (probe)"]
    play.end("eve")
    assert play.dispatcher.snapshot(40.0).backends["a"].state is HealthState.HEALTHY
    assert play.arrive("fay", "gus") == ["fay -> r", "gus -> r"]
    assert [type(event) for event in play.dispatcher.take_events()] == [Ejected, FailedOver, Recovered]
    play.at(341.0)
    play.end(*play.on("r"))
    play.arrive(*(f"n{number}" for number in range(10)))
    assert len(play.on("a")) == 1, "the ramp begins with every tenth request"
    play.at(470.0)
    assert play.arrive("zoe") == ["zoe -> a"]
    assert FailedBack("chat", "rented", "own") in play.dispatcher.take_events()


def test_a_probe_that_fails_costs_one_retry_and_doubles_the_pause() -> None:
    play = with_standby()
    eject(play)
    play.at(40.0)
    assert play.arrive("ann") == ["ann -> a (probe)"]
    assert play.fail("ann") == ["ann -> r"]
    assert play.dispatcher.snapshot(40.0).backends["a"].state is HealthState.EJECTED


def test_without_a_standby_nobody_is_left_waiting_for_nothing() -> None:
    play = Play(plan(platform("own", a=5), pool("chat", "own", places=20)))
    play.arrive("ann")
    assert play.drain("own") == []
    assert play.arrive("bob") == ["bob: no_backend"]
    play.undrain("own")
    assert play.arrive("cid") == ["cid -> a"]
    play.speak("cid")
    for _ in range(2):
        assert play.probe("a", alive=False) == []
    play.arrive("d1", "d2", "d3", "d4")
    assert play.waiting() == ["d4"]
    assert play.probe("a", alive=False) == ["d4: no_backend"]
    refusal = play.ticket("d4").answer
    assert isinstance(refusal, Refusal)
    assert refusal.retry_after_s is not None


def test_waiting_for_a_probe_is_better_than_being_refused() -> None:
    play = Play(plan(platform("own", a=5), pool("chat", "own", places=20)))
    play.at(60.0)  # its startup is over
    for _ in range(3):
        play.probe("a", alive=False)
    assert play.arrive("ann") == ["ann: no_backend"]
    play.probe("a", alive=True)
    play.probe("a", alive=True)
    assert play.arrive("bob", "cid") == ["bob -> a (probe)", "cid waits"]
    assert play.end("bob") == ["cid -> a (probe)"]


def test_traffic_ejects_no_more_than_half_of_a_platform_with_nothing_behind() -> None:
    play = two(cap=5)
    for number in range(30):
        play.arrive(f"x{number}")
        play.end(f"x{number}", how=RESET)
    states = [each.state for each in play.dispatcher.snapshot(play.now).backends.values()]
    assert sorted(states) == [HealthState.HEALTHY, HealthState.EJECTED]


def test_a_platform_that_refuses_our_key_is_left_alone_for_a_minute_and_the_request_goes_on() -> None:
    play = Play(plan(platform("own", a=5, b=5), platform("rented", r=5), pool("chat", "own", "rented", places=9)))
    play.arrive("ann")
    assert play.fail("ann", how=OUR_KEY) == ["ann -> r"]
    assert play.arrive("bob") == ["bob -> r"]
    events = play.dispatcher.take_events()
    assert isinstance(events[0], PlatformRefuses)
    assert events[0].platform == "own"
    assert events[0].until_at == 60.0
    assert play.dispatcher.snapshot(1.0).platforms["own"].refuses_until_at == 60.0
    play.at(60.0)
    assert play.dispatcher.snapshot(60.0).platforms["own"].refuses_until_at is None


def test_when_every_platform_refuses_us_the_caller_is_told_so() -> None:
    play = Play(plan(platform("own", a=5), pool("chat", "own", places=9)))
    play.arrive("ann")
    assert play.fail("ann", how=OUR_KEY) == ["ann: upstream_auth"]
    assert play.arrive("bob") == ["bob: no_backend"]
    play.at(60.0)
    assert play.arrive("cid") == ["cid -> a"]


# -- rests


def test_while_the_only_backend_rests_requests_wait() -> None:
    play = Play(plan(platform("own", a=2), pool("chat", "own", places=9)))
    play.arrive("ann")
    assert play.end("ann", how=busy(2.0)) == []
    assert play.arrive("bob") == ["bob waits"]
    assert play.dispatcher.next_at() == 2.0
    assert play.at(2.0) == ["bob -> a"]
    assert play.dispatcher.take_events() == [Resting("own", "a", 2.0)]


def test_a_busy_answer_is_tried_elsewhere_only() -> None:
    play = Play(plan(platform("own", a=2), pool("chat", "own", places=9)))
    play.arrive("ann")
    assert play.fail("ann", how=busy(1.0)) == ["ann: upstream_status"]
    play = two()
    play.arrive("ann")
    (line,) = play.fail("ann", how=busy(1.0))
    assert line in ("ann -> a", "ann -> b")


def test_who_cannot_wait_for_the_rest_goes_to_the_standby_and_who_can_waits() -> None:
    play = with_standby(own=5, rented=5)
    play.arrive("ann")
    play.end("ann", how=busy(10.0))
    assert play.arrive("bob") == ["bob -> r"], "fast waits 4 s at most"
    assert play.arrive("sam", lane="slow") == ["sam waits"], "slow waits up to 20 s"
    assert play.dispatcher.take_events() == [Resting("own", "a", 10.0)], "a rest is no failover"
    assert play.at(10.0) == ["sam -> a"]


# -- starting


def test_a_backend_that_is_loading_its_model_takes_what_has_nowhere_else_to_go() -> None:
    play = Play(plan(platform("own", a=2), pool("chat", "own", places=9)))
    play.arrive("ann")
    assert play.end("ann", how=STARTING) == []
    assert play.arrive("bob") == ["bob waits"]
    assert play.at(1.0) == ["bob -> a"]
    assert play.end("bob") == []
    assert play.arrive("cid") == ["cid -> a"]
    assert play.dispatcher.take_events() == []


def test_a_starting_primary_does_not_keep_anybody_from_the_standby() -> None:
    play = with_standby(own=5, rented=5)
    play.arrive("ann")
    assert play.fail("ann", how=STARTING, sent=False) == ["ann -> r"]
    play.at(2.0)
    assert play.arrive("bob") == ["bob -> r"]
    play.probe("a", alive=True)
    assert play.arrive("cid") == ["cid -> a"]


# -- draining


def test_a_drained_backend_finishes_what_it_has_and_gets_nothing_new() -> None:
    play = two(cap=1)
    play.arrive("ann", "bob", "cid")
    assert play.drain("a") == []
    ann, bob = ("ann", "bob") if play.on("a") == ["ann"] else ("bob", "ann")
    assert play.end(ann) == []
    assert play.end(bob) == ["cid -> b"]
    assert play.undrain("a") == []
    assert play.arrive("dan") == ["dan -> a"]


def test_draining_a_platform_moves_who_waits_and_holds_until_undrained() -> None:
    play = with_standby(own=1, rented=5)
    play.arrive("ann", "bob")
    assert play.drain("own") == ["bob -> r"]
    play.undrain("a")
    assert play.arrive("cid") == ["cid -> r"], "its platform is still drained"
    with pytest.raises(KeyError):
        play.drain("nothing")


# -- retries


def test_a_retry_is_back_at_the_head_of_its_lane() -> None:
    play = two(cap=1)
    play.arrive("ann", "bob", "cid", "dan")
    ann = play.lease("ann").backend
    bob = play.lease("bob").backend
    assert play.fail("ann") == [f"cid -> {ann}", "ann waits"]
    assert play.end("bob") == [f"ann -> {bob}"]
    assert play.end("ann") == [f"dan -> {bob}"]


def test_a_retry_does_not_go_back_to_where_it_failed_and_lets_others_pass() -> None:
    play = two(cap=1)
    play.arrive("ann", "bob")
    play.arrive("cid")
    where = play.lease("ann").backend
    play.fail("ann")
    assert play.on(where) == ["cid"]
    assert play.end("cid") == []
    assert play.waiting() == ["ann"]
    assert play.arrive("dan") == [f"dan -> {where}"]


def test_attempts_are_counted_and_the_last_failure_is_the_answer() -> None:
    play = Play(plan(platform("own", a=1, b=1, c=1), pool("chat", "own", places=9)))
    play.arrive("ann")
    play.fail("ann", how=REFUSED, sent=False)
    assert play.fail("ann", how=RESET) == ["ann: upstream_reset"]
    assert play.ticket("ann").attempts == 2


def test_nothing_is_tried_again_after_a_neutral_ending_or_the_first_token() -> None:
    play = two(cap=3)
    play.arrive("ann", "bob")
    assert play.fail("ann", how=OK._replace(verdict=RESET.verdict.NEUTRAL, outcome=Outcome.UPSTREAM_STATUS)) == ["ann: upstream_status"]
    play.speak("bob")
    assert play.fail("bob") == ["bob: upstream_reset"]


def test_a_file_may_forbid_to_pay_twice() -> None:
    play = two(cap=3, retry_after_send=False)
    play.arrive("ann", "bob")
    assert play.fail("ann", sent=True) == ["ann: upstream_reset"]
    (line,) = play.fail("bob", sent=False)
    assert line.startswith("bob -> ")


def test_a_reset_after_the_send_is_retried_once_however_many_attempts_there_are() -> None:
    play = Play(plan(platform("own", a=1, b=1, c=1), pool("chat", "own", places=9, attempts=3)))
    play.arrive("ann")
    assert play.fail("ann")[0].startswith("ann -> ")
    assert play.fail("ann") == ["ann: upstream_reset"]
    play.arrive("bob")
    play.fail("bob", how=REFUSED, sent=False)
    assert play.fail("bob", how=REFUSED, sent=False)[0].startswith("bob -> ")


def test_a_retry_that_runs_out_of_time_ends_with_its_own_failure() -> None:
    play = two(cap=1)
    play.arrive("ann", "bob")
    where = play.lease("ann").backend
    assert play.fail("ann", how=REFUSED, sent=False) == ["ann waits"]
    assert play.on(where) == []
    assert play.at(4.0) == ["ann: upstream_connect"]
    refusal = play.ticket("ann").answer
    assert isinstance(refusal, Refusal)
    assert refusal.retry_after_s is None


def test_waiting_is_added_up_over_all_waits() -> None:
    play = two(cap=1)
    play.arrive("x", "y", "ann")
    play.at(3.0)
    play.end("x")
    assert play.ticket("ann").waited_s == 3.0
    assert play.fail("ann") == ["ann waits"]
    assert play.at(4.0) == ["ann: upstream_reset"]
    assert play.ticket("ann").waited_s == 4.0


def test_the_budget_keeps_retries_off_what_is_failing() -> None:
    play = Play(plan(platform("own", a=20, b=20, c=20), pool("chat", "own", places=40)))
    play.arrive("x", "y", "z")
    for name in ("x", "y", "z"):
        play.end(name, how=RESET)  # the latest result of every backend is bad
    names = [f"n{number}" for number in range(9)]
    play.arrive(*names)
    play.end(*names, how=REFUSED)
    for name in names:
        play.dispatcher.again(play.ticket(name), REFUSED, False, play.now)
    retries = [name for name in names if play.ticket(name).attempts == 2]
    assert (len(retries), play.waiting()) == (3, names[3:])
    assert play.dispatcher.snapshot(play.now).retries == 3
    first = retries[0]
    where = play.lease(first).backend
    told = play.speak(first)
    assert told, "its first token makes the backend good again: nothing is held back from there"
    assert all(line.endswith(f"-> {where}") for line in told)
    assert play.dispatcher.snapshot(play.now).retries > 3


def test_whatever_raises_the_budget_lets_the_next_one_go() -> None:
    play = Play(plan(platform("own", a=20, b=20), pool("chat", "own", places=40)))
    names = [f"n{number}" for number in range(8)]
    play.arrive(*names)
    play.end(*names, how=REFUSED)
    for name in names:
        play.dispatcher.again(play.ticket(name), REFUSED, False, play.now)
    assert len(play.waiting()) == 5
    told = play.arrive(*(f"t{number}" for number in range(16)), slotless=True)
    assert len(told) == 17, "3 of 15 in flight, then 4 of 20"
    assert len(play.waiting()) == 4


def test_an_end_of_a_retry_lets_the_next_one_go() -> None:
    play = Play(plan(platform("own", a=20, b=20), pool("chat", "own", places=40)))
    names = [f"n{number}" for number in range(8)]
    play.arrive(*names)
    on_a, on_b = play.on("a"), play.on("b")
    play.end(*on_a, *on_b, how=REFUSED)
    for name in names:
        play.dispatcher.again(play.ticket(name), REFUSED, False, play.now)
    assert len(play.waiting()) == 5
    going = next(name for name in names if play.ticket(name).attempts == 2)
    (line,) = play.end(going, how=GONE)
    assert line.split()[0] in names


def test_who_waits_for_the_last_backend_that_is_left_to_it_is_told_when_it_goes() -> None:
    play = two(cap=1)
    play.arrive("ann", "bob")
    where = play.lease("bob").backend
    play.fail("ann", how=REFUSED, sent=False)
    assert play.waiting() == ["ann"]
    assert play.drain(where) == ["ann: upstream_connect"]


def test_nobody_proves_the_backend_that_has_just_failed_him() -> None:
    play = with_standby(own=9, rented=1, places=9)
    play.arrive("x0", "x1", "x2", "x3")
    play.arrive("sam", lane="slow")
    play.end("x0", "x1", "x2", "x3", how=RESET)
    assert play.fail("sam") == ["sam -> r"]
    play.arrive("ann", lane="slow")
    assert play.waiting() == ["ann"]
    assert play.end("sam", how=RESET) == ["ann -> r"]
    settled = play.dispatcher.again(play.ticket("sam"), RESET, False, play.now)
    assert [each.request.id for each in settled] == ["sam"], "its attempts are used up"
    assert play.at(19.0) == []
    assert play.dispatcher.snapshot(19.0).backends["a"].state is HealthState.PROBING
    assert play.fail("ann", how=REFUSED, sent=False) == ["ann -> a (probe)"], "it has not been there yet"
    assert play.arrive("bob") == ["bob -> r"]


def test_a_pardoned_backend_takes_a_retry_that_was_held_back() -> None:
    file = plan(platform("own", a=9), platform("rented", r=20, s=20), pool("chat", "own", "rented", places=40))
    play = Play(file)
    eject(play)
    names = [f"n{number}" for number in range(8)]
    play.arrive(*names)
    assert len(play.on("r") + play.on("s")) == 8
    play.end(*names, how=REFUSED)
    for name in names:
        play.dispatcher.again(play.ticket(name), REFUSED, False, play.now)
    held = play.waiting()
    assert len(held) == 5, "beyond the budget"
    assert play.drain("rented") == [f"{held[0]} -> a"], "nothing is behind the primary any more: it is pardoned, and starts slowly"


# -- overflow


def test_a_pool_that_overflows_sends_the_next_in_line_to_the_standby_before_it_refuses() -> None:
    play = with_standby(own=1, rented=2, places=2, overflow=True)
    assert play.arrive("ann", "bob", "cid") == ["ann -> a", "bob waits", "cid waits"]
    assert play.arrive("dan") == ["bob -> r", "dan waits"]
    assert play.arrive("eve") == ["cid -> r", "eve waits"]
    assert play.arrive("fay") == ["fay: queue_full"]
    assert play.end("bob") == []
    assert play.at(4.0) == ["dan -> r", "eve: queue_timeout"]


def test_a_pool_without_places_overflows_at_once() -> None:
    play = with_standby(own=1, rented=1, places=0, overflow=True)
    assert play.arrive("ann", "bob", "cid") == ["ann -> a", "bob -> r", "cid: queue_full"]


# -- another file


def test_a_raised_cap_lets_the_waiting_in_and_a_lowered_one_lets_nobody_in_until_it_is_kept() -> None:
    file = plan(platform("own", a=2), pool("chat", "own", places=9))
    play = Play(file)
    play.arrive("ann", "bob", "cid", "dan", "eve")
    assert play.reload(replace(file, platforms=(platform("own", a=3),))) == ["cid -> a"]
    assert play.reload(replace(file, platforms=(platform("own", a=1),))) == []
    assert play.end("ann") == []
    assert play.end("bob") == []
    assert play.end("cid") == ["dan -> a"]


def test_a_backend_that_is_gone_finishes_what_it_has_and_its_lease_comes_back() -> None:
    file = plan(platform("own", a=1, b=1), pool("chat", "own", places=9))
    play = Play(file)
    play.arrive("ann", "bob", "cid")
    on_b = play.on("b")[0]
    assert play.reload(replace(file, platforms=(platform("own", a=1),))) == []
    assert play.end(on_b) == []
    assert play.waiting() == ["cid"]
    assert play.end(*play.on("a")) == ["cid -> a"]
    assert play.dispatcher.snapshot(play.now).in_flight == 1


def test_a_new_address_is_another_backend() -> None:
    file = plan(platform("own", a=1), pool("chat", "own", places=9))
    play = Play(file)
    play.arrive("ann", "bob")
    own = file.platforms[0]
    moved = replace(own, backends=(replace(own.backends[0], address="http://elsewhere"),))
    assert play.reload(replace(file, platforms=(moved,))) == ["bob -> a"]
    assert play.dispatcher.snapshot(play.now).backends["a"].in_flight == 1
    assert play.end("ann") == []


def test_a_pool_that_is_gone_serves_those_it_holds_and_takes_nobody() -> None:
    both = plan(platform("own", a=1), pool("chat", "own", places=9), pool("old", "own", places=9))
    play = Play(both)
    play.arrive("ann", "bob", to="old")
    assert play.reload(replace(both, pools=both.pools[:1])) == []
    assert play.arrive("cid", to="old") == ["cid: not_found"]
    assert play.arrive("dan") == ["dan waits"]
    assert play.dispatcher.snapshot(play.now).pools["old"].retired
    assert play.end("ann") == ["dan -> a"], "what the file still has goes first"
    assert play.end("dan") == ["bob -> a"]
    play.end("bob")
    play.reload(replace(both, pools=both.pools[:1]))
    assert list(play.dispatcher.snapshot(play.now).pools) == ["chat"]


def test_a_lane_that_is_gone_moves_to_the_last() -> None:
    file = plan(platform("own", a=1), pool("chat", "own", places=9))
    play = Play(file)
    play.arrive("ann", "bob")
    play.arrive("sam", lane="slow")
    assert play.reload(replace(file, lanes=(file.lanes[1],))) == []
    assert play.dispatcher.snapshot(play.now).pools["chat"].lanes["slow"].waiting == 2
    assert play.end("ann") == ["bob -> a"]
    assert play.end("bob") == ["sam -> a"]


def test_who_waits_for_a_model_that_is_gone_is_told() -> None:
    file = plan(platform("own", models=["m"], a=1), pool("chat", "own", places=9))
    play = Play(file)
    play.arrive("ann", "bob", model="m")
    assert play.reload(replace(file, platforms=(platform("own", models=["n"], a=1),))) == ["bob: no_backend"]


def test_a_file_that_names_no_platform_changes_nothing() -> None:
    file = plan(platform("own", a=1), pool("chat", "own", places=9))
    play = Play(file)
    play.arrive("ann", "bob")
    with pytest.raises(KeyError):
        play.dispatcher.reconfigure(replace(file, pools=(pool("chat", "nowhere"),)), play.now)
    assert play.end("ann") == ["bob -> a"]


def test_drains_outlive_a_reload_and_so_does_an_ejection() -> None:
    file = plan(platform("own", a=2), platform("rented", r=2, s=2), pool("chat", "own", "rented", places=9))
    play = Play(file)
    eject(play)
    play.drain("s")
    play.reload(file)
    states = {name: each.state for name, each in play.dispatcher.snapshot(play.now).backends.items()}
    assert states == {"a": HealthState.EJECTED, "r": HealthState.HEALTHY, "s": HealthState.DRAINED}
    assert play.arrive("ann", "bob") == ["ann -> r", "bob -> r"]


def test_a_retry_after_a_reload_finds_its_lane_by_name() -> None:
    file = plan(platform("own", a=1, b=1), pool("chat", "own", places=9))
    play = Play(file)
    play.arrive("sam", "sue", lane="slow")
    play.reload(replace(file, lanes=(file.lanes[1],)))
    assert play.fail("sam", how=REFUSED, sent=False) == ["sam waits"]
    assert play.dispatcher.snapshot(play.now).pools["chat"].lanes["slow"].waiting == 1


# -- retries where there is only one backend


def test_the_only_backend_is_asked_once_more_and_a_busy_one_is_not() -> None:
    play = Play(plan(platform("own", a=2), pool("chat", "own", places=20)))
    assert play.arrive("ann") == ["ann -> a"]
    assert play.fail("ann") == ["ann -> a"]
    assert play.fail("ann") == ["ann: upstream_reset"]
    assert play.arrive("bob") == ["bob -> a"]
    assert play.fail("bob", how=busy(1.0)) == ["bob: upstream_status"]


# -- a platform whose backends fail together


def three() -> Play:
    return Play(plan(platform("own", a=4, b=4), platform("rented", r=2), pool("chat", "own", "rented")))


def other(backend: str) -> str:
    return "b" if backend == "a" else "a"


def test_a_second_attempt_is_not_spent_on_a_backend_that_is_failing_too_while_the_standby_is_good() -> None:
    play = three()
    play.arrive("ann")
    first = play.lease("ann").backend
    assert play.fail("ann") == [f"ann -> {other(first)}"], "nothing bad is known of it"
    assert play.fail("ann") == ["ann: upstream_reset"]
    for name in ("bob", "cid", "dan"):
        play.arrive(name)
        assert play.lease(name).backend in ("a", "b"), "the primary serves: neither is ejected"
        assert play.fail(name) == [f"{name} -> r"]
        play.end(name)


def test_a_good_backend_of_the_primary_is_waited_for_before_the_standby_is_asked() -> None:
    play = three()
    play.arrive(*(f"x{number}" for number in range(8)))
    (victim, *_), others = play.on("a"), play.on("b")
    assert play.fail(victim) == [f"{victim} waits"], "b is full, and good"
    assert play.end(others[0]) == [f"{victim} -> b"]


def test_with_no_good_one_anywhere_the_failing_one_is_asked() -> None:
    play = three()
    play.arrive("ann", "bob")
    first = play.lease("ann").backend
    assert play.lease("bob").backend == other(first)
    play.end("bob", how=RESET)
    play.dispatcher.drain("rented", play.now)
    assert play.fail("ann") == [f"ann -> {other(first)}"]
