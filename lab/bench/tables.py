"""How do numbers stand in the page? Tables that fit its width: latencies in one, rates and money in the next."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from lab.bench.terminal import dollars, lateness, milliseconds, outcomes, share

JSON = dict[str, Any]
Row = tuple[list[str], JSON]
QUANTILES = ("p50", "p95", "p99")


def numbers(heads: list[str], rows: Sequence[Row], best: str | None = None) -> str:
    """Every number of these parts of a run; the row that begins with `best` is set off."""
    return _latency(heads, rows, best) + _use(heads, rows, best)


def _latency(heads: list[str], rows: Sequence[Row], best: str | None) -> str:
    groups = [("", len(heads) + 1), *((f"{name}, ms", 4) for name in ("TTFT", "TPOT", "whole answer"))]
    columns = [*heads, "answered", *(q for _ in range(3) for q in (*QUANTILES, "p99/p50"))]
    body = []
    for lead, figures in rows:
        cells = [*lead, f"{figures['requests']['answered']}/{figures['requests']['offered']}"]
        for key in ("ttft_s", "tpot_s", "e2e_s"):
            found = figures[key] or {}
            cells += [milliseconds(found.get(q)) for q in QUANTILES]
            cells.append(f"{found['p99_over_p50']:.1f}" if found.get("p99_over_p50") else "-")
        body.append(cells)
    return table(columns, body, text=tuple(range(len(heads))), groups=groups, best=best)


def _use(heads: list[str], rows: Sequence[Row], best: str | None) -> str:
    with_slo = any("slo_kept" in figures for _, figures in rows)
    priced = any(figures.get("cost_per_10k_tokens") is not None for _, figures in rows)
    columns = [*heads, "in flight", "tokens/s", "requests/s", *(["good/s", "targets met"] if with_slo else [])]
    if priced:
        columns += ["$/10k", *(["$/10k under targets"] if with_slo else [])]
    client = any("client" in figures for _, figures in rows)
    columns += ["not answered", *(["client late"] if client else [])]
    body = []
    for lead, figures in rows:
        cells = [*lead, f"{figures['in_flight_mean']:.1f}", f"{figures['output_tokens_per_s']:.0f}", f"{figures['throughput_rps']:.2f}"]
        if with_slo:
            cells += [f"{figures['goodput_rps']:.2f}", share(figures["slo_attainment"]) + (" \u2713" if figures["slo_kept"] else "")]
        if priced:
            cells += [dollars(figures.get(key)) for key in ("cost_per_10k_tokens", *(["cost_per_10k_tokens_slo"] if with_slo else []))]
        cells.append(outcomes(figures["requests"]))
        if client:
            cells.append(lateness(figures["client"]))
        body.append(cells)
    return table(columns, body, text=tuple(range(len(heads))), best=best)


def table(
    heads: list[str],
    rows: Sequence[list[str]],
    text: tuple[int, ...] = (),
    groups: Sequence[tuple[str, int]] = (),
    best: str | None = None,
) -> str:
    """Cells as they are. `text`: columns set to the left; `groups`: names above so many columns each."""
    kinds = [" class='text'" if n in text else "" for n in range(len(heads))]
    above = "".join(f"<th colspan='{span}'>{escape(name)}</th>" for name, span in groups)
    head = "".join(f"<th{kind}>{escape(name)}</th>" for name, kind in zip(heads, kinds, strict=True))
    out = ["<div class='scroll'><table><thead>", f"<tr class='groups'>{above}</tr>" if groups else "", f"<tr>{head}</tr></thead><tbody>"]
    for row in rows:
        cells = "".join(f"<td{kind}>{escape(cell)}</td>" for cell, kind in zip(row, kinds, strict=True))
        out.append(f"<tr{' class=best' if best is not None and row[0] == best else ''}>{cells}</tr>")
    return "".join([*out, "</tbody></table></div>"])
