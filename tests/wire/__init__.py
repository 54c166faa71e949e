"""What drives a proxy byte by byte? A scripted backend behind it and a raw client before it, on plain sockets."""

from tests.wire import scripts
from tests.wire.backend import Blackhole, Connection, Exchange, ScriptedBackend, Seen
from tests.wire.client import Head, RawClient, Response, WireError
from tests.wire.messages import EVIL, HEAD, JS, NEXT, A, J, ev, post
from tests.wire.patience import eventually, in_one_of, measured_in_one_of

__all__ = [
    "EVIL",
    "HEAD",
    "JS",
    "NEXT",
    "A",
    "Blackhole",
    "Connection",
    "Exchange",
    "Head",
    "J",
    "RawClient",
    "Response",
    "ScriptedBackend",
    "Seen",
    "WireError",
    "ev",
    "eventually",
    "in_one_of",
    "measured_in_one_of",
    "post",
    "scripts",
]
