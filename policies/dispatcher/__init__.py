"""Which request goes to which backend, when? The one policy that composes the others.

Hosts (the proxy, the simulator) report what happens, with `now`; each call returns the tickets whose `answer` it has set. Between two
calls nothing is left undone: no eligible slot is free while a request that may use it waits. The same calls give the same answers.
"""

from __future__ import annotations

from policies.dispatcher.desk import Dispatcher
from policies.dispatcher.state import (
    BackendState,
    Ejected,
    Event,
    LaneState,
    PlatformRefuses,
    PlatformState,
    PoolState,
    Recovered,
    Resting,
    State,
)

__all__ = [
    "BackendState",
    "Dispatcher",
    "Ejected",
    "Event",
    "LaneState",
    "PlatformRefuses",
    "PlatformState",
    "PoolState",
    "Recovered",
    "Resting",
    "State",
]
