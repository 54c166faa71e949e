"""Which files do these tests read? Examples with the secrets they name, in an environment full of words that must not show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from proxy.settings.loader import Loaded, loads
from proxy.settings.problems import Problem, SettingsError

ROOT = Path(__file__).resolve().parents[2]
FILES = Path(__file__).with_name("files")
CANARY = "sk-CANARY-7f3a"
ENVIRON = {name: f"{CANARY}-{name}" for name in ("ACME_KEY", "VLLM_KEY", "ADMIN_TOKEN", "OWN_KEY", "TEAM_TOKEN")}
# Secrets of the shipped example lie beside the other test files.
EXAMPLE = re.sub(r"/run/secrets/\w+", "cron", (ROOT / "config" / "example.yaml").read_text(), count=1).replace(
    "/run/secrets/rented", "cron"
)
EVERY_KEY = (FILES / "every_key.yaml").read_text()
SMALLEST = (ROOT / "config" / "smallest.yaml").read_text()


def read(text: str, **variables: str) -> Loaded:
    """The settings in a text, as if it lay beside the test files."""
    return loads(text.encode(), {**ENVIRON, **variables}, name="f", directory=FILES)


def problems(text: str, **variables: str) -> list[Problem]:
    """What is wrong with a text."""
    with pytest.raises(SettingsError) as raised:
        read(text, **variables)
    return raised.value.problems


def lines(text: str, **variables: str) -> list[str]:
    """The same as one reads it."""
    return [str(problem) for problem in problems(text, **variables)]


def with_smallest(more: str) -> str:
    """The smallest file, and more."""
    return f"{SMALLEST}{more}\n"
