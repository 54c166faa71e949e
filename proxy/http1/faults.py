"""What can go wrong on the wire, in which phase, and whose fault is it?"""

from __future__ import annotations

import enum


class CallerFault(enum.Enum):
    """What a caller did wrong on the wire. `status` is what it is told; framing is in doubt, so the connection closes."""

    MALFORMED = 400
    TARGET_TOO_LONG = 414
    BODY_TOO_LARGE = 413
    HEAD_TOO_LARGE = 431
    SLOW = 408
    EXPECTATION = 417
    UPGRADE = 501

    @property
    def status(self) -> int:
        """The status of the answer."""
        return self.value


class BackendFault(enum.Enum):
    """What a backend's connection did wrong. The attempt decides what that means."""

    REFUSED = "refused"  # nobody listens
    UNREACHABLE = "unreachable"  # no route, no name, TLS failed
    CONNECT_TIMEOUT = "connect_timeout"
    STALE = "stale"  # a kept connection that had closed before the backend can have read the request
    RESET = "reset"  # closed or reset within the answer, or before it
    PROTOCOL = "protocol"  # what came is not an answer


class ConnectFailed(Exception):
    """No connection to the backend."""

    def __init__(self, fault: BackendFault, detail: str = "") -> None:
        super().__init__(f"{fault.value}: {detail}" if detail else fault.value)
        self.fault = fault
