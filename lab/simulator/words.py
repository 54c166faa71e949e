"""How is what happened said in words? One line per event, for reports."""

from __future__ import annotations

from lab.simulator.incidents import Incident, What
from policies.dispatcher import Ejected, Event, PlatformRefuses, Recovered, Resting
from policies.failover import FailedBack, FailedOver, Ramping


def told(event: Event | Incident) -> str:
    """One line."""
    match event:
        case Incident(what=What.CAP, name=name, amount=amount):
            return f"{name}: cap {amount:g}"
        case Incident(what=What.SLOW, name=name, amount=amount):
            return f"{name} takes {amount:g} times as long"
        case Incident(what=What.FAILS, name=name, amount=amount):
            return f"{name}: {amount:.0%} of the attempts fail"
        case Incident(what=what, name=name):
            return f"{name} {what.value}"
        case FailedOver(pool=pool, from_=from_, to=to, reason=reason):
            return f"pool {pool} fails over from {from_} to {to}: {reason}"
        case Ramping(pool=pool, from_=from_, to=to):
            return f"pool {pool} ramps from {from_} back to {to}"
        case FailedBack(pool=pool, to=to):
            return f"pool {pool} is back on {to}"
        case Ejected(backend=backend, why=why):
            return f"backend {backend} ejected: {why}"
        case Recovered(backend=backend):
            return f"backend {backend} recovered"
        case Resting(backend=backend):
            return f"backend {backend} is busy and rests"
        case PlatformRefuses(platform=platform, why=why):
            return f"platform {platform} refuses us: {why}"
    return str(event)
