"""What does the report look like on a terminal? Tables on stdout, in the order one asks: the verdict, then why."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.table import Table

JSON = dict[str, Any]


def show(report: JSON) -> None:
    """The whole of it."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)
    for platform in report["platforms"]:
        console.print(_latency(platform))
        console.print(_use(platform, report["settings"]["slo"] is not None))
        for line in verdict(platform):
            console.print(f"  {line}")
        for heading, head, rows in parts_of(platform["steps"]):
            console.print(_parts(f"{platform['name']}, {heading.lower()}", head, rows))
        for step in platform["steps"]:
            if step.get("fairness"):
                console.print(f"  At {step['label']}: {fairness_line(step['fairness'])}")
        console.print()
    if len(report["platforms"]) > 1:
        console.print(_by_cost(report["ranking"]["by_cost"]))
        console.print(_by_weights(report["ranking"]))
    if report.get("drift"):
        console.print(_drift(report["drift"]))
    for warning in report["warnings"]:
        console.print(f"[bold]Note[/bold]  {warning}")


def verdict(platform: JSON) -> list[str]:
    """In sentences: the floor, the knee, and what to write into the file."""
    floor = platform["floor"]
    said = []
    if floor["first_byte_s"]:
        tls = f", TLS {ms(floor['tls_s']['p50'])}" if floor["tls_s"] else ""
        said.append(
            f"Floor, without any generation: connect {ms(floor['connect_s']['p50'])}{tls}, first byte {ms(floor['first_byte_s']['p50'])} "
            f"(p50 of {floor['connections']} connections)."
        )
    for knee in platform["knee"].values():
        if knee:
            said.append(
                f"Knee at {knee['at']}: {knee['metric'].upper()} p95 is {ms(knee['p95_s'])} there and {ms(knee['next_p95_s'])} "
                f"at {knee['next']} ({knee['ratio']:.1f}x)."
            )
    found = platform["find_max"]
    if found is not None:
        if found["max_streams"] is None:
            said.append("Not even one stream at a time keeps the SLO at p95: this platform does not fit it, whatever the cap.")
        else:
            rate = f"{found['rate_rps']:g} requests/s arriving at random" if found["rate_rps"] else "no rate of random arrivals"
            said.append(f"The SLO is kept at p95 with {found['concurrency']} streams at once, and at {rate}.")
            said.append(f"Write into the file, for this backend:  max_streams: {found['max_streams']}")
    return said


def fairness_line(fairness: JSON) -> str:
    """Who got what, in one sentence."""
    parts = ", ".join(f"{name} {share(ratio)}" for name, ratio in fairness["answered_ratio"].items())
    of_answers = ", ".join(f"{name} {share(part)}" for name, part in fairness["share_of_answers"].items())
    ratio = f"; TTFT p95 differs {fairness['ttft_p95_ratio']:.1f}x" if fairness["ttft_p95_ratio"] else ""
    index = f" (Jain's index {fairness['jain_index']:.3f})" if fairness["jain_index"] is not None else ""
    return f"Fairness: answered of what each asked: {parts}{index}; of all answers: {of_answers}{ratio}."


def _latency(platform: JSON) -> Table:
    table = Table(title=f"{platform['name']}   {platform['url']}   {platform['model']}   (milliseconds)", title_justify="left")
    table.add_column("load")
    for head in ("answered", *(f"{name} p50|p95|p99|p99/p50" for name in ("TTFT", "TPOT", "E2E"))):
        for column in head.split("|"):
            table.add_column(column, justify="right")
    for step in platform["steps"]:
        row = [step["label"], f"{step['requests']['answered']}/{step['requests']['offered']}"]
        for name in ("ttft_s", "tpot_s", "e2e_s"):
            figures = step[name]
            ratio = figures["p99_over_p50"] if figures else None
            row += [*_latencies(figures), f"{ratio:.1f}" if ratio else "-"]
        table.add_row(*row, style="bold" if step["label"] == platform["best"] else None)
    return table


def _use(platform: JSON, with_slo: bool) -> Table:
    table = Table()
    table.add_column("load")
    heads = ["in flight", "tokens/s", "requests/s"]
    priced = platform["price"] is not None
    heads += ["goodput/s", "SLO met"] if with_slo else []
    heads += ["$/10k tokens"] if priced else []
    heads += ["$/10k under SLO"] if priced and with_slo else []
    for head in [*heads, "not answered", "client late p99"]:
        table.add_column(head, justify="right")
    for step in platform["steps"]:
        row = [step["label"], f"{step['in_flight_mean']:.1f}", f"{step['output_tokens_per_s']:.0f}", f"{step['throughput_rps']:.2f}"]
        if with_slo:
            row += [f"{step['goodput_rps']:.2f}", share(step["slo_attainment"])]
        if priced:
            row.append(dollars(step["cost_per_10k_tokens"]))
        if priced and with_slo:
            row.append(dollars(step["cost_per_10k_tokens_slo"]))
        row += [outcomes(step["requests"]), lateness(step["client"])]
        table.add_row(*row, style="bold" if step["label"] == platform["best"] else None)
    return table


