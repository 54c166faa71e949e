"""How much of what we sent has the peer's kernel not taken in yet?"""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios


def unacknowledged_bytes(transport: asyncio.BaseTransport) -> int:
    """Bytes in the socket's own queue, behind what the transport still holds; 0 where the kernel cannot be asked."""
    sock = transport.get_extra_info("socket")
    if sock is None:
        return 0
    try:
        return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except OSError:
        return 0
