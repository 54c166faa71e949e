"""Are the dashboards what the catalogue says, and can their queries mean what they should? Rungs 1 to 3 of the proof."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.telemetry import catalogue
from proxy.telemetry.metric import Metric
from tests.prometheus.promql import Checker, known, plain

pytest.importorskip("grafana_foundation_sdk", reason="needs the extra dashboards")

from grafana_foundation_sdk.models.dashboard import Dashboard as GrafanaDashboard

from lab.dashboards import query
from lab.dashboards.grafana import places
from lab.dashboards.panel import WIDTH, Dashboard, Panel
from lab.dashboards.write import DASHBOARDS, FOLDER, SIDECAR_LABEL, files

SERIES = known()
PANELS = [pytest.param(panel, id=f"{dashboard.uid}-{panel.title}") for dashboard in DASHBOARDS for panel in dashboard.panels]
EACH_PANEL = pytest.mark.parametrize("panel", PANELS)
EACH_FILE = pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)


# --- rung 1: generated ---


def test_the_files_are_what_the_script_writes() -> None:
    stale = [name for name, text in files().items() if not (FOLDER / name).exists() or (FOLDER / name).read_text() != text]
    assert stale == [], "run: python -m lab.dashboards.write"
    assert {path.name for path in FOLDER.glob("*.json")} == {name for name in files() if name.endswith(".json")}


# --- rung 2: Grafana's own types ---


@EACH_FILE
def test_grafanas_types_read_the_file_back(path: Path) -> None:
    shown = json.loads(path.read_text())
    read = GrafanaDashboard.from_json(shown)
    assert (read.uid, read.title, read.schema_version) == (shown["uid"], shown["title"], 41)  # 41: Grafana 11.6
    assert read.panels is not None and len(read.panels) == len(shown["panels"])


@EACH_FILE
def test_the_habits_of_users_are_kept(path: Path) -> None:
    shown = json.loads(path.read_text())
    assert [variable["name"] for variable in shown["templating"]["list"]] == ["datasource", "pool", "lane", "backend"]
    assert shown["uid"].startswith("fairlane-") and shown["uid"] == path.stem
    assert shown["links"][0]["tags"] == ["fairlane"] and "fairlane" in shown["tags"]
    assert {source["uid"] for source in _sources(shown)} == {"${datasource}"}
    for panel in shown["panels"]:
        assert panel["fieldConfig"]["defaults"]["noValue"], panel["title"]
        assert panel["description"].rsplit(" ", 1)[1] in {metric.name for metric in catalogue.METRICS}, panel["title"]
        for target in panel["targets"]:
            assert "rate(" not in target["expr"] or "[$__rate_interval]" in target["expr"] or "[24h]" in target["expr"]


def _sources(shown: Any) -> list[dict[str, str]]:
    """Every datasource that is named anywhere."""
    if isinstance(shown, list):
        return [found for each in shown for found in _sources(each)]
    if isinstance(shown, dict):
        own = [shown["datasource"]] if isinstance(shown.get("datasource"), dict) else []
        return own + [found for each in shown.values() for found in _sources(each)]
    return []


def test_the_variables_ask_for_labels_that_exist() -> None:
    for name, metric in _variables().items():
        assert name in metric.labels and name in query.VARIABLES


def _variables() -> dict[str, Metric]:
    from lab.dashboards.grafana import VALUES_OF

    return VALUES_OF


def test_the_config_map_holds_the_dashboards_under_the_sidecars_label() -> None:
    document = yaml.safe_load((FOLDER / "configmap.yaml").read_text())
    assert (document["kind"], document["metadata"]["labels"][SIDECAR_LABEL]) == ("ConfigMap", "1")
    assert document["data"] == {path.name: path.read_text() for path in FOLDER.glob("*.json")}


def test_provisioning_is_yaml_that_names_no_other_source() -> None:
    source = yaml.safe_load((FOLDER / "provisioning" / "datasources" / "prometheus.yaml").read_text())
    provider = yaml.safe_load((FOLDER / "provisioning" / "dashboards" / "fairlane.yaml").read_text())
    assert [each["type"] for each in source["datasources"]] == ["prometheus"]
    assert provider["providers"][0]["options"]["path"]


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.uid)
def test_no_two_panels_lie_upon_one_another(dashboard: Dashboard) -> None:
    taken: set[tuple[int, int]] = set()
    for place in places(dashboard.panels):
        cells = {(x, y) for x in range(place.x, place.x + place.w) for y in range(place.y, place.y + place.h)}
        assert not cells & taken and place.x + place.w <= WIDTH
        taken |= cells
    assert len({panel.title for panel in dashboard.panels}) == len(dashboard.panels)


# --- rung 3: every query parsed ---


@EACH_PANEL
def test_every_query_uses_metrics_and_labels_that_exist(panel: Panel) -> None:
    for each in panel.queries:
        checked = Checker(plain(each.expr), SERIES)
        assert checked.problems == [], each.expr
        named = {word.strip("{}") for word in each.legend.replace(":", " ").replace("(", " ").replace(")", " ").split() if word[0] == "{"}
        assert named <= checked.labels, f"{each.legend} names what {each.expr} does not return"


@EACH_PANEL
def test_the_description_names_what_is_shown(panel: Panel) -> None:
    queries = " ".join(each.expr for each in panel.queries)
    assert panel.queries and all(metric.name in queries for metric in panel.metrics)
    assert set(_names(queries)) == {metric.name for metric in panel.metrics}


def _names(text: str) -> list[str]:
    return [re.sub("_(bucket|count|sum)$", "", name) for name in re.findall(r"fairlane_\w+", text)]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("sum(rate(fairlane_request_total[1m]))", "no metric"),
        ("sum by (team) (rate(fairlane_requests_total[1m]))", "by team"),
        ('fairlane_queue_waiting{team="a"}', "no label team"),
        ("sum(rate(fairlane_queue_waiting[1m]))", "a gauge"),
        ("sum(fairlane_requests_total)", "without rate"),
        ("histogram_quantile(0.95, sum by (lane) (rate(fairlane_ttft_seconds_bucket[1m])))", "without le"),
        ("sum(fairlane_queue_waiting) / sum(fairlane_queue_places)", "without a guard"),
        ("fairlane_queue_waiting / (fairlane_queue_places > 0)", "joins"),
        ("sum by (pool) (fairlane_queue_waiting", "cannot be parsed"),
    ],
)
def test_a_bad_query_is_found(bad: str, said: str) -> None:
    assert any(said in problem for problem in Checker(bad, SERIES).problems)


def test_a_query_cannot_be_written_with_a_wrong_label_or_kind() -> None:
    with pytest.raises(ValueError, match="no label lane"):
        query.rate(catalogue.COST, ("lane",))
    with pytest.raises(ValueError, match="no label team"):
        query.gauge(catalogue.QUEUE_WAITING, team="a")
    with pytest.raises(ValueError, match="is a gauge"):
        query.rate(catalogue.QUEUE_WAITING)
