"""Do the rules hold, and does each alert fire in the scenario made for it and stay quiet in others? Rung 5 of the proof."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from shutil import which
from typing import Any

import pytest
import yaml

from tests.prometheus.promql import Checker, known

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "config" / "prometheus"
HERE = Path(__file__).parent
RUNBOOK = ROOT / "docs" / "runbook.md"
PROMTOOL = pytest.mark.skipif(which("promtool") is None, reason="needs promtool: apt-get install prometheus")
NOT_YET = {"SharesDegraded"}  # shares of replicas are not built
ASKED_FOR = {
    *("NoHealthyBackend", "RunningOnStandby", "FailoverFlapping", "QueueSaturated", "QueueWaitHigh", "FastLaneShedding"),
    *("SlowLaneStarved", "BackendAtCap", "LoadAboveCapacity", "HighErrorRate", "TTFTSLOBurn", "LatencyDrift", "ConfigReloadFailed"),
    *(
        "LoopLag",
        "TargetDown",
        "BackendRefusesUs",
        "StandbySmokeFailed",
        "StandbySpending",
        "TrafficVanished",
        "EngineQueues",
        "TailUnstable",
    ),
}


def rules(name: str) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load((RULES / name).read_text())["groups"] for rule in group["rules"]]


ALERTS = rules("fairlane-alerts.yaml")
RECORDS = rules("fairlane-records.yaml")


def with_records() -> dict[str, tuple[str, frozenset[str]]]:
    """What a rule may ask for: what is exposed, and what is recorded."""
    series = known()
    for record in RECORDS:
        series[record["record"]] = ("gauge", Checker(record["expr"], series).labels)
    return series


SERIES = with_records()


@pytest.mark.parametrize("rule", [*RECORDS, *ALERTS], ids=lambda rule: rule.get("record") or rule["alert"])
def test_every_rule_uses_metrics_and_labels_that_exist(rule: dict[str, Any]) -> None:
    checked = Checker(rule["expr"], SERIES)
    assert checked.problems == []
    if "record" in rule:  # level:metric:operation
        assert set(rule["record"].split(":")[0].split("_")) == checked.labels
    else:
        shown = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        assert shown <= checked.labels


def test_every_alert_that_can_be_is_there() -> None:
    assert {rule["alert"] for rule in ALERTS} == ASKED_FOR
    assert not ASKED_FOR & NOT_YET


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_each_alert_leads_to_its_place_in_the_runbook(rule: dict[str, Any]) -> None:
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert ROOT / page == RUNBOOK and anchor == rule["alert"].lower()
    sections = re.split(r"^## ", RUNBOOK.read_text(), flags=re.MULTILINE)
    (section,) = [each for each in sections if each.startswith(f"{rule['alert']}\n")]
    assert all(word in section for word in ("**Means.**", "**Look.**", "**Do.**"))
    assert rule["labels"]["severity"] in ("critical", "warning", "info")


def test_each_alert_is_tested_firing_and_quiet() -> None:
    names = [test["name"] for path in HERE.glob("*.test.yaml") for test in yaml.safe_load(path.read_text())["tests"]]
    for rule in ALERTS:
        for how in ("fires", "quiet"):
            assert any(name.startswith(f"{rule['alert']} {how}: ") for name in names), f"{rule['alert']} is never seen {how}"


@PROMTOOL
def test_promtool_accepts_the_rules_and_the_configuration() -> None:
    done = subprocess.run(["promtool", "check", "config", str(RULES / "prometheus.yaml")], capture_output=True, text=True)
    assert done.returncode == 0 and "FAILED" not in done.stdout + done.stderr, done.stdout + done.stderr
    done = subprocess.run(
        ["promtool", "check", "rules", "--lint=all", "--lint-fatal", *map(str, RULES.glob("fairlane-*.yaml"))],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@PROMTOOL
@pytest.mark.parametrize("path", sorted(HERE.glob("*.test.yaml")), ids=lambda path: path.name)
def test_each_alert_fires_in_its_scenario_and_is_quiet_in_the_others(path: Path) -> None:
    done = subprocess.run(["promtool", "test", "rules", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@PROMTOOL
def test_a_rule_that_always_or_never_fires_is_found(tmp_path: Path) -> None:
    """The guard is seen failing: with the threshold of one alert gone, its quiet scenario fails; with the alert gone, its firing one."""
    tests = yaml.safe_load((HERE / "alerts.test.yaml").read_text())
    tests["tests"] = [test for test in tests["tests"] if test["name"].startswith("LoadAboveCapacity ")]
    rules = (RULES / "fairlane-alerts.yaml").read_text()
    for threshold in ("> 0.1", "> 9"):
        (tmp_path / "rules.yaml").write_text(rules.replace("fairlane_load_ratio > 0.9", f"fairlane_load_ratio {threshold}"))
        tests["rule_files"] = [str(tmp_path / "rules.yaml")]
        (tmp_path / "tests.yaml").write_text(yaml.safe_dump(tests))
        assert subprocess.run(["promtool", "test", "rules", str(tmp_path / "tests.yaml")], capture_output=True).returncode == 1
