"""What does the dispatcher say to arrivals, endings and departures? Each test is a short play: a line, and what it leads to."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from policies.model import LanePlan, Lease, PlacesPlan, Refusal, Request, Ticket
from policies.slots import LeaseReturned
from tests.policies.stage import FAST, GONE, OK, SLOW, Play, plan, platform, pool


def one(cap: int = 1, places: int = 10, **more: object) -> Play:
    """One backend, one pool."""
    return Play(plan(platform("own", a=cap), pool("chat", "own", places=places, **more)))


def test_a_free_slot_is_taken_at_once_and_the_next_waits_for_it() -> None:
    play = one()
    assert play.arrive("ann") == ["ann -> a"]
    assert play.arrive("bob", "cid") == ["bob waits", "cid waits"]
    assert play.end("ann") == ["bob -> a"]
    assert play.end("bob") == ["cid -> a"]
    assert play.end("cid") == []


def test_the_slot_is_held_for_the_whole_stream_not_until_its_first_token() -> None:
    play = one()
    play.arrive("ann", "bob")
    assert play.speak("ann") == []
    assert play.end("ann") == ["bob -> a"]


def test_a_lease_comes_back_once() -> None:
    play = one()
    play.arrive("ann", "bob", "cid")
    lease = play.lease("ann")
    assert play.end("ann") == ["bob -> a"]
    with pytest.raises(LeaseReturned):
        play.dispatcher.give_back(lease, OK, play.now)
    assert play.on("a") == ["bob"]
    assert play.dispatcher.snapshot(play.now).in_flight == 1


def test_the_fast_lane_goes_first_and_each_lane_in_order_of_arrival() -> None:
    play = one()
    play.arrive("ann")
    play.arrive("sam", "sue", lane="slow")
    play.arrive("bob", "cid")
    assert [play.end(who) for who in ("ann", "bob", "cid", "sam")] == [["bob -> a"], ["cid -> a"], ["sam -> a"], ["sue -> a"]]


def test_a_lane_that_is_owed_goes_before_the_fast_one_after_nine() -> None:
    play = one(places=100)
    play.arrive("ann")
    play.arrive("sam", lane="slow")
    play.arrive(*(f"f{number}" for number in range(12)))
    last, order = "ann", []
    for _ in range(12):
        (line,) = play.end(last)
        last = line.split()[0]
        order.append(last)
    assert order == [*(f"f{number}" for number in range(9)), "sam", "f9", "f10"]


def test_no_credit_is_kept_while_nobody_waits() -> None:
    play = one(places=100)
    play.arrive("ann")
    play.arrive("sam", lane="slow")
    play.arrive(*(f"f{number}" for number in range(20)))
    last = "ann"
    for _ in range(8):
        last = play.end(last)[0].split()[0]
    play.leave("sam")
    play.arrive("sue", lane="slow")
    for _ in range(9):
        last = play.end(last)[0].split()[0]
        assert last != "sue"
    assert play.end(last) == ["sue -> a"]


def test_who_waits_too_long_is_told_and_the_wait_is_counted() -> None:
    play = one()
    play.arrive("ann")
    play.arrive("bob")
    play.arrive("sam", lane="slow")
    assert play.dispatcher.next_at() == 4.0
    assert play.at(3.99) == []
    assert play.at(4.0) == ["bob: queue_timeout"]
    assert play.ticket("bob").waited_s == 4.0
    assert play.at(19.9) == []
    assert play.end("ann") == ["sam -> a"]
    assert play.ticket("sam").waited_s == pytest.approx(19.9)


def test_a_late_event_still_refuses_before_it_dispatches() -> None:
    play = one()
    play.arrive("ann", "bob", "cid")
    play.now = 4.5  # nobody ticked
    assert play.end("ann") == ["bob: queue_timeout", "cid: queue_timeout"]
    assert play.on("a") == []


def test_the_pool_may_set_the_wait() -> None:
    play = one(max_wait_s=1.0)
    play.arrive("ann", "bob")
    assert play.at(1.0) == ["bob: queue_timeout"]


def test_leaving_frees_the_place_and_can_be_said_twice() -> None:
    play = one(places=1)
    play.arrive("ann", "bob")
    assert play.arrive("cid") == ["cid: queue_full"]
    assert play.leave("bob") == []
    assert play.leave("bob") == []
    assert play.ticket("bob").answer is None
    assert play.arrive("dan") == ["dan waits"]
    assert play.leave("ann") == []  # ann is being served: her lease comes back by itself
    assert play.end("ann", how=GONE) == ["dan -> a"]


def test_no_places_means_nobody_waits() -> None:
    play = one(places=0)
    assert play.arrive("ann", "bob") == ["ann -> a", "bob: queue_full"]


def test_a_full_queue_pushes_out_the_newest_of_the_lowest_lane() -> None:
    play = one(places=3)
    play.arrive("ann")
    play.arrive("sam", "sue", "sid", lane="slow")
    assert play.arrive("bob") == ["sid: displaced", "bob waits"]
    assert play.arrive("cid") == ["sue: displaced", "cid waits"]
    assert play.arrive("dan") == ["dan: queue_full"], "the last place is the slow lane's own"
    assert play.arrive("sol", lane="slow") == ["sol: queue_full"]


def test_a_lane_below_its_reserve_pushes_out_the_newest_above() -> None:
    play = one(places=3)
    play.arrive("ann", "bob", "cid", "dan")
    assert play.arrive("sam", lane="slow") == ["dan: displaced", "sam waits"]
    assert play.arrive("sue", lane="slow") == ["sue: queue_full"]


def test_the_bodies_that_wait_have_a_bound() -> None:
    play = Play(replace(plan(platform("own", a=1), pool("chat", "own", places=9)), waiting_bytes_max=1000))

    def arrive(name: str, size: int, lane: int = 0) -> str:
        ticket = Ticket(Request(name, "t", lane, body_bytes=size), "chat", 0.0)
        settled = play.dispatcher.arrive(ticket, 0.0)
        return " ".join(f"{each.request.id}:{each.answer.outcome}" for each in settled if isinstance(each.answer, Refusal))

    play.arrive("ann")
    assert arrive("b", 600) == ""
    assert arrive("c", 200, lane=1) == ""
    assert arrive("d", 200, lane=1) == ""
    assert arrive("e", 1, lane=1) == "e:queue_full"
    assert arrive("f", 300) == "f:queue_full", "pushing d out would not be enough"
    assert arrive("g", 200) == "d:displaced"
    assert play.dispatcher.snapshot(0.0).waiting_bytes == 1000
    play.end("ann")
    assert play.dispatcher.snapshot(0.0).waiting_bytes == 400


def test_an_arrival_whose_wait_would_be_too_long_is_refused_at_once_but_only_by_measurement() -> None:
    play = one(places=100)
    play.arrive("ann", "bob", "cid", "dan")
    play.at(1.5)
    assert play.end("ann") == ["bob -> a"]
    play.at(3.0)
    assert play.end("bob") == ["cid -> a"]
    # Two came back in 3 s, one waits: (1 + 1) / (2 / 3) = 3 s. With two before: 4.5 s, above 4.
    assert play.arrive("eve", "fay") == ["eve waits", "fay: queue_full"]
    refusal = play.ticket("fay").answer
    assert isinstance(refusal, Refusal)
    assert refusal.retry_after_s in (4, 5, 6)


def test_a_quiet_time_does_not_make_the_pool_look_slow() -> None:
    play = one(cap=2, places=100)
    for name in ("a1", "a2", "a3"):
        play.arrive(name)
        play.at(play.now + 1.0)
        play.end(name)
        play.at(play.now + 20.0)
    assert play.arrive("ann", "bob", "cid", "dan") == ["ann -> a", "bob -> a", "cid waits", "dan waits"]


def test_lanes_below_a_reserve_leave_those_slots_free() -> None:
    lanes = (replace(FAST, reserve=1), SLOW)
    play = Play(plan(platform("own", a=2), pool("chat", "own", places=10), lanes=lanes))
    assert play.arrive("sam", "sue", lane="slow") == ["sam -> a", "sue waits"]
    assert play.arrive("ann") == ["ann -> a"]
    assert play.end("ann") == []
    assert play.end("sam") == ["sue -> a"]


def test_a_reserve_as_large_as_the_platform_starves_nobody_on_an_idle_one() -> None:
    lanes = (replace(FAST, reserve=5), SLOW)
    play = Play(plan(platform("own", a=2), pool("chat", "own", places=10), lanes=lanes))
    assert play.arrive("sam", "sue", lane="slow") == ["sam -> a", "sue waits"]


def test_the_least_loaded_backend_for_its_weight_is_chosen() -> None:
    play = Play(plan(platform("own", big=4, small=1), pool("chat", "own")))
    assert play.arrive("ann", "bob", "cid") == ["ann -> big", "bob -> big", "cid -> big"]
    assert sorted(play.arrive("dan", "eve")) == ["dan -> big", "eve -> small"] or sorted(play.on("small")) != []
    assert len(play.on("big")) == 4


def test_a_model_goes_only_where_it_is_served() -> None:
    file = plan(platform("x", models=["m"], a=1), platform("y", models=["n"], b=1), pool("chat", "x", "y", places=10))
    play = Play(file)
    assert play.arrive("ann", model="m") == ["ann -> a"]
    assert play.arrive("bob", model="m") == ["bob waits"]
    assert play.arrive("cid", model="n") == ["cid -> b"], "bob does not stand in the way of another model"
    assert play.arrive("dan", model="o") == ["dan: not_found"]
    assert play.end("cid") == []
    assert play.end("ann") == ["bob -> a"]


def test_the_pool_s_model_is_the_one_that_is_needed() -> None:
    file = plan(platform("x", models=["m"], a=1), pool("chat", "x", model="m"), pool("bulk", "x", model="n"))
    play = Play(file)
    assert play.arrive("ann", model="whatever") == ["ann -> a"]
    assert play.arrive("bob", model="m", to="bulk") == ["bob: not_found"]


def test_an_unknown_pool_is_not_found() -> None:
    play = one()
    assert play.arrive("ann", to="nowhere") == ["ann: not_found"]


def test_pools_earlier_in_the_file_go_first_on_what_they_share() -> None:
    play = Play(plan(platform("own", a=1), pool("chat", "own", places=5), pool("batch", "own", places=5)))
    assert play.arrive("ann", to="batch") == ["ann -> a"]
    play.arrive("bob", to="batch")
    play.arrive("cid", lane="slow", to="chat")
    assert play.end("ann") == ["cid -> a"]
    assert play.end("cid") == ["bob -> a"]


def test_a_request_without_a_slot_passes_a_full_backend_and_counts_for_nothing() -> None:
    play = one()
    assert play.arrive("ann") == ["ann -> a"]
    assert play.arrive("tok", slotless=True) == ["tok -> a"]
    assert play.lease("tok").slotless
    assert play.arrive("bob") == ["bob waits"]
    assert play.end("tok") == []
    assert play.end("ann") == ["bob -> a"]


def test_closing_refuses_arrivals_and_lets_the_waiting_wait() -> None:
    play = one()
    play.arrive("ann", "bob", "cid")
    assert play.close() == []
    assert play.arrive("dan") == ["dan: draining"]
    assert play.end("ann") == ["bob -> a"]
    assert play.expel() == ["cid: draining"]
    assert play.end("bob") == []
    assert play.dispatcher.snapshot(play.now).waiting == 0


def test_every_refusal_for_want_of_room_says_when_to_come_back() -> None:
    play = one(places=1)
    play.arrive("ann", "bob", "cid")
    play.at(4.0)
    play.close()
    play.arrive("dan")
    for name in ("bob", "cid", "dan"):
        refusal = play.ticket(name).answer
        assert isinstance(refusal, Refusal)
        assert refusal.retry_after_s is not None
        assert 1 <= refusal.retry_after_s <= 60


def test_two_shared_lanes_are_each_given_their_part() -> None:
    lanes = (FAST, LanePlan("slow", 1e6, Fraction(1, 4)), LanePlan("idle", 1e6, Fraction(1, 10)))
    play = Play(plan(platform("own", a=1), pool("chat", "own", places=500, max_wait_s=1e6), lanes=lanes))
    play.arrive("first")
    for lane in ("fast", "slow", "idle"):
        play.arrive(*(f"{lane}{number}" for number in range(100)), lane=lane)
    last, order = "first", []
    for _ in range(100):
        last = play.end(last)[0].split()[0]
        order.append(last.rstrip("0123456789"))
    assert order.count("slow") == 25
    assert order.count("idle") in (9, 10)


def test_the_snapshot_counts_what_there_is() -> None:
    play = one(cap=2, places=10)
    play.arrive("ann", "bob", "cid")
    play.at(2.0)
    play.arrive("sam", lane="slow")
    play.end("ann")
    state = play.dispatcher.snapshot(3.0)
    chat = state.pools["chat"]
    assert {name: (lane.waiting, lane.oldest_s) for name, lane in chat.lanes.items()} == {"fast": (0, 0.0), "slow": (1, 1.0)}
    assert (chat.places, chat.streams, chat.in_flight, chat.in_service) == (10, 2, 2, ("own",))
    assert chat.arrival_rps == pytest.approx(4 / 3)
    assert chat.generation_s == 2.0
    assert chat.needed_streams == pytest.approx(8 / 3)
    assert (state.backends["a"].in_flight, state.backends["a"].cap, state.in_flight, state.waiting) == (2, 2, 2, 1)


def test_default_places_follow_the_caps_of_the_platform_in_service() -> None:
    file = plan(platform("own", a=10, b=20), platform("rented", c=5), pool("chat", "own", "rented"))
    play = Play(replace(file, pools=(replace(file.pools[0], places=PlacesPlan()),)))
    assert play.dispatcher.snapshot(0.0).pools["chat"].places == 6
    play.drain("own")
    assert play.dispatcher.snapshot(0.0).pools["chat"].places == 1
    assert isinstance(play.dispatcher.snapshot(0.0).pools["chat"].in_service, tuple)


def test_leases_are_numbered_and_named() -> None:
    play = one()
    play.arrive("ann")
    lease = play.lease("ann")
    assert isinstance(lease, Lease)
    assert (lease.pool, lease.platform, lease.backend, lease.granted_at, lease.live, lease.probe) == ("chat", "own", "a", 0.0, True, False)
