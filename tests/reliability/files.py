"""Which files do the cases run under?"""

from __future__ import annotations

from tests.proxy.serving import TWO_LANES
from tests.wire import ScriptedBackend


def one(backend: ScriptedBackend, cap: int = 4, more: str = "", pool: str = "", keys: str = TWO_LANES) -> str:
    """One backend, asked once: what it does is what the caller gets."""
    return (
        keys
        + f'platforms: {{p: {{probe: none, {more} backends: {{b: {{url: "{backend.url}", max_streams: {cap}}}}}}}}}\n'
        + f"pools: {{main: {{primary: p, retries: {{attempts: 1}}{pool}}}}}\n"
    )


def two(primary: ScriptedBackend, standby: ScriptedBackend, cap: int = 8, pool: str = "", more: str = "") -> str:
    """A primary and a standby."""
    return (
        TWO_LANES
        + f'platforms:\n  p: {{probe: none, {more} backends: {{b: {{url: "{primary.url}", max_streams: {cap}}}}}}}\n'
        + f'  s: {{probe: none, backends: {{c: {{url: "{standby.url}", max_streams: {cap}}}}}}}\n'
        + f"pools: {{main: {{primary: p, standby: s{pool}}}}}\n"
    )
