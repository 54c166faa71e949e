"""T20: what do we stand on? Exact versions, the hashes of their files, none below its floor, licences that may be passed on."""

from __future__ import annotations

import re
from importlib.metadata import metadata, requires
from pathlib import Path

from proxy import floors

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements.lock"


def _pinned() -> dict[str, str]:
    lines = [line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    return {name.lower().replace("_", "-"): text for name, text in lines}


def _locked() -> dict[str, tuple[str, int]]:
    """Each package of the lock file: its version, and how many hashes stand beside it."""
    entries = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)[^\n]*\n((?:    --hash=sha256:[0-9a-f]{64}[^\n]*\n?)*)", LOCK.read_text(), re.MULTILINE)
    return {name: (text, hashes.count("--hash")) for name, text, hashes in entries}


def _needed(name: str, found: set[str]) -> set[str]:
    """What this distribution needs to run here, and what that needs."""
    for line in requires(name) or ():
        needed = re.match(r"[A-Za-z0-9._-]+", line)
        assert needed is not None
        other = needed[0].lower().replace("_", "-")
        if "extra ==" in line or "python_version" in line or "sys_platform" in line or "platform_" in line or other in found:
            continue
        found.add(other)
        _needed(other, found)
    return found


def test_t20_what_we_stand_on_is_pinned_and_not_below_its_floors() -> None:
    pinned = _pinned()
    project = (ROOT / "pyproject.toml").read_text()
    for name, floor in {**floors.FLOORS, "h11": "0.16.0"}.items():
        assert [int(part) for part in pinned[name].split(".")] >= [int(part) for part in floor.split(".")], name
    for name, floor in floors.FLOORS.items():
        assert f'"{name}>={floor}"' in project
    assert floors.below() == []
    assert floors.below(lambda name: "3.9.1") == ["aiohttp 3.9.1 has known holes: install 3.14.3 or later"]


def test_t20_all_that_runs_is_locked_with_hashes_and_under_a_licence_that_may_be_passed_on() -> None:
    pinned, locked = _pinned(), _locked()
    project = re.search(r"^dependencies = \[(.*?)\]", (ROOT / "pyproject.toml").read_text(), re.DOTALL | re.MULTILINE)
    assert project is not None
    runtime: set[str] = set()
    for name in re.findall(r'"([A-Za-z0-9-]+)', project[1]):
        runtime |= {name.lower()} | _needed(name, set())
    assert len(runtime) > 15 and runtime <= locked.keys(), f"make lock: {sorted(runtime - locked.keys())}"
    assert all(hashes for _, hashes in locked.values())
    assert LOCK.read_text().count("--hash=") == sum(hashes for _, hashes in locked.values())
    assert {name: text for name, (text, _) in locked.items() if pinned.get(name, text) != text} == {}, "make lock"
    for name in runtime:
        about = metadata(name)
        said = " ".join(each for field in ("License-Expression", "License", "Classifier") for each in about.get_all(field) or ())
        assert re.search(r"\b(MIT|BSD|Apache|PSF|Python Software Foundation|ISC)\b", said), f"{name}: {said[:200]}"
