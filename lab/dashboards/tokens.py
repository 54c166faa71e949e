"""What is produced, from what kind of traffic, and what does it cost while it is fast enough?"""

from __future__ import annotations

from lab.dashboards.panel import Dashboard, Kind, Panel, Query, When
from lab.dashboards.query import increase, quantile, rate, ratio
from proxy.telemetry import catalogue as m

PER = 10_000  # tokens
spent = rate(m.COST, ("pool", "platform"))

TOKENS = Dashboard(
    "fairlane-tokens",
    "Fairlane / Tokens and cost",
    "What is produced, from what kind of traffic, and what does it cost while it is fast enough?",
    [
        Panel(
            "Tokens",
            "Tokens per second, read and written, by platform and by who counted them.",
            [m.TOKENS],
            [Query(f"{rate(m.TOKENS, ('direction', 'platform', 'source'))} > 0", "{{platform}} {{direction}} ({{source}})")],
            kind=Kind.STACKED,
            nothing="no tokens",
        ),
        Panel(
            "Prompt length",
            "Input tokens per request.",
            [m.PROMPT],
            [
                Query(quantile(0.5, m.PROMPT, ("pool",)), "{{pool}} p50"),
                Query(quantile(0.95, m.PROMPT, ("pool",)), "{{pool}} p95"),
            ],
            nothing="no requests",
        ),
        Panel(
            "Answers by prompt length",
            "Whole answers per second, by input tokens: shows when the traffic shifts.",
            [m.CLASS_REQUEST_S],
            [Query(rate(m.CLASS_REQUEST_S, ("prompt",)), "{{prompt}}")],
            unit="reqps",
            kind=Kind.STACKED,
            width=8,
            when=When.ALWAYS,
        ),
        Panel(
            "TTFT p95 by prompt length",
            "If every class is slower, it is the queue or the backends; if none is, but the sum, it is the traffic.",
            [m.CLASS_TTFT],
            [Query(quantile(0.95, m.CLASS_TTFT, ("prompt",)), "{{prompt}}")],
            unit="s",
            width=8,
            nothing="no streamed answers",
        ),
        Panel(
            "Streamed share",
            "Share of a pool's requests that asked for a stream.",
            [m.STREAMED, m.REQUESTS],
            [Query(ratio(rate(m.STREAMED, ("pool",)), rate(m.REQUESTS, ("pool",))), "{{pool}}")],
            unit="percentunit",
            width=8,
            nothing="no requests",
            top=1.0,
        ),
        Panel(
            "Dollars per hour",
            "What is being spent, by platform: rented hours run while idle and while failing.",
            [m.COST],
            [Query(f"{rate(m.COST, ('platform',))} * 3600", "{{platform}}")],
            unit="currencyUSD",
            width=8,
            when=When.ALWAYS,
        ),
        Panel(
            f"Cost per {PER:,} tokens",
            "Dollars spent / output tokens, by platform, whatever became of the requests.",
            [m.COST, m.TOKENS],
            [
                Query(
                    f"{PER} * {ratio(spent, rate(m.TOKENS, ('pool', 'platform'), direction='output', lane='~.*'))}",
                    "{{pool}} {{platform}}",
                )
            ],
            unit="currencyUSD",
            width=8,
            nothing="no tokens",
        ),
        Panel(
            f"Cost per {PER:,} tokens under the SLO",
            "Dollars spent / output tokens of requests that met TTFT and TPOT: the number to compare platforms by.",
            [m.COST, m.SLO_TOKENS],
            [Query(f"{PER} * {ratio(spent, rate(m.SLO_TOKENS, ('pool', 'platform')))}", "{{pool}} {{platform}}")],
            unit="currencyUSD",
            width=8,
            nothing="no tokens under the SLO",
        ),
        Panel(
            "Spent in the time shown",
            "Dollars, by platform, over the dashboard's range.",
            [m.COST],
            [Query(increase(m.COST, ("platform",), "$__range"), "{{platform}}")],
            unit="currencyUSD",
            kind=Kind.NUMBER,
            when=When.ALWAYS,
        ),
        Panel(
            "TTFT p99 / p50 over 24 h",
            "How far the slow ones are from the usual: above 2.5 for long, the service is unsteady.",
            [m.TTFT],
            [
                Query(ratio(quantile(0.99, m.TTFT, ("pool",), "24h"), quantile(0.5, m.TTFT, ("pool",), "24h")), "{{pool}}"),
            ],
            nothing="no streamed answers",
        ),
    ],
)
