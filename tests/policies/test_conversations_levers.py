"""What does an operator's lever change, and what does it leave as it was? Conversations: pins and caps, over failures and reloads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policies.health import HealthState
from tests.policies.stage import OUR_KEY, Play, plan, platform, pool

OWN = platform("own", a=1)
TWO = platform("own", a=1, b=1)
RENTED = platform("rented", r=2)
CHAT = pool("chat", "own", "rented", places=4, hold_s=300.0, ramp_s=120.0)


@pytest.fixture
def play() -> Play:
    return Play(plan(OWN, RENTED, CHAT))


# -- pins


def test_a_pin_sends_what_comes_next_there_and_moves_no_stream(play: Play) -> None:
    assert play.arrive("ann", "bob") == ["ann -> a", "bob waits"]
    assert play.serve("chat", "rented") == ["bob -> r"]
    assert play.arrive("cat", "dan") == ["cat -> r", "dan waits"]
    assert play.on("a") == ["ann"]
    assert play.end("ann") == []  # he waits for the platform that serves
    assert play.levers() == ["pin chat rented"]
    assert play.unpin("chat") == ["dan -> a"]
    assert play.levers() == []


def test_a_pinned_platform_that_is_lost_is_stood_in_for_until_it_is_back(play: Play) -> None:
    play.serve("chat", "rented")
    play.drain("r")
    assert play.in_service("chat") == ("own",)
    assert play.levers() == ["drain r", "(pin chat rented)"]
    assert play.arrive("ann") == ["ann -> a"]
    play.undrain("r")
    assert play.arrive("bob") == ["bob -> r"]  # at once: no hold, no ramp
    assert play.levers() == ["pin chat rented"]


def test_a_pin_leads_past_hold_and_ramp(play: Play) -> None:
    play.drain("own")
    play.undrain("own")
    assert play.in_service("chat") == ("rented",)  # own is in its hold
    play.serve("chat", "own")
    assert play.in_service("chat") == ("own",)
    play.unpin("chat")
    assert play.in_service("chat") == ("own",)  # it has proved itself meanwhile


def test_a_pin_ends_a_ramp_which_begins_anew_when_it_is_taken_away(play: Play) -> None:
    play.drain("own")
    play.undrain("own")
    play.at(310.0)
    assert play.in_service("chat") == ("own", "rented")
    play.serve("chat", "rented")
    assert play.in_service("chat") == ("rented",)
    play.at(5000.0)
    assert play.in_service("chat") == ("rented",)
    play.unpin("chat")
    assert play.in_service("chat") == ("own", "rented")
    play.at(5121.0)
    assert play.in_service("chat") == ("own",)


def test_a_pin_on_a_platform_that_refuses_us_serves_from_the_other(play: Play) -> None:
    play.serve("chat", "rented")
    play.arrive("ann")
    assert play.fail("ann", how=OUR_KEY) == ["ann -> a"]
    assert play.in_service("chat") == ("own",)


def test_a_pin_survives_a_reload_and_the_absence_of_its_pool_or_platform(play: Play) -> None:
    play.serve("chat", "rented")
    play.reload(plan(OWN, RENTED, replace(CHAT, hold_s=10.0)))
    assert play.in_service("chat") == ("rented",)
    play.reload(plan(OWN, RENTED, replace(CHAT, platforms=("own",))))
    assert play.in_service("chat") == ("own",)
    assert play.levers() == ["(pin chat rented)"]
    play.reload(plan(OWN, RENTED, pool("other", "own")))
    assert play.levers() == ["(pin chat rented)"]
    play.reload(plan(OWN, RENTED, CHAT))
    assert play.in_service("chat") == ("rented",)
    play.reload(plan(OWN, RENTED, pool("other", "own")))
    play.unpin("chat")  # also while the file does not have it
    play.reload(plan(OWN, RENTED, CHAT))
    assert play.in_service("chat") == ("own",)


def test_a_name_that_leads_nowhere_is_an_error_and_changes_nothing(play: Play) -> None:
    for pool_name, platform_name in (("chta", "own"), ("chat", "onw")):
        with pytest.raises(KeyError):
            play.serve(pool_name, platform_name)
    with pytest.raises(KeyError):
        play.unpin("chta")
    assert play.levers() == []


def test_another_pool_is_not_pinned_with_it() -> None:
    play = Play(plan(OWN, RENTED, CHAT, pool("batch", "own", "rented")))
    play.serve("chat", "rented")
    assert play.in_service("batch") == ("own",)


# -- caps


def test_a_raised_cap_lets_in_who_waits(play: Play) -> None:
    assert play.arrive("ann", "bob") == ["ann -> a", "bob waits"]
    assert play.cap("a", 2) == ["bob -> a"]
    assert play.levers() == ["cap a 2"]
    assert play.arrive("cat") == ["cat waits"]
    assert play.uncap("a") == []
    assert play.end("ann") == []  # a is down to its cap of one, and full
    assert play.end("bob") == ["cat -> a"]
    assert play.levers() == []


def test_a_lowered_cap_ends_no_stream_and_lets_none_in_above_it(play: Play) -> None:
    play.reload(plan(platform("own", a=3), RENTED, CHAT))
    play.arrive("ann", "bob", "cat")
    play.cap("a", 1)
    assert play.arrive("dan") == ["dan waits"]
    assert play.end("ann", "bob") == []
    assert play.end("cat") == ["dan -> a"]


def test_an_override_counts_as_the_configured_cap(play: Play) -> None:
    play.reload(plan(TWO, RENTED, pool("chat", "own", "rented")))
    play.cap("a", 29)
    state = play.dispatcher.snapshot(play.now)
    assert (state.pools["chat"].streams, state.pools["chat"].places) == (30, 6)
    assert (state.backends["a"].max_streams, state.backends["a"].cap_override) == (29, 29)


def test_an_override_survives_a_reload_a_new_address_and_the_absence_of_its_backend(play: Play) -> None:
    play.cap("a", 2)
    play.reload(plan(platform("own", a=5, b=1), RENTED, CHAT))
    assert play.dispatcher.snapshot(play.now).backends["a"].max_streams == 2
    moved = replace(OWN, backends=tuple(replace(each, address="elsewhere") for each in OWN.backends))
    play.reload(plan(moved, RENTED, CHAT))
    assert play.dispatcher.snapshot(play.now).backends["a"].max_streams == 2
    play.reload(plan(platform("own", b=1), RENTED, CHAT))
    assert play.levers() == ["(cap a 2)"]
    play.uncap("a")
    play.reload(plan(OWN, RENTED, CHAT))
    assert play.dispatcher.snapshot(play.now).backends["a"].max_streams == 1


@pytest.mark.parametrize("streams", [0, -1, 1_000_001])
def test_no_cap_at_all_is_no_cap(play: Play, streams: int) -> None:
    with pytest.raises(ValueError, match="drain it"):
        play.cap("a", streams)
    with pytest.raises(KeyError):
        play.cap("aa", 2)
    with pytest.raises(KeyError):
        play.uncap("own")  # a platform has no cap of its own
    assert play.levers() == []


# -- drains


def test_a_drain_can_be_taken_back_when_the_file_no_longer_has_the_name(play: Play) -> None:
    play.drain("a")
    play.reload(plan(platform("own", b=1), RENTED, CHAT))
    assert play.levers() == ["(drain a)"]
    play.undrain("a")
    play.reload(plan(OWN, RENTED, CHAT))
    assert play.levers() == []
    assert play.dispatcher.snapshot(play.now).backends["a"].state is HealthState.HEALTHY


def test_since_when_is_when_it_was_pulled_first(play: Play) -> None:
    play.reload(plan(TWO, RENTED, CHAT))
    play.cap("a", 2)
    play.at(10.0)
    play.cap("a", 2)
    play.drain("b")
    play.serve("chat", "rented")
    play.at(20.0)
    play.drain("b")
    play.serve("chat", "rented")
    assert [each.since_at for each in play.dispatcher.snapshot(play.now).levers] == [10.0, 10.0, 0.0]
