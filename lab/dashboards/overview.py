"""Are callers served, and as fast as promised?"""

from __future__ import annotations

from lab.dashboards.panel import Dashboard, Kind, Panel, Query, When
from lab.dashboards.query import gauge, quantile, rate, ratio
from proxy.telemetry import catalogue as m

BROKEN = "~truncated|idle_timeout|total_timeout|internal"  # after the head was sent: the status says 200
IN_SERVICE_STATES = {0: ("stands by", "transparent"), 1: ("in service", "green")}

in_service = Panel(
    "Who is in service",
    "The platforms that receive a pool's new requests. Two at once: the primary is being ramped up again.",
    [m.IN_SERVICE],
    [Query(gauge(m.IN_SERVICE, ("pool", "platform"), "max"), "{{pool}}: {{platform}}")],
    kind=Kind.STATES,
    states=IN_SERVICE_STATES,
    when=When.ALWAYS,
)

errors = f"{rate(m.REQUESTS, ('pool',), code='~5.+', outcome='!cancelled')} + {rate(m.REQUESTS, ('pool',), code='200', outcome=BROKEN)}"

OVERVIEW = Dashboard(
    "fairlane-overview",
    "Fairlane / Overview",
    "Are callers served, and as fast as promised?",
    [
        Panel(
            "Requests",
            "Requests that ended, per second and lane, whatever became of them; without a lane: turned away at the door.",
            [m.REQUESTS],
            [Query(rate(m.REQUESTS, ("lane",)), "lane {{lane}}")],
            unit="reqps",
            kind=Kind.STACKED,
            width=8,
            when=When.ALWAYS,
        ),
        Panel(
            "Output tokens",
            "Tokens that backends wrote, per second and pool.",
            [m.TOKENS],
            [Query(rate(m.TOKENS, ("pool",), direction="output"), "{{pool}}")],
            unit="short",
            kind=Kind.STACKED,
            width=8,
            when=When.ALWAYS,
        ),
        Panel(
            "Error share",
            "Share of requests that ended in a status of 500 or above, or broke; not refusals (429), nor what an operator cancelled.",
            [m.REQUESTS],
            [Query(ratio(errors, rate(m.REQUESTS, ("pool",))), "{{pool}}")],
            unit="percentunit",
            width=8,
            nothing="no requests",
        ),
        Panel(
            "TTFT p95",
            "Received to first token, waiting included, with the pool's target.",
            [m.TTFT, m.SLO_TARGET],
            [
                Query(quantile(0.95, m.TTFT, ("pool", "lane")), "{{pool}} {{lane}}"),
                Query(f"{gauge(m.SLO_TARGET, ('pool',), 'max', target='ttft')} > 0", "{{pool}} target"),
            ],
            unit="s",
            width=8,
            nothing="no streamed answers",
        ),
        Panel(
            "TPOT p95",
            "Seconds per output token after the first, with the pool's target.",
            [m.TPOT, m.SLO_TARGET],
            [
                Query(quantile(0.95, m.TPOT, ("pool", "lane")), "{{pool}} {{lane}}"),
                Query(f"{gauge(m.SLO_TARGET, ('pool',), 'max', target='tpot')} > 0", "{{pool}} target"),
            ],
            unit="s",
            width=8,
            nothing="no streamed answers",
        ),
        Panel(
            "E2E p95",
            "Received to last byte of whole answers.",
            [m.CLASS_REQUEST_S],
            [Query(quantile(0.95, m.CLASS_REQUEST_S, ("pool",)), "{{pool}}")],
            unit="s",
            width=8,
            nothing="no answers",
        ),
        Panel(
            "Goodput",
            "Streamed requests per second that met every target of their SLO.",
            [m.SLO_MET],
            [Query(rate(m.SLO_MET, ("lane",)), "{{lane}}")],
            unit="reqps",
            width=8,
            when=When.ALWAYS,
        ),
        Panel(
            "SLO attainment",
            "Share of the streamed requests that met every target.",
            [m.SLO_MET, m.SLO_REQUESTS],
            [Query(ratio(rate(m.SLO_MET, ("pool", "lane")), rate(m.SLO_REQUESTS, ("pool", "lane"))), "{{pool}} {{lane}}")],
            unit="percentunit",
            width=8,
            nothing="no requests with a target",
            top=1.0,
        ),
        Panel(
            "Missed promises",
            "Requests per second that missed the SLO: first token late, tokens slow, or not answered whole.",
            [m.SLO_MISSED],
            [Query(rate(m.SLO_MISSED, ("target",)), "{{target}}")],
            unit="reqps",
            kind=Kind.STACKED,
            width=8,
            when=When.ALWAYS,
        ),
        in_service,
        Panel(
            "Fairlane's own delay, p99",
            "Its own work per request, by phase, and how late its event loop is: what every stream is delayed by.",
            [m.OVERHEAD, m.LOOP_LAG],
            [
                Query(quantile(0.99, m.OVERHEAD, ("phase",)), "{{phase}}"),
                Query(quantile(0.99, m.LOOP_LAG), "event loop"),
            ],
            unit="s",
            nothing="no requests",
        ),
    ],
)
