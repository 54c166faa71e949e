"""How do our panels become Grafana's JSON? Through the types of its Foundation SDK, so that no field is misspelt.

Written for Grafana 11.6 (the SDK's version in pyproject.toml). Variables: datasource, pool, lane, backend; nothing names a
datasource of its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import cast

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import prometheus, stat, statetimeline, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models

from lab.dashboards.panel import WIDTH, Dashboard, Kind, Panel
from lab.dashboards.query import VARIABLES
from proxy.telemetry import catalogue
from proxy.telemetry.metric import Metric

TAG = "fairlane"
SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
VALUES_OF: dict[str, Metric] = {"pool": catalogue.QUEUE_PLACES, "lane": catalogue.LANE_RANK, "backend": catalogue.MAX_STREAMS}

Built = timeseries.Panel | stat.Panel | statetimeline.Panel


def to_json(dashboard: Dashboard) -> str:
    """The file that Grafana provisions or imports."""
    built = builders.Dashboard(dashboard.title).uid(dashboard.uid).description(dashboard.about).tags([TAG])
    built.timezone("browser").time("now-1h", "now").refresh("30s").tooltip(models.DashboardCursorSync.CROSSHAIR).editable()
    built.link(
        builders.DashboardLink("Fairlane")
        .type(models.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .as_dropdown(False)
        .include_vars(True)
        .keep_time(True)
    )
    built.with_variable(builders.DatasourceVariable("datasource").label("Datasource").type("prometheus"))
    for name in VARIABLES:
        built.with_variable(_variable(name))
    for number, (panel, place) in enumerate(zip(dashboard.panels, places(dashboard.panels), strict=True), 1):
        built.with_panel(_panel(panel).id(number).grid_pos(place))
    return json.dumps(built.build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def places(panels: Sequence[Panel]) -> list[models.GridPos]:
    """Row by row, as a reader reads."""
    found: list[models.GridPos] = []
    x = y = height = 0
    for panel in panels:
        if x + panel.width > WIDTH:
            x, y, height = 0, y + height, 0
        found.append(models.GridPos(h=panel.height, w=panel.width, x=x, y=y))
        x, height = x + panel.width, max(height, panel.height)
    return found


def _variable(name: str) -> builders.QueryVariable:
    every = models.VariableOption(text="All", value="$__all", selected=True)
    return (
        builders.QueryVariable(name)
        .label(name.capitalize())
        .datasource(SOURCE)
        .query({"query": f"label_values({VALUES_OF[name].name}, {name})", "refId": name})
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(every)
    )


def _panel(panel: Panel) -> Built:
    if panel.kind is Kind.STATES:
        built: Built = statetimeline.Panel().merge_values(True).show_value(common.VisibilityMode.AUTO).mappings([_states(panel)])
    elif panel.kind is Kind.NUMBER:
        last = common_builders.ReduceDataOptions().calcs(["lastNotNull"]).values(False)
        built = stat.Panel().reduce_options(last).graph_mode(common.BigValueGraphMode.NONE)
    else:
        built = _lines(panel)
    built.title(panel.title).description(panel.description).datasource(SOURCE).unit(panel.unit).no_value(panel.nothing)
    for letter, query in zip("ABCDEF", panel.queries, strict=False):
        target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(letter).datasource(SOURCE)
        built.with_target(target.instant() if panel.kind is Kind.NUMBER else target.range())
    return built


def _lines(panel: Panel) -> timeseries.Panel:
    legend = common_builders.VizLegendOptions().display_mode(common.LegendDisplayMode.LIST).placement(common.LegendPlacement.BOTTOM)
    tooltip = common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING)
    built = timeseries.Panel().legend(legend.show_legend(True)).tooltip(tooltip).line_width(1).min(0)
    built.show_points(common.VisibilityMode.NEVER)
    if panel.top is not None:
        built.max(panel.top)
    if panel.kind is Kind.STACKED:
        built.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL).group("A")).fill_opacity(30)
    return built


def _states(panel: Panel) -> models.ValueMapping:
    options = {
        str(value): models.ValueMappingResult(text=text, color=color, index=index)
        for index, (value, (text, color)) in enumerate(panel.states.items())
    }
    return cast("models.ValueMapping", models.ValueMap(options=options))
