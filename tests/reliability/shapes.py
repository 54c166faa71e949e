"""Which files do the cases use, and how is time made shorter? Small files in the order of the catalogue's words."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

import pytest

from policies.health import HealthRules
from tests.proxy.serving import TWO_LANES


def platform(name: str, *urls: str, cap: int = 8, more: str = "probe: none,") -> str:
    """One platform; its backends are named NAME-1, NAME-2 and so on."""
    listed = ", ".join(f'"{url}"' for url in urls)
    return f"  {name}: {{{more} max_streams: {cap}, backends: [{listed}]}}\n"


def pools(*bodies: str) -> str:
    return "pools:\n" + "".join(f"  {body}\n" for body in bodies)


def alone(*urls: str, cap: int = 8, more: str = "probe: none,", pool: str = "") -> str:
    """One platform, p, in one pool, main."""
    return TWO_LANES + "platforms:\n" + platform("p", *urls, cap=cap, more=more) + pools(f"main: {{primary: p{pool}}}")


def backed(
    first: str | Sequence[str], second: str, *, cap: int = 8, more: str = "probe: none,", behind: str = "probe: none,", pool: str = ""
) -> str:
    """A primary p and a standby s in one pool, main."""
    urls = [first] if isinstance(first, str) else first
    both = platform("p", *urls, cap=cap, more=more) + platform("s", second, cap=cap, more=behind)
    return TWO_LANES + "platforms:\n" + both + pools(f"main: {{primary: p, standby: s{pool}}}")


def hurry(monkeypatch: pytest.MonkeyPatch, **rules: Any) -> None:
    """Backends are judged by these rules instead of the defaults: the same machine on a shorter clock."""
    monkeypatch.setattr("policies.dispatcher.migration.HealthRules", functools.partial(HealthRules, **rules))


def events(log: str) -> list[str]:
    """The names of the process log's events, in order."""
    return re.findall(r'"event":"(\w+)"', log)
