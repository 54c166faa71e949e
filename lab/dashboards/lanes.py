"""Who is waiting, behind what, since when, and who was turned away?"""

from __future__ import annotations

from lab.dashboards.panel import Dashboard, Kind, Panel, Query, When
from lab.dashboards.query import gauge, quantile, rate, ratio
from proxy.telemetry import catalogue as m

REFUSED = "~queue_full|queue_timeout|displaced|rate_limited|quota_exhausted|no_backend|draining"
dispatched = rate(m.QUEUE_WAIT, ("lane",), outcome="dispatched")
all_dispatched = rate(m.QUEUE_WAIT, outcome="dispatched", lane="~.*")

LANES = Dashboard(
    "fairlane-lanes",
    "Fairlane / Lanes and queues",
    "Who is waiting, behind what, since when, and who was turned away?",
    [
        Panel(
            "Waiting",
            "Requests that wait, by lane.",
            [m.QUEUE_WAITING],
            [Query(gauge(m.QUEUE_WAITING, ("pool", "lane")), "{{pool}} {{lane}}")],
            kind=Kind.STACKED,
            width=8,
            when=When.ALWAYS,
        ),
        Panel(
            "Oldest wait",
            "How long the one who has waited longest has waited, with the longest its lane allows.",
            [m.QUEUE_OLDEST, m.QUEUE_MAX_WAIT],
            [
                Query(gauge(m.QUEUE_OLDEST, ("pool", "lane"), "max"), "{{pool}} {{lane}}"),
                Query(gauge(m.QUEUE_MAX_WAIT, ("pool", "lane"), "max"), "{{pool}} {{lane}} max"),
            ],
            unit="s",
            width=8,
            when=When.ALWAYS,
        ),
        Panel(
            "Places used",
            "Share of a pool's places to wait that are taken.",
            [m.QUEUE_WAITING, m.QUEUE_PLACES],
            [Query(ratio(gauge(m.QUEUE_WAITING, ("pool",), lane="~.*"), gauge(m.QUEUE_PLACES, ("pool",))), "{{pool}}")],
            unit="percentunit",
            width=8,
            when=When.ALWAYS,
            nothing="no places",
            top=1.0,
        ),
        *(
            Panel(
                f"Queue wait {name}",
                "How long those waited whose wait has ended, by lane and by how it ended.",
                [m.QUEUE_WAIT],
                [Query(quantile(q, m.QUEUE_WAIT, ("lane", "outcome")), "{{lane}} {{outcome}}")],
                unit="s",
                width=8,
                nothing="no requests",
            )
            for name, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
        ),
        Panel(
            "Refusals",
            "Requests per second that were turned away, by lane and reason.",
            [m.REQUESTS],
            [Query(f"{rate(m.REQUESTS, ('lane', 'outcome'), outcome=REFUSED)} > 0", "{{lane}} {{outcome}}")],
            unit="reqps",
            kind=Kind.STACKED,
            when=When.OVERLOAD,
            nothing="nobody refused",
        ),
        Panel(
            "Dispatches by lane",
            "Each lane's share of what was dispatched, with the share it is guaranteed while it waits.",
            [m.QUEUE_WAIT, m.LANE_SHARE],
            [
                Query(ratio(dispatched, all_dispatched, on=()), "{{lane}}"),
                Query(f"{gauge(m.LANE_SHARE, ('lane',), 'max')} > 0", "{{lane}} guaranteed"),
            ],
            unit="percentunit",
            nothing="no requests",
            top=1.0,
        ),
        Panel(
            "Callers that left",
            "Callers per second that left before their answer was whole, by what they were waiting for.",
            [m.DISCONNECTS],
            [Query(rate(m.DISCONNECTS, ("phase",)), "{{phase}}")],
            unit="reqps",
            kind=Kind.STACKED,
            when=When.ALWAYS,
        ),
        Panel(
            "Callers that try again",
            "Requests per second that the caller's SDK says it had tried before: how much of the load is an echo.",
            [m.CLIENT_RETRIES],
            [Query(rate(m.CLIENT_RETRIES, ("pool",)), "{{pool}}")],
            unit="reqps",
            when=When.ALWAYS,
        ),
    ],
)
