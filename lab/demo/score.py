"""What did each lane get? Counts calls as they end, and shows them."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table

from lab.demo.caller import Call, Got
from lab.demo.metrics import Metrics


class Score:
    """The calls of one part of the demo."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def lane(self, name: str) -> list[Call]:
        return [call for call in self.calls if call.lane == name]

    def failed(self) -> list[Call]:
        return [call for call in self.calls if call.got is Got.FAILURE]

    def unserved(self) -> list[Call]:
        return [call for call in self.calls if call.got is not Got.ANSWER]

    def span_s(self) -> float:
        """From the first call to the last ending."""
        return max((call.ended_at or call.sent_at for call in self.calls), default=0.0) - min(
            (call.sent_at for call in self.calls), default=0.0
        )

    def report(self, lanes: Sequence[str]) -> dict[str, dict[str, object]]:
        return {name: summary(self.lane(name)) for name in lanes}


def summary(calls: Sequence[Call]) -> dict[str, object]:
    """One lane in numbers; times in seconds, as its callers saw them."""
    counts = Counter(call.got for call in calls)
    waits = sorted(call.ttft_s for call in calls if call.got is Got.ANSWER and call.ttft_s is not None)
    return {
        "sent": len(calls),
        "answered": counts[Got.ANSWER],
        "refused": dict(Counter(call.why for call in calls if call.got is Got.REFUSAL)),
        "failed": counts[Got.FAILURE],
        "ttft_p50_s": quantile(waits, 50),
        "ttft_p95_s": quantile(waits, 95),
        "tokens_out": sum(call.tokens_out for call in calls),
    }


def quantile(ordered: Sequence[float], percent: int) -> float | None:
    """Of sorted values; None where there is none."""
    if len(ordered) < 2:
        return ordered[0] if ordered else None
    return statistics.quantiles(ordered, n=100, method="inclusive")[percent - 1]


def picture(title: str, score: Score, lanes: Sequence[str], fairlane: Metrics, engines_waiting: float) -> RenderableType:
    """Both views side by side: what callers got, and what Fairlane says it is doing."""
    table = Table(title=title, title_justify="left")
    for heading in ("lane", "sent", "answered", "refused", "failed", "TTFT p50", "TTFT p95", "waiting", "in flight"):
        table.add_column(heading, justify="left" if heading == "lane" else "right")
    for name in lanes:
        calls = score.lane(name)
        counts = summary(calls)
        waiting = fairlane.sum("fairlane_queue_waiting", lane=name)
        unended = sum(call.got is None or call.ended_at is None for call in calls)
        refused = sum(call.got is Got.REFUSAL for call in calls)
        row = (name, counts["sent"], counts["answered"], refused, counts["failed"])
        ttft = (_seconds(counts["ttft_p50_s"]), _seconds(counts["ttft_p95_s"]))
        table.add_row(*map(str, row), *ttft, f"{waiting:.0f}", f"{max(0.0, unended - waiting):.0f}")
    return Group(table, _backends(fairlane, engines_waiting))


def _backends(fairlane: Metrics, engines_waiting: float) -> Table:
    table = Table(caption=f"waiting inside the engines, highest seen: {engines_waiting:.0f}", caption_justify="left")
    for heading in ("platform", "in service", "backend", "state", "streams", "cap"):
        table.add_column(heading, justify="right" if heading in ("streams", "cap") else "left")
    states = {0: "healthy", 1: "probing", 2: "ejected", 3: "drained"}
    in_service = fairlane.platforms_in_service()
    for labels, streams in fairlane.series("fairlane_backend_streams"):
        cap = fairlane.sum("fairlane_backend_max_streams", **labels)
        state = states.get(int(fairlane.sum("fairlane_backend_state", **labels)), "?")
        serving = "yes" if labels["platform"] in in_service else ""
        table.add_row(labels["platform"], serving, labels["backend"], state, f"{streams:.0f}", f"{cap:.0f}")
    return table


def _seconds(value: object) -> str:
    return f"{value:.2f} s" if isinstance(value, float) else "-"
