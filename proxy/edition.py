"""What does one reading of the file come to? The frozen end that requests run on; a reload puts another in its place."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from policies.model import Plan
from policies.routing import Router
from proxy.http1.client import KeptConnections
from proxy.http1.exchange import Limits
from proxy.http1.heads import UpstreamHeads
from proxy.intake import Reception

MOST_HOPS = 32
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Backend:
    """One endpoint as the corridor needs it. `messages_heads`: under `/v1/messages`, where the key goes by another name."""

    name: str
    platform: str
    loop: asyncio.AbstractEventLoop
    connections: KeptConnections
    heads: UpstreamHeads
    messages_heads: UpstreamHeads
    has_own_credential: bool
    address: str  # what makes it this backend and no other
    names: Mapping[str, str] | None = None  # our model names: its own
    takes_priority: bool = False  # orders its own queue by the lane's number
    takes_flags: bool = True  # is told by flags that the last message is to be continued


@dataclass(frozen=True, slots=True)
class Pool:
    """One pool as a request needs it."""

    name: str
    model: str | None  # asked of the platforms; None: the caller's
    connect_s: float
    first_token_s: float
    idle_s: float
    total_s: float
    fields: Sequence[bytes]  # `x-fairlane-lane` and `-pool`, per lane
    continues: bool = False  # a stream that breaks may be continued by another backend
    hedges: bool = False  # a late first token is asked of an idle backend as well


@dataclass(frozen=True, slots=True)
class Edition:
    """One file, ready to serve."""

    plan: Plan
    reception: Reception
    router: Router
    pools: Mapping[str, Pool]
    backends: Mapping[str, Backend]
    limits: Limits
    models: Mapping[str, Sequence[str]]  # names of the catalogue, and the pools each leads to
    expose: bool
    trusted_proxies: Sequence[Network] = field(default=())

    def caller_address(self, peer: str, fields: Iterable[tuple[bytes, bytes]]) -> str:
        """Where does the caller sit? Behind trusted proxies: the right-most hop of `X-Forwarded-For` that is none of them."""
        if not self.trusts(peer):
            return peer
        hops = ",".join(value.decode("latin-1") for name, value in fields if name == b"x-forwarded-for").split(",")
        for hop in reversed(hops[-MOST_HOPS:]):
            try:
                peer = str(ipaddress.ip_address(hop.strip().partition("%")[0]))
            except ValueError:
                break  # what stands left of garbage is garbage
            if not self.trusts(peer):
                break
        return peer

    def trusts(self, peer: str) -> bool:
        """Is what this peer says of its own callers believed?"""
        if not self.trusted_proxies:
            return False
        try:
            address = ipaddress.ip_address(peer)
        except ValueError:
            return False
        return any(address in network for network in self.trusted_proxies)
