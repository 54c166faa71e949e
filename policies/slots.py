"""Has this backend room? The only owner of in-flight counts.

A cap is a semaphore held for the whole stream: a slot is taken with the choice of backend and given back when the answer's body
has ended, never at the first token. In flight is the size of the set of live leases; nothing counts it a second time.
"""

from __future__ import annotations

from policies.model import Lease


class LeaseReturned(RuntimeError):
    """A lease was given back a second time. Nothing has changed."""


class Slots:
    """The slots of one backend. `cap` may be lowered below what is in flight: then nothing is free until enough has come back."""

    __slots__ = ("cap", "live")

    def __init__(self, cap: int) -> None:
        self.cap = cap
        self.live: set[Lease] = set()  # in flight is its size; only this class changes it

    @property
    def in_flight(self) -> int:
        """How many streams are running now?"""
        return len(self.live)

    @property
    def free(self) -> int:
        """How many more may be dispatched now? Never negative."""
        return max(0, self.cap - len(self.live))

    def take(self, lease: Lease) -> None:
        """The lease's stream begins. Whether there is room is asked before, in the same step. Slotless leases are not taken."""
        self.live.add(lease)

    def give_back(self, lease: Lease) -> None:
        """The lease's stream has ended. Raises LeaseReturned the second time."""
        if not lease.live:
            raise LeaseReturned(f"lease {lease.number} was given back before")
        lease.live = False
        self.live.discard(lease)
