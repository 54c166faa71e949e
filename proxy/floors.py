"""Do we stand on versions whose holes are known? Said once, at the start: the file that installs us may not be ours."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

FLOORS = {"httptools": "0.9.0", "aiohttp": "3.14.3"}  # request smuggling and worse below; pyproject.toml asks for the same


def below(installed: Callable[[str], str] = version) -> list[str]:
    """What is older than it may be, in words."""
    found = []
    for name, floor in FLOORS.items():
        try:
            has = installed(name)
        except PackageNotFoundError:
            continue
        if _parts(has) < _parts(floor):
            found.append(f"{name} {has} has known holes: install {floor} or later")
    return found


def _parts(text: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", text)[:3]]
