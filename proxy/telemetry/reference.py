"""What does each metric mean, and what is to be done when it moves? `python -m proxy.telemetry.reference` prints docs/metrics.md."""

from __future__ import annotations

from pathlib import Path

from proxy.telemetry import catalogue, labels
from proxy.telemetry.metric import Metric

HEAD = """# Metrics

What `/metrics` on the admin port says, in Prometheus' text format. This page is printed by `python -m proxy.telemetry.reference`; change
the texts in `proxy/telemetry/catalogue.py`, not this page.

* All names begin with `fairlane_`; units are seconds, bytes, tokens and dollars. Counters end in `_total` and never fall.
* Label values come from the file and from closed lists, never from a caller: no model, key, path or user agent becomes a series.
* Every series is there from the start, at zero, so that `rate()` sees the first event. What left the file by a reload keeps its counters
  until the process ends.
* A histogram `X` has the series `X_bucket` (with the label `le`), `X_sum` and `X_count`. Targets of `slo:` that are no boundary are added
  as one, so that the share within the target is exact. A reload that changes a target begins the histograms it touches anew.
* Beside these, `process_*` (memory, processor time, descriptors) is what every Prometheus client exports.

How to see them: [observability.md](observability.md). What each alert asks of you: [runbook.md](runbook.md). Money: [cost.md](cost.md).
"""

_CLOSED = (
    ("`prompt`", ", ".join(f"`{name}`" for name in labels.PROMPT_CLASSES) + ": input tokens"),
    ("`target`", ", ".join(f"`{name}`" for name in labels.SLO_MISSES)),
    ("`outcome` of requests", ", ".join(f"`{outcome}`" for outcome in {**labels.WITHOUT_POOL, **labels.IN_POOL})),
    ("`outcome` of waits", ", ".join(f"`{ending}`" for ending in labels.WAIT_ENDINGS)),
    ("`code`", "the status that Fairlane sent, `0` if none; a backend's other statuses as their hundred: `4xx`, `5xx`"),
    ("`result`", ", ".join(f"`{result}`" for result in labels.RETRY_RESULTS)),
    ("`reason` of failovers", ", ".join(f"`{reason}`" for reason in labels.FAILOVER_REASONS)),
    ("`phase` of disconnects", ", ".join(f"`{phase}`" for phase in labels.DISCONNECT_PHASES)),
    ("`phase` of overhead", ", ".join(f"`{phase}`" for phase in labels.OVERHEAD_PHASES)),
    ("`direction`, `source`", "`input`, `output`; `usage`: the backend counted, `estimated`: Fairlane did"),
)


def reference() -> str:
    """The page, in Markdown."""
    return "".join([HEAD, *map(_section, _sections()), _closed()])


def _sections() -> list[tuple[str, list[Metric]]]:
    """The catalogue's own sections: its comments between dashes, in their order."""
    found: list[tuple[str, list[Metric]]] = []
    by_name = {name: value for name, value in vars(catalogue).items() if isinstance(value, Metric)}
    for line in Path(catalogue.__file__).read_text().splitlines():
        if line.startswith("# --- "):
            found.append((line.strip("# -"), []))
        elif (name := line.partition(" ")[0]) in by_name:
            found[-1][1].append(by_name[name])
    return found


def _section(section: tuple[str, list[Metric]]) -> str:
    title, metrics = section
    rows = ["| metric | type | labels | meaning | when it moves |", "| --- | --- | --- | --- | --- |"]
    for metric in metrics:
        labelled = " ".join(f"`{label}`" for label in metric.labels)
        rows.append(f"| `{metric.name}` | {metric.kind} | {labelled} | {_cell(metric.help)} | {_cell(metric.act)} |")
    return f"\n## {title[0].upper()}{title[1:]}\n\n" + "\n".join(rows) + "\n"


def _closed() -> str:
    rows = ["| label | values |", "| --- | --- |", *(f"| {label} | {values} |" for label, values in _CLOSED)]
    return (
        "\n## Label values\n\n`pool`, `lane`, `platform`, `backend`, `from` and `to` are names of the file; the rest are closed lists.\n\n"
        + "\n".join(rows)
        + "\n"
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(reference(), end="")
