"""Which backends answer, are they well, and is there room?"""

from __future__ import annotations

from dataclasses import replace

from lab.dashboards.overview import in_service
from lab.dashboards.panel import Dashboard, Kind, Panel, Query, When
from lab.dashboards.query import gauge, increase, quantile, rate
from proxy.telemetry import catalogue as m

STATES = {0: ("healthy", "green"), 1: ("probing", "yellow"), 2: ("ejected", "red"), 3: ("drained", "blue")}

# What a pool could use: the caps of the platforms that serve it.
caps = (
    f"sum by (pool) ({gauge(m.IN_SERVICE, ('pool', 'platform'), 'max')}"
    f" * on (platform) group_left () {gauge(m.MAX_STREAMS, ('platform',), backend='~.*')})"
)

BACKENDS = Dashboard(
    "fairlane-backends",
    "Fairlane / Backends and failover",
    "Which backends answer, are they well, and is there room?",
    [
        Panel(
            "In flight against the cap",
            "Streams at each backend, with its cap.",
            [m.STREAMS, m.MAX_STREAMS],
            [
                Query(gauge(m.STREAMS, ("backend",)), "{{backend}}"),
                Query(gauge(m.MAX_STREAMS, ("backend",)), "{{backend}} cap"),
            ],
            when=When.ALWAYS,
        ),
        Panel(
            "Needed streams against the cap",
            "Little's law over 5 minutes: arrivals per second x mean time a slot is held, with the caps of the platform in service.",
            [m.NEEDED_STREAMS, m.MAX_STREAMS, m.IN_SERVICE],
            [Query(gauge(m.NEEDED_STREAMS, ("pool",)), "{{pool}} needs"), Query(caps, "{{pool}} has")],
            when=When.ALWAYS,
        ),
        Panel(
            "State of backends",
            "Healthy, probing, ejected, or drained by hand.",
            [m.BACKEND_STATE],
            [Query(gauge(m.BACKEND_STATE, ("backend",), "max"), "{{backend}}")],
            kind=Kind.STATES,
            states=STATES,
            when=When.ALWAYS,
        ),
        replace(in_service, title="Platform in service"),
        Panel(
            "Failovers",
            "Changes of the platform that serves a pool, and why.",
            [m.FAILOVERS],
            [
                Query(
                    f"{increase(m.FAILOVERS, ('pool', 'from', 'to', 'reason'))} > 0",
                    "{{pool}}: {{from}} to {{to}} ({{reason}})",
                )
            ],
            when=When.FAILURE,
            nothing="none",
        ),
        Panel(
            "Attempts by outcome",
            "Tries at each backend per second, by how they ended.",
            [m.ATTEMPTS],
            [Query(f"{rate(m.ATTEMPTS, ('backend', 'outcome'))} > 0", "{{backend}} {{outcome}}")],
            unit="reqps",
            kind=Kind.STACKED,
            nothing="no attempts",
        ),
        Panel(
            "Backend TTFT p95",
            "Request sent to the backend to its first token: without the queue.",
            [m.BACKEND_TTFT],
            [Query(quantile(0.95, m.BACKEND_TTFT, ("backend",)), "{{backend}}")],
            unit="s",
            width=8,
            nothing="no streamed answers",
        ),
        Panel(
            "ITL p95",
            "Gaps between two streamed pieces.",
            [m.ITL],
            [Query(quantile(0.95, m.ITL, ("backend",)), "{{backend}}")],
            unit="s",
            width=8,
            nothing="no streamed answers",
        ),
        Panel(
            "Retries",
            "Tries after the first, per second: ok and failed were sent; denied were due and had nowhere to go, or no time.",
            [m.RETRIES],
            [Query(rate(m.RETRIES, ("pool", "result")), "{{pool}} {{result}}")],
            unit="reqps",
            width=8,
            when=When.ALWAYS,
        ),
    ],
)