def lateness(client: JSON) -> str:
    """How late was the client itself, at p99: with starting requests, or with timers and so with stamping tokens? `!`: too late."""
    p99 = max(client[key]["p99"] for key in ("late_s", "loop_late_s") if client[key]) if client["late_s"] or client["loop_late_s"] else None
    return ms(p99) + (" !" if client["lagged"] else "")


def outcomes(requests: JSON) -> str:
    """The requests without an answer, by reason."""
    return ", ".join(f"{count} {kind}" for group in ("refused", "failed") for kind, count in requests[group].items()) or "0"


def parts_of(steps: list[JSON]) -> list[tuple[str, str, list[tuple[list[str], JSON]]]]:
    """The steps' parts, kind by kind: a heading, what a part is, and rows of (load, part) with their figures."""
    by_lane = [([step["label"], name], figures) for step in steps for name, figures in (step.get("lanes") or {}).items()]
    by_length = [([step["label"], name], figures) for step in steps for name, figures in (step.get("by_prompt_tokens") or {}).items()]
    by_time = [
        ([step["label"], f"{window['from_s']:.0f} to {window['to_s']:.0f} s"], window)
        for step in steps
        for window in step.get("windows") or ()
    ]
    found = (("By lane", "lane", by_lane), ("By length of prompt", "prompt tokens", by_length), ("By time", "window", by_time))
    return [(heading, head, rows) for heading, head, rows in found if rows]


def _parts(title: str, head: str, rows: list[tuple[list[str], JSON]]) -> Table:
    table = Table(title=f"{title}   (milliseconds)", title_justify="left")
    table.add_column("load")
    table.add_column(head)
    for column in ("answered", "TTFT p50", "p95", "p99", "TPOT p50", "p95", "p99", "tokens/s", "req/s", "SLO met", "not answered"):
        table.add_column(column, justify="right")
    for lead, figures in rows:
        requests = figures["requests"]
        rates = (f"{figures['output_tokens_per_s']:.0f}", f"{figures['throughput_rps']:.2f}", share(figures.get("slo_attainment")))
        latencies = (*_latencies(figures["ttft_s"]), *_latencies(figures["tpot_s"]))
        table.add_row(*lead, f"{requests['answered']}/{requests['offered']}", *latencies, *rates, outcomes(requests))
    return table


def _by_cost(rows: list[JSON]) -> Table:
    table = Table(title="By cost per token under the SLO", title_justify="left")
    for column in ("", "platform", "at", "$/10,000 tokens", "times the cheapest"):
        table.add_column(column, justify="left" if column in ("platform", "at") else "right")
    for row in rows:
        times = f"{row['times_the_cheapest']:.2f}" if row["times_the_cheapest"] else row["why_not"]
        table.add_row(str(row["place"] or "-"), row["platform"], row["at"] or "-", dollars(row["cost_per_10k_tokens"]), times)
    return table


def _by_weights(ranking: JSON) -> Table:
    weights = {name: value for name, value in ranking["weights"].items() if name != "name"}
    spelt = ", ".join(f"{name} {value:g}" for name, value in weights.items())
    table = Table(title=f"By weight, {ranking['weights']['name']} ({spelt})", title_justify="left")
    for column in ("", "platform", "at", "score", *weights):
        table.add_column(column, justify="left" if column in ("platform", "at") else "right")
    for row in ranking["by_weights"]:
        parts = [f"{row[name]:.2f}" if name in row else "-" for name in weights]
        table.add_row(str(row["place"]), row["platform"], row["at"] or "keeps the SLO at no step", f"{row['score']:.3f}", *parts)
    return table


def _drift(rows: list[JSON]) -> Table:
    table = Table(title="Against the baseline", title_justify="left")
    for column in ("", "platform", "step", "condition", "baseline", "now"):
        table.add_column(column, justify="right" if column in ("baseline", "now") else "left")
    for row in rows:
        values = [f"{row[key]:.4g}" if row[key] is not None else "-" for key in ("baseline", "now")]
        table.add_row("FAILED" if row["failed"] else "ok", row["platform"], row["step"], row["condition"], *values)
    return table


def _latencies(figures: JSON | None) -> list[str]:
    return [milliseconds(figures[key] if figures else None) for key in ("p50", "p95", "p99")]


def milliseconds(seconds: float | None) -> str:
    """A latency in a column of milliseconds."""
    return "-" if seconds is None else f"{seconds * 1000:,.{0 if seconds >= 0.1 else 1}f}"


def ms(seconds: float | None) -> str:
    """A latency as one reads it in a sentence."""
    if seconds is None:
        return "-"
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1000:.{0 if seconds >= 0.01 else 1}f} ms"


def share(value: float | None) -> str:
    """A part of the whole."""
    return "-" if value is None else f"{value:.1%}" if value < 0.9995 else "100%"


def dollars(value: float | None) -> str:
    """Small amounts with their figures."""
    return "-" if value is None else f"{value:.3g}" if value < 0.1 else f"{value:.3f}"
