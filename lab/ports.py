"""Is a port free, before something of ours is told to listen there?"""

from __future__ import annotations

import socket


def why_taken(port: int) -> str | None:
    """Why can nothing listen on 127.0.0.1:`port`? None: it can."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as problem:
            return problem.strerror or str(problem)
    return None
