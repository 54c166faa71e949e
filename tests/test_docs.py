"""Do the documents tell the truth? Their YAML examples load, their links lead somewhere, their commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from proxy.settings.loader import load

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```yaml\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
WHOLE_FILES = [
    pytest.param(example, id=f"{page.name}-{number}")
    for page in PAGES
    for number, example in enumerate(FENCE.findall(page.read_text()))
    if "platforms:" in example and "pools:" in example
]


@pytest.mark.parametrize("example", WHOLE_FILES)
def test_an_example_is_a_file_that_loads(example: str, tmp_path: Path) -> None:
    file = tmp_path / "fairlane.yaml"
    file.write_text(example)
    assert load(file, {}).warnings == []


def test_there_are_examples() -> None:
    assert len(WHOLE_FILES) >= 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()] == []


def test_the_commands_of_the_readme_exist() -> None:
    text = (ROOT / "README.md").read_text()
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"^make (\w+)", text, re.MULTILINE)) <= set(targets)
    commands = re.findall(r"^def ([a-z]+)\(", (ROOT / "proxy" / "cli.py").read_text(), re.MULTILINE)
    assert set(re.findall(r"^fairlane (?:keys |dashboards |alerts )?([a-z]+)", text, re.MULTILINE)) <= set(commands)


def test_the_levers_of_the_runbook_are_those_of_the_admin_port() -> None:
    told = set(re.findall(r"/-/([a-z]+)", (ROOT / "docs" / "runbook-levers.md").read_text()))
    assert told == set(re.findall(r'"/-/([a-z]+)', (ROOT / "proxy" / "admin.py").read_text()))
