"""Which backend says the rest of a stream that broke, and when?

One that has not failed this request, on a platform that can continue an answer. It waits for a slot as a retry does, at the head of its
lane, and not long: its caller is reading.
"""

from __future__ import annotations

from policies.continuation import WAIT_S, may_continue
from policies.dispatcher.floor import Floor
from policies.dispatcher.site import Grant, Use
from policies.lanes import Seat
from policies.model import Ending, Lease, Refusal, Ticket
from policies.retries import attempts_allowed

_UNPROVEN = frozenset({Use.PROBING, Use.STARTING})  # half a stream is no test for them


def resume(floor: Floor, ticket: Ticket, failed: Lease, ending: Ending, now: float) -> None:
    """Gives it a lease, a place to wait in, or the refusal with its own failure. ValueError: its lease has not come back."""
    if not isinstance(failed, Grant) or failed.room is None or failed.live or failed.first_token_at is None:
        raise ValueError("only a stream whose lease has come back is continued")
    room = failed.room
    plan = room.plan
    seat: Seat = ticket.seat
    allowed = plan.continues and may_continue(
        ending,
        ticket.request,
        plan.model or ticket.request.model,
        ticket.last_ending,
        attempts=ticket.attempts,
        allowed=attempts_allowed(plan.attempts, ticket.request.traffic),
    )
    unfit = [each.name for site in room.sites for each in site.backends.values() if not site.continues or each.use in _UNPROVEN]
    ticket.tried |= {failed.backend, *unfit}
    ticket.last_ending = ending
    ticket.answer = None
    lane = room.lane(seat.lane)
    serves = room.serves(ticket.request)
    if not allowed or floor.rooms.get(room.name) is not room or not room.may_serve(serves, ticket.tried):
        floor.refuse(ticket, Refusal(ending.outcome))
        return
    floor.sit(ticket, room, lane, serves, now + min(WAIT_S, lane.max_wait_s - ticket.waited_s), now)
    floor.let_in((room,), now)
