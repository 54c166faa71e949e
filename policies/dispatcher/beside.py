"""May this request be sent to a second backend beside its first, and to which?

To one where nothing runs and nobody waits for: the first platform in order that has an open backend besides, as for a retry, and no
platform behind it. So a primary of one backend is hedged by its standby, and one of several by itself.
"""

from __future__ import annotations

from policies.dispatcher.floor import Floor
from policies.dispatcher.room import Room
from policies.dispatcher.site import Backend, Grant
from policies.hedging import may_hedge
from policies.lanes import Serves
from policies.model import Ticket
from policies.retries import attempts_allowed


def due_at(ticket: Ticket, now: float) -> float | None:
    """When is its first token late? None: it is never hedged."""
    first = ticket.answer
    if not isinstance(first, Grant) or first.room is None or first.room.hedging is None:
        return None
    plan = first.room.plan
    if not may_hedge(ticket.request, first, ticket.attempts, attempts_allowed(plan.attempts, ticket.request.traffic)):
        return None
    after_s = first.room.hedging.after_s(first.platform, now)
    return None if after_s is None else first.granted_at + after_s


def begin(floor: Floor, ticket: Ticket, twin: Ticket, now: float) -> None:
    """Sends it there too, if it may and there is such a backend."""
    first = ticket.answer
    late_at = due_at(ticket, now)
    if late_at is None or now < late_at or not isinstance(first, Grant) or not first.live or first.room is None:
        return
    room = first.room
    hedging = room.hedging
    if hedging is None or room.retired or floor.rooms.get(room.name) is not room:
        return
    if not hedging.allows(room.load.returned_ever, room.in_flight) or not floor.budget.allows():
        return
    backend = _idle(room, room.serves(ticket.request), frozenset({first.backend}))
    if backend is not None:
        hedging.began(first, floor.grant_beside(ticket, twin, room, backend, now))


def _idle(room: Room, serves: Serves, tried: frozenset[str]) -> Backend | None:
    for site in room.order:
        if not site.refuses and site.serves(serves) and site.is_open(tried):
            return None if any(other.waiting for other in site.rooms) else site.idle(tried)
    return None
