"""What does Prometheus read? Every series, kept with the text it is printed with, in the text format 0.0.4.

A series' names and labels are spelt out once, when it is made; a scrape only prints numbers after them: 3,000 lines
take about 1 ms of the event loop. (`prometheus_client.generate_latest` spells them out at every scrape: 40 ms. The tests read
the result back with its parser.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from proxy.telemetry.metric import Metric
from proxy.telemetry.tallies import Counter, Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _named(name: str, labels: Iterable[str], values: Iterable[str]) -> str:
    pairs = ",".join(f"{label}={_quoted(value)}" for label, value in zip(labels, values, strict=True))
    return f"{name}{{{pairs}}} " if pairs else f"{name} "


def header(metric: Metric) -> str:
    """The two comment lines above a family's samples."""
    text = metric.help.replace("\\", "\\\\").replace("\n", "\\n")
    return f"# HELP {metric.name} {text}\n# TYPE {metric.name} {metric.kind}\n"


def sample(metric: Metric, values: Sequence[str], value: float) -> str:
    """One line of a gauge that is read at the scrape."""
    return f"{_named(metric.name, metric.labels, values)}{value}\n"


class _Buckets:
    """One histogram and the beginnings of its lines."""

    __slots__ = ("begins", "histogram", "metric", "values")

    def __init__(self, metric: Metric, values: tuple[str, ...]) -> None:
        self.metric = metric
        self.values = values
        self.histogram = Histogram(metric.bounds)
        self._spell()

    def _spell(self) -> None:
        name, labels = self.metric.name, self.metric.labels
        edges = [*(repr(bound) for bound in self.histogram.bounds), "+Inf"]
        self.begins = [_named(f"{name}_bucket", (*labels, "le"), (*self.values, edge)) for edge in edges]
        self.begins += [_named(f"{name}_sum", labels, self.values), _named(f"{name}_count", labels, self.values)]

    def rebound(self, bounds: tuple[float, ...]) -> None:
        if bounds != self.histogram.bounds:
            self.histogram.rebound(bounds)
            self._spell()

    def lines(self) -> Iterator[str]:
        totals = list(accumulate(self.histogram.counts))
        for begin, total in zip(self.begins, totals, strict=False):
            yield f"{begin}{total}\n"
        yield f"{self.begins[-2]}{self.histogram.sum}\n"
        yield f"{self.begins[-1]}{totals[-1]}\n"


class Book:
    """Which series are there, and what do they say now? Series are made once, kept until the process ends, and never renamed.

    A series of a pool or backend that left the file stays: what was still in flight on it is counted, and no counter falls.
    """

    def __init__(self) -> None:
        self._counters: dict[Metric, dict[tuple[str, ...], tuple[str, Counter]]] = {}
        self._histograms: dict[Metric, dict[tuple[str, ...], _Buckets]] = {}

    def counter(self, metric: Metric, *values: str) -> Counter:
        """The counter with these label values, made at zero if it is new."""
        series = self._counters.setdefault(metric, {})
        entry = series.get(values)
        if entry is None:
            entry = series[values] = (_named(metric.name, metric.labels, values), Counter())
        return entry[1]

    def histogram(self, metric: Metric, *values: str) -> Histogram:
        """The histogram with these label values, made empty if it is new."""
        series = self._histograms.setdefault(metric, {})
        buckets = series.get(values)
        if buckets is None:
            buckets = series[values] = _Buckets(metric, values)
        return buckets.histogram

    def rebound(self, metric: Metric, bounds: tuple[float, ...]) -> None:
        """Gives every series of a histogram these boundaries. Those that had others begin anew, in place."""
        for buckets in self._histograms.get(metric, {}).values():
            buckets.rebound(bounds)

    def fold(self) -> None:
        """Put what was observed into its buckets."""
        for series in self._histograms.values():
            for buckets in series.values():
                buckets.histogram.fold()

    def text(self) -> Iterator[str]:
        """The exposition, in pieces."""
        for metric, counters in self._counters.items():
            yield header(metric)
            for begin, counter in counters.values():
                yield f"{begin}{counter.n}\n"
        for metric, histograms in self._histograms.items():
            yield header(metric)
            for buckets in histograms.values():
                yield from buckets.lines()
