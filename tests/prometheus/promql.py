"""What is wrong with a query? Parses it and follows the labels through it, with the catalogue as the only source of names."""

from __future__ import annotations

from collections.abc import Mapping

import promql_parser as promql

from proxy.telemetry import catalogue

TARGET = frozenset({"job", "instance"})  # what a scrape adds
SUFFIXES = ("_bucket", "_sum", "_count")
ON_COUNTERS = ("rate", "increase", "irate")
FOREIGN: Mapping[str, tuple[str, frozenset[str]]] = {  # not ours: kind, labels
    "up": ("gauge", TARGET),
    "vllm:num_requests_waiting": ("gauge", TARGET),
    "sglang:num_queue_reqs": ("gauge", TARGET),
    "llamacpp:requests_deferred": ("gauge", TARGET),
    "tgi_queue_size": ("gauge", TARGET),
}
MACROS = {"$__rate_interval": "1m", "$__range": "1h"}


def known() -> dict[str, tuple[str, frozenset[str]]]:
    """Kind and labels of every series that Fairlane exposes, and of the few foreign ones."""
    found = dict(FOREIGN)
    for metric in catalogue.METRICS:
        labels = TARGET | set(metric.labels)
        if metric.kind == "histogram":
            found |= {metric.name + suffix: ("counter", labels | {"le"} if suffix == "_bucket" else labels) for suffix in SUFFIXES}
        else:
            found[metric.name] = (metric.kind, labels)
    return found


def plain(query: str, window: str = "1m", whole: str = "1h") -> str:
    """The query as Grafana would send it with every variable at All."""
    for macro, value in ((("$__rate_interval"), window), ("$__range", whole), ("$pool", ".*"), ("$lane", ".*"), ("$backend", ".*")):
        query = query.replace(macro, value)
    return query


class Checker:
    """Reads one query; `problems` says what is wrong with it, `labels` which labels its result has."""

    def __init__(self, query: str, series: Mapping[str, tuple[str, frozenset[str]]]) -> None:
        self.problems: list[str] = []
        self._series = series
        try:
            self.labels = self._read(promql.parse(query))
        except ValueError as error:
            self.problems.append(f"cannot be parsed: {error}")
            self.labels = frozenset()

    def _read(self, expr: promql.Expr) -> frozenset[str]:
        """The labels of what it returns."""
        if isinstance(expr, promql.VectorSelector):
            return self._select(expr, over="")
        if isinstance(expr, promql.ParenExpr | promql.UnaryExpr):
            return self._read(expr.expr)
        if isinstance(expr, promql.AggregateExpr):
            inner = self._read(expr.expr)
            return self._kept(expr.modifier.labels if expr.modifier is not None else [], inner)
        if isinstance(expr, promql.BinaryExpr):
            return self._join(expr)
        if isinstance(expr, promql.Call):
            return self._call(expr)
        return frozenset()

    def _select(self, selector: promql.VectorSelector, over: str) -> frozenset[str]:
        name = selector.name or ""
        if name not in self._series:
            self.problems.append(f"no metric {name}")
            return frozenset()
        kind, labels = self._series[name]
        if over in ON_COUNTERS and kind != "counter":
            self.problems.append(f"{over} of {name}, a {kind}")
        if over not in ON_COUNTERS and kind == "counter":
            self.problems.append(f"{name}, a counter, without rate or increase")
        self.problems += [f"{name} has no label {m.name}" for m in selector.matchers.matchers if m.name not in labels]
        return labels

    def _kept(self, by: list[str], inner: frozenset[str]) -> frozenset[str]:
        self.problems += [f"by {label}, which is not there" for label in by if label not in inner]
        return frozenset(by) & inner

    def _join(self, expr: promql.BinaryExpr) -> frozenset[str]:
        left, right = self._read(expr.lhs), self._read(expr.rhs)
        matching = expr.modifier.matching if expr.modifier is not None else None
        if _is_number(expr.lhs):
            return right
        if matching is not None:
            for label in matching.labels:
                if label not in left or label not in right:
                    self.problems.append(f"on {label}, which is not on both sides")
        elif not _is_number(expr.rhs) and left != right and str(expr.op) != "or":
            self.problems.append(f"{expr.op} joins {sorted(left)} with {sorted(right)}")
        if str(expr.op) == "/" and not _is_number(expr.rhs) and not _guarded(expr.rhs):
            self.problems.append("a denominator without a guard against zero")
        return left | right if str(expr.op) == "or" else left

    def _call(self, expr: promql.Call) -> frozenset[str]:
        labels: frozenset[str] = frozenset()
        for argument in expr.args:
            if isinstance(argument, promql.MatrixSelector):
                labels |= self._select(argument.vector_selector, over=expr.func.name)
            elif isinstance(argument, promql.Expr):
                labels |= self._read(argument)
        if expr.func.name == "histogram_quantile":
            if "le" not in labels:
                self.problems.append("histogram_quantile without le")
            return labels - {"le"}
        if "le" in labels and expr.func.name not in ON_COUNTERS:
            self.problems.append(f"{expr.func.name} of buckets")
        return labels


def _is_number(expr: promql.Expr) -> bool:
    if isinstance(expr, promql.BinaryExpr):
        return _is_number(expr.lhs) and _is_number(expr.rhs)
    return isinstance(expr, promql.NumberLiteral)


def _guarded(expr: promql.Expr) -> bool:
    while isinstance(expr, promql.ParenExpr):
        expr = expr.expr
    return isinstance(expr, promql.BinaryExpr) and str(expr.op) == ">"
