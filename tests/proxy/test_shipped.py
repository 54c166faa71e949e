"""Do those who installed a package get the dashboards, the rules and the runbook?"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from proxy.shipped.export import ALERTS, DASHBOARDS, export
from tests.proxy.test_cli import ROOT, fairlane

PAGES = {"runbook.md", "runbook-levers.md"}


def test_what_is_exported_is_what_is_in_config(tmp_path: Path) -> None:
    written = {str(path.relative_to(tmp_path)) for path in export(tmp_path, DASHBOARDS, "runbook.md")}
    there = {str(path.relative_to(ROOT / "config")) for part in ("grafana", "prometheus") for path in (ROOT / "config" / part).rglob("*.*")}
    assert written == there | PAGES
    for name in sorted(there - {"prometheus/fairlane-alerts.yaml"}):
        assert (tmp_path / name).read_text() == (ROOT / "config" / name).read_text()
    assert all((tmp_path / page).read_text() == (ROOT / "docs" / page).read_text() for page in PAGES)


def test_alerts_lead_to_the_runbook_that_was_named(tmp_path: Path) -> None:
    export(tmp_path, ALERTS, "https://wiki.example/fairlane")
    assert {path.name for path in tmp_path.iterdir()} == {"prometheus", *PAGES}
    groups = yaml.safe_load((tmp_path / "prometheus" / "fairlane-alerts.yaml").read_text())["groups"]
    urls = [rule["annotations"]["runbook_url"] for group in groups for rule in group["rules"]]
    assert all(url.startswith("https://wiki.example/fairlane#") for url in urls)


def test_the_commands_say_what_they_wrote(tmp_path: Path) -> None:
    done = fairlane("dashboards", "export", str(tmp_path / "a"))
    assert done.returncode == 0 and str(tmp_path / "a" / "grafana" / "fairlane-overview.json") in done.stdout.splitlines()
    done = fairlane("alerts", "export", str(tmp_path / "b"), "--json")
    assert len(json.loads(done.stdout)["written"]) == 5
    assert "runbook_url: runbook.md#targetdown" in (tmp_path / "b" / "prometheus" / "fairlane-alerts.yaml").read_text()


def test_where_nothing_can_be_written_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = fairlane("dashboards", "export", str(tmp_path / "file"))
    assert done.returncode == 1 and "cannot write" in done.stderr and done.stdout == ""


@pytest.mark.soak
def test_a_wheel_holds_them(tmp_path: Path) -> None:
    """Built as pip does, unpacked, and asked with nothing of the checkout in sight."""
    for name in ("policies", "proxy", "lab", "config", "docs"):
        shutil.copytree(ROOT / name, tmp_path / "source" / name, symlinks=True)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / "source")
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(tmp_path / "source")], check=True)
    (wheel,) = tmp_path.glob("fairlane-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        assert not [name for name in packed.namelist() if name.startswith(("config/", "tests/", "docs/"))]
        packed.extractall(tmp_path / "installed")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "proxy", "dashboards", "export", str(tmp_path / "out")],
        env={"PYTHONPATH": str(tmp_path / "installed")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    there = {str(path.relative_to(ROOT / "config")) for part in ("grafana", "prometheus") for path in (ROOT / "config" / part).rglob("*.*")}
    assert {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.*") if path.is_file()} == there | PAGES
