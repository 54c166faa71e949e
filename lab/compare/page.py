"""What does a run look like in docs/performance.md? Tables between markers; all around them is written by hand and stays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from lab.compare.bounds import Verdict, verdicts
from lab.compare.contestants import SUBJECT
from lab.compare.result import Result, Row
from lab.compare.works import WORKS, Work

COMPARISON, MEMORY = "comparison", "memory"


def markers(part: str) -> tuple[str, str]:
    """The lines around a part that is generated."""
    return f"<!-- {part}: written by `make bench` -->", f"<!-- end of the {part} -->"


def write(page: Path, part: str, table: str) -> None:
    """Put a table into its part of the page. ValueError: the part's markers are not there, once each and in order."""
    first, last = markers(part)
    before, begin, rest = page.read_text().partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end or first in rest or last in after:
        raise ValueError(f"{page}: the table goes between the lines {first} and {last}; write each once, in this order")
    page.write_text(f"{before}{first}\n\n{table}\n\n{last}{after}")


def table(result: Result) -> str:
    """The whole of what is generated."""
    return "\n".join(_lines(result))


def _lines(result: Result) -> Iterator[str]:
    versions = ", ".join(f"{name} {version}".strip() for name, version in result.versions.items())
    yield f"{result.date}, {result.machine}. Medians of {result.rounds} {_plural('round', result.rounds)} of {result.seconds} s."
    yield f"{versions}."
    for name, why in result.left_out.items():
        yield f"{name} was left out: {why.replace(' | ', ' ')}."
    yield ""
    yield "| work | figure | measured | bound | aim | met |"
    yield "| --- | --- | ---: | ---: | ---: | --- |"
    for verdict in verdicts(result):
        yield _promise(verdict)
    for name, found in result.works.items():
        yield ""
        yield from _work(WORKS[name], found)


def _promise(verdict: Verdict) -> str:
    met = {True: "yes", False: "**no**", None: "not measured"}[verdict.met]
    cells = [verdict.work, verdict.figure, _number(verdict.measured), _bound(verdict.bound), _bound(verdict.aim), met]
    return f"| {' | '.join(cells)} |"


def _work(work: Work, found: Mapping[str, Row]) -> Iterator[str]:
    yield f"**{work.name}**: {work.says}"
    yield ""
    if work.streams:
        columns = {"delay_p50_us": "delay p50, us", "delay_p99_us": "delay p99, us", "ttft_p99_us": "TTFT p99, ms"}
        columns["kib_per_stream"] = "KiB per stream"
    else:
        columns = {"p99_us": "p99, ms"}
    heads = ["", f"us per {work.unit}", f"{SUBJECT} / this", f"{work.unit}s/s", *columns.values(), "MiB", "bad"]
    yield f"| {' | '.join(heads)} |"
    yield f"| --- |{' ---: |' * (len(heads) - 1)}"
    for name, row in found.items():
        figures = [_number(_scaled(row, key)) for key in columns]
        ratio = "" if name == SUBJECT else _number(row.ratio)
        cells = [name, _number(row.figure("us")), ratio, f"{row.figure('per_s') or 0:,.0f}", *figures]
        yield f"| {' | '.join([*cells, _number(row.figure('rss_mib')), str(row.bad)])} |"


def _scaled(row: Row, key: str) -> float | None:
    value = row.figure(key)
    return value / 1000 if value is not None and key in ("p99_us", "ttft_p99_us") else value


def _number(value: float | int | None) -> str:
    """With as many digits as mean something."""
    if value is None or isinstance(value, int):
        return "" if value is None else str(value)
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}" if abs(value) < 100 else f"{value:,.0f}"


def _bound(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"
