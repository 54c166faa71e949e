"""A stage for conversations with the dispatcher: who says what, and what is answered, in words.

`Play` keeps the clock and the cast. Every line returns what it led to, one string per ticket: "ann -> a" (a lease on backend a),
"ann -> a (probe)", "ann: queue_full", and "ann waits" for an arrival or retry that was not answered at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from policies.dispatcher import Dispatcher
from policies.model import (
    BackendPlan,
    Ending,
    LanePlan,
    Lease,
    Outcome,
    PlacesPlan,
    Plan,
    PlatformPlan,
    PoolPlan,
    Refusal,
    Request,
    Ticket,
    Verdict,
)

FAST = LanePlan("fast", max_wait_s=4.0)
SLOW = LanePlan("slow", max_wait_s=20.0, share=Fraction(1, 10))
OK = Ending(Verdict.OK, Outcome.OK)
RESET = Ending(Verdict.FAILED, Outcome.UPSTREAM_RESET, why="reset")
REFUSED = Ending(Verdict.FAILED, Outcome.UPSTREAM_CONNECT, why="refused")
STARTING = Ending(Verdict.FAILED, Outcome.UPSTREAM_CONNECT, maybe_starting=True, why="refused")
OUR_KEY = Ending(Verdict.REFUSES_US, Outcome.UPSTREAM_AUTH, why="status 401")
GONE = Ending(Verdict.NEUTRAL, Outcome.CLIENT_GONE)


def busy(retry_after_s: float | None = None) -> Ending:
    return Ending(Verdict.BUSY, Outcome.UPSTREAM_STATUS, retry_after_s=retry_after_s, why="status 429")


def platform(name: str, *, models: Sequence[str] | None = None, **caps: int) -> PlatformPlan:
    """A platform of backends with these caps."""
    backends = tuple(BackendPlan(backend, cap) for backend, cap in caps.items())
    return PlatformPlan(name, backends, None if models is None else frozenset(models))


def pool(name: str, *platforms: str, places: int | None = None, **more: object) -> PoolPlan:
    return PoolPlan(name, platforms, PlacesPlan(fixed=places), **more)  # type: ignore[arg-type]


def plan(*parts: PlatformPlan | PoolPlan, lanes: tuple[LanePlan, ...] = (FAST, SLOW)) -> Plan:
    platforms = tuple(part for part in parts if isinstance(part, PlatformPlan))
    pools = tuple(part for part in parts if isinstance(part, PoolPlan))
    return Plan(lanes, platforms, pools)


class Play:
    """One conversation. `now` moves only when told to."""

    def __init__(self, file: Plan, seed: int = 0) -> None:
        self.now = 0.0
        self.file = file
        self.dispatcher = Dispatcher(file, self.now, seed)
        self.cast: dict[str, Ticket] = {}

    def ticket(self, name: str) -> Ticket:
        return self.cast[name]

    def lease(self, name: str) -> Lease:
        answer = self.cast[name].answer
        assert isinstance(answer, Lease), f"{name} holds no lease"
        return answer

    def on(self, backend: str) -> list[str]:
        """Who is being served there?"""
        return [
            name
            for name, ticket in self.cast.items()
            if isinstance(ticket.answer, Lease) and ticket.answer.live and ticket.answer.backend == backend
        ]

    def waiting(self) -> list[str]:
        seated = ((name, ticket.seat) for name, ticket in self.cast.items() if ticket.seat is not None)
        return [name for name, seat in seated if seat.line is not None]

    # -- what is said

    def arrive(
        self,
        *names: str,
        lane: str = "fast",
        model: str | None = None,
        to: str | None = None,
        slotless: bool = False,
        streamed: bool = False,
        traffic: str = "interactive",
    ) -> list[str]:
        lines = []
        index = [each.name for each in self.file.lanes].index(lane)
        for name in names:
            request = Request(name, "t", index, traffic, model=model, streamed=streamed)
            ticket = self.cast[name] = Ticket(request, to or self.file.pools[0].name, self.now, slotless=slotless)
            lines += self._told(self.dispatcher.arrive(ticket, self.now))
            if ticket.answer is None:
                lines.append(f"{name} waits")
        return lines

    def end(self, *names: str, how: Ending = OK) -> list[str]:
        """Their answers end this way, for good."""
        return [line for name in names for line in self._told(self.dispatcher.give_back(self.lease(name), how, self.now))]

    def fail(self, *names: str, how: Ending = RESET, sent: bool = True) -> list[str]:
        """Their attempts fail before the first token; they ask again."""
        lines = []
        for name in names:
            lines += self.end(name, how=how)
            lines += self._told(self.dispatcher.again(self.cast[name], how, sent, self.now))
            if self.cast[name].answer is None:
                lines.append(f"{name} waits")
        return lines

    def speak(self, *names: str) -> list[str]:
        """Their first tokens come."""
        return [line for name in names for line in self._told(self.dispatcher.first_token(self.lease(name), self.now))]

    def hedge(self, name: str) -> list[str]:
        """Its first token is late; it asks for a second attempt beside the first, which `name+` holds."""
        ticket = self.cast[name]
        twin = self.cast[f"{name}+"] = Ticket(ticket.request, ticket.pool, ticket.arrived_at)
        return self._told(self.dispatcher.hedge(ticket, twin, self.now))

    def resume(self, *names: str, how: Ending) -> list[str]:
        """Their streams break like this; they ask for somebody to say the rest."""
        lines = []
        for name in names:
            lease = self.lease(name)
            lines += self.end(name, how=how)
            lines += self._told(self.dispatcher.resume(self.cast[name], lease, how, self.now))
            if self.cast[name].answer is None:
                lines.append(f"{name} waits")
        return lines

    def leave(self, name: str) -> list[str]:
        return self._told(self.dispatcher.leave(self.cast[name], self.now))

    def at(self, now: float) -> list[str]:
        """Time passes: the host ticks whenever it was told to."""
        lines = []
        while (due_at := self.dispatcher.next_at()) is not None and due_at < now:
            assert due_at >= self.now, "time runs backwards"
            self.now = due_at
            lines += self._told(self.dispatcher.tick(self.now))
        self.now = now
        return lines + self._told(self.dispatcher.tick(now))

    def probe(self, backend: str, alive: bool) -> list[str]:
        return self._told(self.dispatcher.probed(backend, alive, self.now))

    def drain(self, name: str) -> list[str]:
        return self._told(self.dispatcher.drain(name, self.now))

    def undrain(self, name: str) -> list[str]:
        return self._told(self.dispatcher.undrain(name, self.now))

    def serve(self, pool: str, platform: str) -> list[str]:
        return self._told(self.dispatcher.serve(pool, platform, self.now))

    def unpin(self, pool: str) -> list[str]:
        return self._told(self.dispatcher.unpin(pool, self.now))

    def cap(self, backend: str, streams: int) -> list[str]:
        return self._told(self.dispatcher.cap(backend, streams, self.now))

    def uncap(self, backend: str) -> list[str]:
        return self._told(self.dispatcher.uncap(backend, self.now))

    def in_service(self, pool: str) -> tuple[str, ...]:
        return self.dispatcher.snapshot(self.now).pools[pool].in_service

    def levers(self) -> list[str]:
        """What is pulled; in brackets what holds nothing now."""
        said = [
            (f"{each.lever} {each.on}" + (f" {each.value}" if each.value else ""), each)
            for each in self.dispatcher.snapshot(self.now).levers
        ]
        return [text if each.holds else f"({text})" for text, each in said]

    def close(self) -> list[str]:
        return self._told(self.dispatcher.close(self.now))

    def expel(self) -> list[str]:
        return self._told(self.dispatcher.expel(self.now))

    def reload(self, file: Plan) -> list[str]:
        self.file = file
        return self._told(self.dispatcher.reconfigure(file, self.now))

    def _told(self, tickets: Sequence[Ticket]) -> list[str]:
        return [told(ticket) for ticket in tickets]


def told(ticket: Ticket) -> str:
    match ticket.answer:
        case Lease(backend=backend, probe=probe):
            return f"{ticket.request.id} -> {backend}" + (" (probe)" if probe else "")
        case Refusal(outcome=outcome):
            return f"{ticket.request.id}: {outcome.value}"
    raise AssertionError("a ticket was returned without an answer")
