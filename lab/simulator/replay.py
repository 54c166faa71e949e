"""Do the same calls give the same answers? A dispatcher that writes down what it is asked, and the replay of that log (S0).

The log is plain data: tickets and leases are named by number, so that nothing of the run is left in it. The log of a live server replays
in a process that never saw a socket.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from policies.dispatcher import Dispatcher
from policies.model import Lease, Plan, Refusal, Request, Ticket

EVENTS = frozenset(
    [
        "again",
        "arrive",
        "cap",
        "close",
        "drain",
        "expel",
        "first_token",
        "give_back",
        "hedge",
        "leave",
        "probed",
        "reconfigure",
        "resume",
        "serve",
        "smoke",
        "smoked",
        "tick",
        "uncap",
        "undrain",
        "unpin",
    ]
)


NO_TICKET = -1
Told = Sequence[Ticket] | Lease | None  # what a call of the dispatcher returns; the last two: `smoke`


class Arrived(NamedTuple):
    """A ticket that was not seen before."""

    number: int
    request: Request
    pool: str
    arrived_at: float
    slotless: bool


class TicketOf(NamedTuple):
    """A ticket that was."""

    number: int


class LeaseOf(NamedTuple):
    """A lease that was granted."""

    number: int


class Answered(NamedTuple):
    """What one ticket was told: a lease, or a refusal. A smoke generation's lease is told to no ticket: NO_TICKET."""

    ticket: int
    lease: int | None
    backend: str = ""
    probe: bool = False
    outcome: str = ""
    retry_after_s: int | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One call, and what it led to."""

    name: str
    arguments: Sequence[Any]  # the last is `now`
    answers: Sequence[Answered]
    raised: str = ""


@dataclass(slots=True)
class Log:
    """Everything a dispatcher was asked, from its beginning."""

    plan: Plan
    began_at: float
    seed: int
    calls: list[Call] = field(default_factory=list)


class Recording:
    """A dispatcher, for whoever holds it, that keeps a `log`."""

    def __init__(self, plan: Plan, now: float, seed: int = 0) -> None:
        self.log = Log(plan, now, seed)
        self._dispatcher = Dispatcher(plan, now, seed)
        self._numbers: dict[int, tuple[int, Ticket]] = {}  # by identity, which the ticket kept beside it holds on to

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._dispatcher, name)
        return self._recorded(name, found) if name in EVENTS else found

    def _recorded(self, name: str, call: Callable[..., Told]) -> Callable[..., Told]:
        def recorded(*arguments: Any) -> Told:
            named = [self._named(argument) for argument in arguments]
            try:
                settled = call(*arguments)
            except Exception as error:
                self.log.calls.append(Call(name, named, (), type(error).__name__))
                raise
            self.log.calls.append(Call(name, named, _answers(settled, lambda ticket: self._numbers[id(ticket)][0])))
            return settled

        return recorded

    def _named(self, argument: Any) -> Any:
        if isinstance(argument, Lease):
            return LeaseOf(argument.number)
        if not isinstance(argument, Ticket):
            return argument
        known = self._numbers.get(id(argument))
        if known is not None:
            return TicketOf(known[0])
        number = len(self._numbers)
        self._numbers[id(argument)] = number, argument
        return Arrived(number, argument.request, argument.pool, argument.arrived_at, argument.slotless)


def replay(log: Log) -> str | None:
    """Asks a fresh dispatcher the same. None: every answer is the same; else the first difference, in words."""
    dispatcher = Dispatcher(log.plan, log.began_at, log.seed)
    tickets: list[Ticket] = []
    numbers: dict[int, int] = {}
    leases: dict[int, Lease] = {}

    def thing(argument: Any) -> Any:
        if isinstance(argument, Arrived):
            ticket = Ticket(argument.request, argument.pool, argument.arrived_at, slotless=argument.slotless)
            numbers[id(ticket)] = len(tickets)
            tickets.append(ticket)
            return ticket
        if isinstance(argument, TicketOf):
            return tickets[argument.number]
        return leases[argument.number] if isinstance(argument, LeaseOf) else argument

    for index, call in enumerate(log.calls):
        raised = ""
        settled: Told = ()
        try:
            settled = getattr(dispatcher, call.name)(*map(thing, call.arguments))
        except Exception as error:
            raised = type(error).__name__
        for lease in [settled] if isinstance(settled, Lease) else [ticket.answer for ticket in settled or ()]:
            if isinstance(lease, Lease):
                leases[lease.number] = lease
        answers = _answers(settled, lambda ticket: numbers[id(ticket)])
        if answers != list(call.answers) or raised != call.raised:
            return f"call {index}, {call.name}: then {list(call.answers) or call.raised}, now {answers or raised}"
    return None


def _answers(settled: Told, number: Callable[[Ticket], int]) -> list[Answered]:
    if isinstance(settled, Lease):
        return [Answered(NO_TICKET, settled.number, settled.backend, settled.probe)]
    found = []
    for ticket in settled or ():
        answer = ticket.answer
        if isinstance(answer, Lease):
            found.append(Answered(number(ticket), answer.number, answer.backend, answer.probe))
        elif isinstance(answer, Refusal):
            found.append(Answered(number(ticket), None, outcome=answer.outcome.value, retry_after_s=answer.retry_after_s))
    return found
