"""What does someone see who was sent the page alone? The verdict in sentences, the ranking, the curves, and then every number.

One file, no scripts, nothing fetched: it can be mailed, kept next to the bill, or printed.
"""

from __future__ import annotations

from html import escape
from typing import Any

from lab.bench.curves import COLOURS
from lab.bench.pictures import pictures
from lab.bench.style import STYLE
from lab.bench.tables import numbers, table
from lab.bench.terminal import dollars, fairness_line, ms, parts_of, verdict

JSON = dict[str, Any]


def page(report: JSON) -> str:
    """The whole page."""
    colours = {platform["name"]: COLOURS[n % len(COLOURS)] for n, platform in enumerate(report["platforms"])}
    names = ", ".join(colours)
    body = [
        f"<h1>Load test: {escape(names)}</h1>",
        f'<p class="soft">{escape(_when(report["at"]))}, by fairlane bench {escape(report["fairlane"].replace("unknown", ""))}</p>',
        _summary(report),
        _rankings(report) if len(colours) > 1 else "",
        *pictures(report, colours),
        *(_platform(platform) for platform in report["platforms"]),
        _drift(report.get("drift", [])),
        _method(report),
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Load test: {escape(names)}</title><style>{STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _when(at: str) -> str:
    return at.replace("T", " ").replace("+00:00", " UTC")


def _summary(report: JSON) -> str:
    """The answer first."""
    said = []
    slo = report["settings"]["slo"]
    ranked = [row for row in report["ranking"]["by_cost"] if row["place"]]
    goal = f"while 19 of 20 callers get {promise(slo)}" if slo else "with no target for latency"
    if len(report["platforms"]) > 1 and ranked:
        first, rest = ranked[0], ranked[1:]
        said.append(
            f"<strong>{escape(first['platform'])}</strong> is the cheapest {goal}: "
            f"<strong>${dollars(first['cost_per_10k_tokens'])}</strong> for 10,000 output tokens, run at {escape(first['at'])}."
        )
        said += [f"{escape(row['platform'])} costs {row['times_the_cheapest']:.2f} times that, at {escape(row['at'])}." for row in rest]
    for platform in report["platforms"]:
        name = f"<strong>{escape(platform['name'])}</strong>"
        step = next((step for step in platform["steps"] if step["label"] == platform["best"]), None)
        if step is None:
            said.append(f"{name} {'keeps the targets at no load that was tried' if slo else 'answered nothing'}.")
            continue
        cost = step.get("cost_per_10k_tokens_slo" if slo else "cost_per_10k_tokens")
        paid = f", ${dollars(cost)} for 10,000 tokens" if cost is not None and len(report["platforms"]) == 1 else ""
        rate = f"{step['goodput_rps']:.2f} good requests/s" if slo else f"{step['throughput_rps']:.2f} requests/s"
        ttft, tpot = (ms(step[key]["p95"] if step[key] else None) for key in ("ttft_s", "tpot_s"))
        said.append(
            f"{name} does best at {escape(step['label'])}: {rate}, {step['output_tokens_per_s']:.0f} tokens/s{paid}; "
            f"of 20 callers, 19 had their first token within {ttft} and then one every {tpot} or faster."
        )
    notes = "".join(f'<p class="note small">{escape(warning)}</p>' for warning in report["warnings"])
    return f'<div class="verdict">{"".join(f"<p>{line}</p>" for line in said)}{notes}</div>'


def promise(slo: JSON) -> str:
    """The targets, to somebody who has not heard of TTFT."""
    parts = []
    if slo["ttft_s"] is not None:
        parts.append(f"their first token within {ms(slo['ttft_s'])}")
    if slo["tpot_s"] is not None:
        parts.append(f"a token every {ms(slo['tpot_s'])} or faster")
    return " and then ".join(parts)


def targets(slo: JSON) -> str:
    parts = [f"{name} {ms(slo[key])}" for name, key in (("TTFT", "ttft_s"), ("TPOT", "tpot_s")) if slo[key] is not None]
    return " and ".join(parts)


def _rankings(report: JSON) -> str:
    ranking = report["ranking"]
    rows = [
        [
            str(row["place"] or "-"),
            row["platform"],
            row["at"] or "-",
            dollars(row["cost_per_10k_tokens"]),
            f"{row['times_the_cheapest']:.2f}" if row["times_the_cheapest"] else row["why_not"],
        ]
        for row in ranking["by_cost"]
    ]
    weights = {name: value for name, value in ranking["weights"].items() if name != "name"}
    scores = [
        [
            str(row["place"]),
            row["platform"],
            row["at"] or "keeps the targets at no step",
            f"{row['score']:.3f}",
            *(f"{row[name]:.2f}" if name in row else "-" for name in weights),
        ]
        for row in ranking["by_weights"]
    ]
    spelt = ", ".join(f"{name} {value:g}" for name, value in weights.items())
    under = " under the targets" if report["settings"]["slo"] else ""
    return (
        f"<h2>Ranking</h2><h3>By cost per token{under}</h3>"
        + table(["", "platform", "best at", "$ per 10,000 tokens", "times the cheapest"], rows, text=(1, 2))
        + f"<h3>By weight: {escape(ranking['weights']['name'])}</h3>"
        + table(["", "platform", "best at", "score", *weights], scores, text=(1, 2))
        + f'<p class="soft small">Score: {escape(spelt)}. On each count the best platform has 1 and the others their part of it; '
        "latency is the mean of TTFT p95 and TPOT p95.</p>"
    )


def _platform(platform: JSON) -> str:
    lines = "".join(f"<p>{_with_code(line)}</p>" for line in verdict(platform))
    out = [
        f"<h2>{escape(platform['name'])}</h2><p class='soft small'>{escape(platform['url'])}, model {escape(platform['model'])}</p>{lines}"
    ]
    out.append(numbers(["load"], [([step["label"]], step) for step in platform["steps"]], platform["best"]))
    for heading, head, rows in parts_of(platform["steps"]):
        fair = [(step["label"], step["fairness"]) for step in platform["steps"] if step.get("fairness")] if head == "lane" else []
        said = "".join(f"<p class='small'>At {escape(at)}: {escape(fairness_line(fairness))}</p>" for at, fairness in fair)
        out.append(f"<h3>{heading}</h3>{numbers(['load', head], rows)}{said}")
    return "".join(out)


def _with_code(line: str) -> str:
    before, found, after = line.partition("max_streams: ")
    return f"{escape(before)}<code>{found}{escape(after)}</code>" if found else escape(line)


def _drift(rows: list[JSON]) -> str:
    if not rows:
        return ""
    cells = [
        [
            "FAILED" if row["failed"] else "ok",
            row["platform"],
            row["step"],
            row["condition"],
            *(f"{row[key]:.4g}" if row[key] is not None else "-" for key in ("baseline", "now")),
        ]
        for row in rows
    ]
    return "<h2>Against the baseline</h2>" + table(["", "platform", "step", "fails if", "baseline", "now"], cells, text=(1, 2, 3))


def _method(report: JSON) -> str:
    """How it was measured, for who doubts it."""
    settings = report["settings"]
    lanes = ", ".join(f"{name} {part:.0%}" for name, part in settings["lanes"].items())
    facts = {
        "prompts": f"{settings['prompt_tokens']} tokens, every one different from its first word on",
        "answers": f"{settings['output_tokens']} tokens",
        **(
            {"arrivals": settings["arrivals"]}
            if any(s["load"]["concurrency"] is None for p in report["platforms"] for s in p["steps"])
            else {}
        ),
        **({"lanes": lanes} if lanes else {}),
        "each step": f"{settings['duration_s']:g} s"
        + (f", {settings['rounds']} rounds, medians of them" if settings["rounds"] > 1 else ""),
        "targets": targets(settings["slo"]) if settings["slo"] else "none",
        "seed": str(settings["seed"]),
    }
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())
    words = (
        ("TTFT", "from the intended start of a request to its first token, network included."),
        ("TPOT", "(last token - first token) / (output tokens - 1), per request."),
        ("p95", "19 of 20 requests were at least as fast."),
        ("Goodput", "requests per second that met every target; requests without an answer met none."),
        ("Knee", "the load after which p95 at least doubles from one step to the next."),
        ("Under the targets", "what was spent, divided among the tokens of those requests alone that met the targets."),
    )
    meanings = "".join(f"<dt>{name}</dt><dd>{escape(meaning)}</dd>" for name, meaning in words)
    return f"<h2>How it was measured</h2><dl>{items}</dl><h3>Words</h3><dl>{meanings}</dl>"
