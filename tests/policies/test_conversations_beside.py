"""What does the dispatcher say of a second attempt beside the first? Plays about first tokens that are late."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from policies.model import Ending, Hedge, LanePlan, Outcome, Verdict
from tests.policies.stage import FAST, OK, OUR_KEY, REFUSED, RESET, SLOW, Play, busy, plan, platform, pool

LOST = Ending(Verdict.NEUTRAL, Outcome.CANCELLED, why="hedge lost")
ONE_SECOND = Hedge(after_s=1.0)


def two(hedge: Hedge = ONE_SECOND, paid: int = 21, **more: Any) -> Play:
    """Two backends of one platform, and as many answers already as pay for one hedge."""
    return paid_for(Play(plan(platform("own", a=4, b=4), pool("chat", "own", hedge=hedge, **more))), paid)


def paid_for(play: Play, answers: int = 21) -> Play:
    for number in range(answers):
        play.arrive(f"before{number}")
        play.end(f"before{number}")
        del play.cast[f"before{number}"]
    return play


def late(play: Play, name: str = "ann", after_s: float = 1.0) -> str:
    """It is dispatched, and no token comes. Where does it run?"""
    play.arrive(name, streamed=True)
    play.at(play.now + after_s)
    return play.lease(name).backend


def elsewhere(backend: str) -> str:
    return {"a": "b", "b": "a"}[backend]


def counts(play: Play) -> tuple[int, int]:
    state = play.dispatcher.snapshot(play.now)
    return state.in_flight, state.retries


def test_a_late_request_runs_on_an_idle_backend_as_well_and_whoever_speaks_first_stays() -> None:
    play = two()
    first = late(play)
    assert play.hedge("ann") == [f"ann -> {elsewhere(first)}"]
    assert counts(play) == (2, 1)
    play.speak("ann+")
    assert play.end("ann", how=LOST) == []
    assert counts(play) == (1, 1)
    play.end("ann+")
    assert counts(play) == (0, 0)


def test_the_first_may_still_win() -> None:
    play = two()
    late(play)
    play.hedge("ann")
    play.speak("ann")
    play.end("ann+", how=LOST)
    assert counts(play) == (1, 0)
    play.end("ann")
    assert counts(play) == (0, 0)


def test_nothing_is_late_before_its_time() -> None:
    play = two()
    late(play, after_s=0.9)
    ann = play.ticket("ann")
    assert play.dispatcher.hedge_at(ann, play.now) == 1.0
    assert play.hedge("ann") == []
    play.at(1.0)
    assert len(play.hedge("ann")) == 1


def test_a_percentile_is_learnt_from_first_tokens_and_until_then_nobody_is_hedged() -> None:
    play = two(Hedge(percent=95), paid=0)
    for number in range(20):
        name = f"x{number}"
        play.arrive(name, streamed=True)
        assert play.dispatcher.hedge_at(play.ticket(name), play.now) is None
        play.at(play.now + (0.5 if number else 0.8))
        play.speak(name)
        play.end(name)
    play.arrive("ann", streamed=True)
    due_at = play.dispatcher.hedge_at(play.ticket("ann"), play.now)
    assert due_at == pytest.approx(play.now + 0.5)
    assert due_at is not None
    play.at(due_at)
    assert play.hedge("ann") == [], "twenty answers pay for none"
    paid_for(play, 1)
    play.arrive("bob", streamed=True)
    play.at(play.now + 0.5)
    assert play.hedge("bob") == [], "ann runs on one backend, bob on the other"


def test_only_the_first_lane_only_streams_only_once_and_no_batch() -> None:
    play = two(paid=100)
    play.arrive("slow", lane="slow", streamed=True)
    play.arrive("whole")
    play.arrive("batch", streamed=True, traffic="batch")
    for name in ("slow", "whole", "batch"):
        assert play.dispatcher.hedge_at(play.ticket(name), play.now) is None
        play.at(play.now + 1.0)
        assert play.hedge(name) == []
        play.end(name)
    late(play)
    assert len(play.hedge("ann")) == 1
    play.end("ann+", how=RESET)
    assert play.hedge("ann") == [], "once"


def test_only_to_a_backend_where_nothing_runs() -> None:
    play = two()
    first = late(play)
    play.arrive("bob", lane="slow")
    assert play.lease("bob").backend == elsewhere(first)
    assert play.hedge("ann") == []
    play.end("bob")
    assert play.hedge("ann") == [f"ann -> {elsewhere(first)}"]


def test_a_small_idle_backend_is_found_beside_larger_ones_that_work() -> None:
    play = paid_for(Play(plan(platform("own", a=9, b=9, c=1), pool("chat", "own", hedge=ONE_SECOND))))
    play.arrive("ann", "bob", streamed=True)
    play.at(1.0)
    assert play.on("c") == []
    assert play.hedge("ann") == ["ann -> c"]


def test_not_while_somebody_waits() -> None:
    lanes = (replace(FAST, reserve=2), SLOW)
    play = paid_for(Play(plan(platform("own", a=1, b=1), pool("chat", "own", hedge=ONE_SECOND, places=5), lanes=lanes)))
    late(play)
    assert play.arrive("bob", lane="slow") == ["bob waits"], "the free slot is reserved"
    assert play.hedge("ann") == []
    play.leave("bob")
    assert len(play.hedge("ann")) == 1


def test_a_primary_of_one_backend_is_hedged_by_its_standby_and_one_of_two_by_itself() -> None:
    play = paid_for(Play(plan(platform("own", a=4), platform("rented", r=4), pool("chat", "own", "rented", hedge=ONE_SECOND))))
    assert late(play) == "a"
    assert play.hedge("ann") == ["ann -> r"]
    play = paid_for(Play(plan(platform("own", a=4, b=4), platform("rented", r=4), pool("chat", "own", "rented", hedge=ONE_SECOND))))
    late(play)
    play.arrive("bob")
    assert play.hedge("ann") == [], "the other backend of the primary works; the standby stays where it is"


def test_never_to_a_backend_that_is_out_busy_or_doubtful() -> None:
    for harm in (lambda play, name: play.drain(name), worry, rest):
        play = two(paid=30)
        first = late(play)
        harm(play, elsewhere(first))
        assert play.hedge("ann") == []


def worry(play: Play, backend: str) -> None:
    """Its latest answer was a failure."""
    one_on(play, backend, REFUSED)


def rest(play: Play, backend: str) -> None:
    one_on(play, backend, busy(30.0))


def one_on(play: Play, backend: str, how: Ending) -> None:
    play.arrive("cid", lane="slow")
    assert play.lease("cid").backend == backend
    play.end("cid", how=how)


def test_one_attempt_in_all_leaves_none_for_it_and_both_failed_is_the_end_of_two() -> None:
    play = two(attempts=1)
    late(play)
    assert play.hedge("ann") == []
    play = two()
    late(play)
    play.hedge("ann")
    play.end("ann+", how=RESET)
    assert play.fail("ann") == ["ann: upstream_reset"]
    assert counts(play) == (0, 0)


def test_a_third_attempt_goes_to_neither_of_the_two() -> None:
    play = paid_for(Play(plan(platform("own", a=4, b=4, c=4), pool("chat", "own", hedge=ONE_SECOND, attempts=3))))
    first = late(play)
    (said,) = play.hedge("ann")
    second = said[-1]
    play.end("ann", how=RESET)
    play.end("ann+", how=REFUSED)
    assert play.dispatcher.again(play.ticket("ann"), REFUSED, False, play.now)
    assert {first, second, play.lease("ann").backend} == {"a", "b", "c"}


def test_a_loser_says_nothing_of_its_backend_and_a_busy_one_rests_it() -> None:
    play = two(paid=0)
    for number in range(6):
        paid_for(play)
        late(play, f"x{number}")
        play.hedge(f"x{number}")
        play.speak(f"x{number}+")
        play.end(f"x{number}", how=LOST)
        play.end(f"x{number}+")
    assert play.dispatcher.take_events() == []
    first = late(paid_for(play))
    play.hedge("ann")
    play.end("ann+", how=busy(30.0))
    assert play.dispatcher.snapshot(play.now).backends[elsewhere(first)].until_at == play.now + 30.0
    play.speak("ann")


def test_the_retry_budget_comes_first() -> None:
    play = paid_for(Play(plan(platform("own", a=9, b=9, c=9, d=9, e=9), pool("chat", "own", hedge=ONE_SECOND))))
    late(play)
    play.arrive("x0", "x1", "x2")
    failed = [play.lease(name).backend for name in ("x0", "x1", "x2")]
    for name, backend in zip(("x0", "x1", "x2"), failed, strict=True):
        play.fail(name, how=busy(0.1))
        play.at(play.now + 0.2)
        assert play.lease(name).backend != backend
    assert counts(play) == (4, 3)
    play.arrive("y0", "y1", lane="slow")
    play.end("y0", "y1")
    assert any(not play.on(backend) for backend in "abcde"), "some are idle"
    assert play.hedge("ann") == []
    play.end("x0")
    assert len(play.hedge("ann")) == 1


def test_a_probe_is_not_hedged_nor_is_anything_in_a_drain_or_a_pool_that_is_gone() -> None:
    play = two()
    late(play)
    play.close()
    assert play.hedge("ann") == []
    play = two()
    late(play)
    play.reload(plan(platform("own", a=4, b=4), pool("other", "own", hedge=ONE_SECOND)))
    assert play.hedge("ann") == []
    play = two()
    late(play)
    play.reload(plan(platform("own", a=4, b=4), pool("chat", "own")))
    assert play.dispatcher.hedge_at(play.ticket("ann"), play.now) is None
    assert play.hedge("ann") == []


def test_what_was_learnt_and_paid_outlasts_a_reload_that_says_the_same() -> None:
    play = two(paid=42)
    late(play)
    play.hedge("ann")
    play.speak("ann")
    play.end("ann+", how=LOST)
    play.end("ann")
    play.reload(plan(platform("own", a=9, b=9), pool("chat", "own", hedge=ONE_SECOND)))
    paid_for(play, 19)  # with the two of ann's
    late(play, "bob")
    assert len(play.hedge("bob")) == 1
    play.end("bob+", how=LOST)
    late(play, "cid")
    assert play.hedge("cid") == [], "two are spent"


def test_a_platform_that_refuses_us_or_does_not_serve_the_model_is_passed() -> None:
    file = plan(
        platform("own", models=["m"], a=4), platform("odd", models=["n"], o=4), platform("rented", r=4),
        pool("chat", "own", "odd", "rented", hedge=ONE_SECOND), lanes=(FAST, LanePlan("slow", 20.0)),
    )  # fmt: skip
    play = Play(file)
    for number in range(21):
        play.arrive(f"b{number}", model="m")
        play.end(f"b{number}")
    play.arrive("ann", model="m", streamed=True)
    play.at(1.0)
    assert play.hedge("ann") == ["ann -> r"]
    play.end("ann+", how=OUR_KEY)
    assert play.lease("ann").live
    play.speak("ann")
    play.end("ann", how=OK)
    assert counts(play) == (0, 0)


def test_what_ended_before_it_was_asked_for_pays_for_nothing() -> None:
    play = paid_for(Play(plan(platform("own", a=4, b=4), pool("chat", "own"))), 100)
    play.reload(plan(platform("own", a=4, b=4), pool("chat", "own", hedge=ONE_SECOND)))
    late(play)
    assert play.hedge("ann") == []
    assert len(paid_for(play).hedge("ann")) == 1
