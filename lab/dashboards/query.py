"""How is a query over the catalogue written so that no metric and no label in it can be wrong?

Each function takes metrics of `proxy.telemetry.catalogue`, never names, and refuses labels that a metric does not have. Every
selector is narrowed by the dashboards' variables; every denominator is guarded, and a quantile of nothing is nothing, not NaN: a
comparison drops what is NaN.
"""

from __future__ import annotations

from collections.abc import Sequence

from proxy.telemetry.metric import Metric

VARIABLES = ("pool", "lane", "backend")
RATE_WINDOW = "$__rate_interval"


def selector(metric: Metric, suffix: str = "", **having: str) -> str:
    """The metric's series under the dashboards' variables. A value that begins with ~ or ! is matched by =~ or !=."""
    _known(metric, having)
    matchers = [f'{label}=~"${label}"' for label in VARIABLES if label in metric.labels and label not in having]
    for label, value in having.items():
        sign, text = (("=~" if value[0] == "~" else "!="), value[1:]) if value[:1] in ("~", "!") else ("=", value)
        matchers.append(f'{label}{sign}"{text}"')
    return f"{metric.name}{suffix}{{{', '.join(matchers)}}}" if matchers else f"{metric.name}{suffix}"


def gauge(metric: Metric, by: Sequence[str] = (), how: str = "sum", **having: str) -> str:
    """A gauge over all replicas: their sum, or whatever `how` says."""
    _of_kind(metric, "gauge")
    _known(metric, by)
    return f"{how}{_by(by)} ({selector(metric, **having)})"


def rate(metric: Metric, by: Sequence[str] = (), window: str = RATE_WINDOW, **having: str) -> str:
    """How much per second."""
    return _over("rate", metric, by, window, having)


def increase(metric: Metric, by: Sequence[str] = (), window: str = RATE_WINDOW, **having: str) -> str:
    """How much within the window."""
    return _over("increase", metric, by, window, having)


def quantile(q: float, metric: Metric, by: Sequence[str] = (), window: str = RATE_WINDOW, **having: str) -> str:
    """The value below which the share `q` lies."""
    _of_kind(metric, "histogram")
    _known(metric, by)
    return f"histogram_quantile({q}, sum{_by(('le', *by))} (rate({selector(metric, '_bucket', **having)}[{window}]))) >= 0"


def ratio(part: str, whole: str, on: Sequence[str] | None = None) -> str:
    """The quotient of two queries with the same labels, where the second is not zero. `on`: the whole has these labels alone."""
    matching = "" if on is None else f" on ({', '.join(on)}) group_left ()"
    return f"({part}) /{matching} ({whole} > 0)"


def _over(function: str, metric: Metric, by: Sequence[str], window: str, having: dict[str, str]) -> str:
    suffix = ""
    if metric.kind == "histogram":
        suffix = "_count"
    else:
        _of_kind(metric, "counter")
    _known(metric, by)
    return f"sum{_by(by)} ({function}({selector(metric, suffix, **having)}[{window}]))"


def _by(labels: Sequence[str]) -> str:
    return f" by ({', '.join(labels)})" if labels else ""


def _of_kind(metric: Metric, kind: str) -> None:
    if metric.kind != kind:
        raise ValueError(f"{metric.name} is a {metric.kind}, not a {kind}")


def _known(metric: Metric, labels: Sequence[str] | dict[str, str]) -> None:
    unknown = [label for label in labels if label not in metric.labels]
    if unknown:
        raise ValueError(f"{metric.name} has no label {', '.join(unknown)}; it has {', '.join(metric.labels) or 'none'}")
