"""What does the dispatcher say of a stream that broke and could be continued? Plays about the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from policies.model import Ending, Hedge, Lease
from tests.policies.stage import RESET, Play, busy, plan, platform, pool
from tests.policies.test_continuation import CUT, OUT_OF_TIME, STALLED
from tests.policies.test_conversations_beside import LOST, paid_for


def stage(own: int = 4, rented: int = 4, **more: Any) -> Play:
    """A primary and a standby that continue."""
    return Play(plan(platform("own", a=own), platform("rented", r=rented), pool("chat", "own", "rented", continues=True, **more)))


def saying(play: Play, *names: str, **more: Any) -> None:
    play.arrive(*names, streamed=True, model="m", **more)
    play.speak(*names)


@pytest.mark.parametrize("cut", [CUT, STALLED])
def test_the_rest_is_said_by_another_backend(cut: Ending) -> None:
    play = stage()
    saying(play, "ann")
    assert play.resume("ann", how=cut) == ["ann -> r"]
    assert play.ticket("ann").attempts == 2
    state = play.dispatcher.snapshot(play.now)
    assert (state.in_flight, state.retries) == (1, 1)
    play.speak("ann")
    play.end("ann")
    assert play.dispatcher.snapshot(play.now).in_flight == 0


def test_it_is_done_once() -> None:
    play = Play(plan(platform("own", a=4, b=4, c=4, d=4), pool("chat", "own", continues=True, attempts=9)))
    saying(play, "ann")
    assert play.resume("ann", how=CUT)[0].startswith("ann -> ")
    play.speak("ann")
    assert play.resume("ann", how=CUT) == ["ann: truncated"]


def test_not_after_a_retry_nor_out_of_time_nor_without_a_name_nor_where_nobody_asked() -> None:
    play = stage(attempts=9)
    play.arrive("ann", streamed=True, model="m")
    play.fail("ann", how=busy(0.1))
    play.speak("ann")
    play.at(1.0)
    assert play.resume("ann", how=CUT) == ["ann: truncated"], "not its first failure"
    play = stage()
    saying(play, "ann")
    assert play.resume("ann", how=OUT_OF_TIME) == ["ann: total_timeout"]
    play.arrive("bob", streamed=True)
    play.speak("bob")
    assert play.resume("bob", how=CUT) == ["bob: truncated"], "whose model is anybody's"
    play = Play(plan(platform("own", a=4), platform("rented", r=4), pool("chat", "own", "rented", continues=False)))
    saying(play, "ann")
    assert play.resume("ann", how=CUT) == ["ann: truncated"]
    play = stage(model="m")
    play.arrive("ann", streamed=True)
    play.speak("ann")
    assert play.resume("ann", how=CUT) == ["ann -> r"], "the pool names it"


def test_not_on_the_same_one_nor_on_a_platform_that_cannot() -> None:
    play = Play(plan(platform("own", a=4), pool("chat", "own", continues=True)))
    saying(play, "ann")
    assert play.resume("ann", how=CUT) == ["ann: truncated"]
    rented = replace(platform("rented", r=4), continues=False)
    play = Play(plan(platform("own", a=4), rented, platform("third", t=4), pool("chat", "own", "rented", "third", continues=True)))
    saying(play, "ann")
    assert play.resume("ann", how=CUT) == ["ann -> t"]
    play = Play(plan(platform("own", a=4), rented, pool("chat", "own", "rented", continues=True)))
    saying(play, "ann")
    assert play.resume("ann", how=CUT) == ["ann: truncated"]


def test_not_on_a_backend_that_has_yet_to_prove_itself() -> None:
    play = Play(plan(platform("own", a=4), platform("rented", r=4, s=4), pool("chat", "own", "rented", continues=True)))
    for _ in range(3):
        play.probe("r", True)
    for _ in range(3):
        play.probe("r", False)
    saying(play, "ann")
    for _ in range(2):
        play.probe("r", True)
    assert play.resume("ann", how=CUT) == ["ann -> s"]
    assert play.arrive("bob") == ["bob -> r (probe)"]


def test_it_waits_at_the_head_of_its_lane_and_not_long() -> None:
    play = stage(own=2, rented=1, places=5, max_wait_s=600.0)
    play.serve("chat", "rented")
    play.arrive("held")
    play.unpin("chat")
    saying(play, "ann", "bob")
    assert play.arrive("cid") == ["cid waits"]
    assert play.resume("ann", how=CUT) == ["cid -> a", "ann waits"]
    assert play.end("held") == ["ann -> r"]
    assert play.resume("bob", how=CUT) == ["bob waits"]
    play.at(9.9)
    assert play.waiting() == ["bob"]
    assert play.at(10.0) == ["bob: truncated"]


def test_what_a_lane_may_wait_holds_for_the_rest_too() -> None:
    play = stage(own=1, rented=1, places=5, max_wait_s=4.0)
    play.serve("chat", "rented")
    play.arrive("held")
    play.unpin("chat")
    play.arrive("first")
    assert play.arrive("ann", streamed=True, model="m") == ["ann waits"]
    play.at(3.0)
    assert play.end("first") == ["ann -> a"]
    play.speak("ann")
    play.at(60.0)
    assert play.resume("ann", how=CUT) == ["ann waits"]
    assert play.at(61.0) == ["ann: truncated"], "it has waited 3 s before"


def test_who_waits_for_the_rest_may_leave_and_goes_with_the_backends() -> None:
    play = stage(own=2, rented=1, places=5)
    play.serve("chat", "rented")
    play.arrive("held")
    play.unpin("chat")
    saying(play, "ann", "bob")
    play.resume("ann", "bob", how=CUT)
    play.leave("ann")
    assert play.waiting() == ["bob"]
    assert play.drain("rented") == ["bob: truncated"]


def test_a_drain_lets_it_and_its_end_does_not() -> None:
    play = stage()
    saying(play, "ann", "bob")
    play.close()
    assert play.resume("ann", how=CUT) == ["ann -> r"]
    play.expel()
    assert play.resume("bob", how=CUT) == ["bob: truncated"]


def test_only_a_stream_whose_lease_is_back_is_continued() -> None:
    play = stage()
    saying(play, "ann")
    with pytest.raises(ValueError, match="lease has come back"):
        play.dispatcher.resume(play.ticket("ann"), play.lease("ann"), CUT, play.now)
    play.arrive("bob", streamed=True, model="m")
    play.end("bob", how=RESET)
    with pytest.raises(ValueError, match="lease has come back"):
        play.dispatcher.resume(play.ticket("bob"), play.lease("bob"), CUT, play.now)


def test_a_cut_counts_against_its_backend_though_the_caller_saw_none() -> None:
    play = stage()
    for number in range(5):
        name = f"x{number}"
        saying(play, name)
        assert play.resume(name, how=CUT) == [f"{name} -> r"]
        play.speak(name)
        play.end(name)
    backends = play.dispatcher.snapshot(play.now).backends
    assert (backends["a"].why, backends["r"].why) == ("5 failures in a row: truncated", "")
    assert play.arrive("ann") == ["ann -> r"]


@pytest.mark.parametrize(("attempts", "said"), [(2, "ann: truncated"), (3, "ann -> t")])
def test_a_hedged_request_needs_a_third_attempt_for_it(attempts: int, said: str) -> None:
    platforms = [platform("own", a=4), platform("rented", r=4), platform("third", t=4)]
    file = pool("chat", "own", "rented", "third", continues=True, attempts=attempts, hedge=Hedge(after_s=1.0))
    play = paid_for(Play(plan(*platforms, file)))
    play.arrive("ann", streamed=True, model="m")
    play.at(1.0)
    assert play.hedge("ann") == ["ann -> r"]
    play.speak("ann+")
    play.end("ann", how=LOST)
    lease = play.lease("ann+")
    play.end("ann+", how=CUT)
    play.drain("own")
    (told,) = play.dispatcher.resume(play.ticket("ann"), lease, CUT, play.now)
    assert told is play.ticket("ann")
    assert (f"ann -> {told.answer.backend}" if isinstance(told.answer, Lease) else "ann: truncated") == said


def test_a_rest_that_fails_is_not_tried_again() -> None:
    play = Play(plan(platform("own", a=4, b=4, c=4), pool("chat", "own", continues=True, attempts=9)))
    saying(play, "ann")
    play.resume("ann", how=CUT)
    assert play.fail("ann", how=RESET) == ["ann: upstream_reset"]
