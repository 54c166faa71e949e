"""Is every metric of the contract there from the start, and does it say what happened?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from policies.dispatcher import Dispatcher
from policies.dispatcher.state import BackendState, LaneState, PlatformState, PoolState, State
from policies.failover import FailedBack, FailedOver
from policies.health import HealthState
from policies.model import BackendPlan, LanePlan, Lease, Outcome, Plan, PlatformPlan, PoolPlan
from proxy.telemetry import catalogue, labels
from proxy.telemetry.access_log import line
from proxy.telemetry.events import ProcessLog
from proxy.telemetry.inventory import Inventory
from proxy.telemetry.log_writer import LogWriter, open_sink
from proxy.telemetry.record import Record
from proxy.telemetry.spend import Price
from proxy.telemetry.telemetry import ENDED_MAX, Telemetry
from proxy.telemetry.view import checks, document

# Section 6 of the contract, and every label of it.
CONTRACT = {
    "requests_total": "pool lane outcome code",
    "request_seconds": "pool lane",
    "ttft_seconds": "pool lane",
    "tpot_seconds": "pool lane",
    "backend_ttft_seconds": "backend",
    "itl_seconds": "backend",
    "backend_connect_seconds": "backend",
    "queue_wait_seconds": "pool lane outcome",
    "queue_waiting": "pool lane",
    "queue_oldest_seconds": "pool lane",
    "queue_places": "pool",
    "backend_streams": "backend platform",
    "backend_max_streams": "backend platform",
    "backend_state": "backend platform",
    "platform_in_service": "pool platform",
    "failovers_total": "pool from to reason",
    "attempts_total": "backend outcome",
    "retries_total": "pool result",
    "arrival_rate": "pool",
    "generation_seconds": "pool",
    "needed_streams": "pool",
    "tokens_total": "pool lane platform direction source",
    "slo_tokens_total": "pool platform",
    "prompt_tokens": "pool",
    "disconnects_total": "phase",
    "slo_requests_total": "pool lane",
    "slo_met_total": "pool lane",
    "cost_dollars_total": "pool platform",
    "overhead_seconds": "phase",
    "config_last_reload_successful": "",
    "config_last_reload_timestamp_seconds": "",
    "build_info": "version python",
    "log_lines_dropped_total": "",
    # beyond the contract
    "prompt_class_ttft_seconds": "pool prompt",
    "prompt_class_request_seconds": "pool prompt",
    "slo_missed_total": "pool lane target",
    "slo_target_seconds": "pool target",
    "streamed_requests_total": "pool lane",
    "loop_lag_seconds": "",
    "lane_rank": "lane",
    "lane_share_ratio": "lane",
    "platform_standby": "pool platform",
    "queue_max_wait_seconds": "pool lane",
}

GAUGES_IN_SECONDS = (
    "queue_oldest_seconds",
    "queue_max_wait_seconds",
    "generation_seconds",
    "slo_target_seconds",
    "config_last_reload_timestamp_seconds",
)

CHAT = PoolPlan("chat", ("own", "rented"), slo_ttft_s=1.0)
BATCH = PoolPlan("batch", ("rented",))
OWN = PlatformPlan("own", (BackendPlan("own-1", 16), BackendPlan("own-2", 16)))
RENTED = PlatformPlan("rented", (BackendPlan("api", 40),))
LANES = (LanePlan("fast"), LanePlan("slow", share=Fraction(1, 10)))
PLAN = Plan(LANES, (OWN, RENTED), (CHAT, BATCH))
PRICES = {"own": Price(per_hour=1.8), "rented": Price(input_per_million=0.5, output_per_million=1.5)}
INVENTORY = Inventory(PLAN, {"chat": 0.15}, PRICES, {"chat": frozenset({"rented"})})


def lanes(waiting: int) -> dict[str, LaneState]:
    return {"fast": LaneState(waiting, 1.5, 4.0), "slow": LaneState(0, 0.0, 20.0)}


def pool_state(platforms: tuple[str, ...], **fields: Any) -> PoolState:
    said: dict[str, Any] = {
        "lanes": lanes(3),
        "in_service": platforms[:1],
        "places": 7,
        "streams": 32,
        "in_flight": 5,
        "arrival_rps": 2.0,
        "generation_s": 8.0,
        "needed_streams": 16.0,
        "load_ratio": 0.5,
        "retired": False,
    }
    return PoolState(platforms=platforms, **{**said, **fields})


def state(**fields: Any) -> State:
    said: dict[str, Any] = {
        "at": 100.0,
        "pools": {"chat": pool_state(("own", "rented")), "batch": pool_state(("rented",))},
        "platforms": {"own": PlatformState(("own-1", "own-2"), False, None), "rented": PlatformState(("api",), False, 130.0)},
        "backends": {
            "own-1": BackendState("own", 5, 16, 16, HealthState.HEALTHY, "", None),
            "own-2": BackendState("own", 0, 16, 2, HealthState.EJECTED, "reset", 112.5),
            "api": BackendState("rented", 1, 40, 40, HealthState.DRAINED, "operator", None),
        },
        "waiting": 6,
        "waiting_bytes": 900,
        "in_flight": 6,
        "retries": 1,
        "closed": False,
    }
    return State(**{**said, **fields})


class Reader:
    """Telemetry beside what Prometheus reads of it."""

    def __init__(self, inventory: Inventory = INVENTORY, process_log: ProcessLog | None = None) -> None:
        writer = LogWriter(open_sink("off"), line)
        self.telemetry = Telemetry(inventory, writer, now=0.0, wall=1_700_000_000.0, version="0.1.0", process_log=process_log)

    def families(self, now: float = 0.0) -> dict[str, Any]:
        text = self.telemetry.exposition(state(), now).decode()
        return {family.name: family for family in text_string_to_metric_families(text)}

    def samples(self, now: float = 0.0) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in self.families(now).values():
            for sample in family.samples:
                key = (sample.name, frozenset(sample.labels.items()))
                assert key not in found, f"twice: {key}"
                found[key] = sample.value
        return found

    def __call__(self, name: str, /, now: float = 0.0, **having: str) -> float:
        """One sample."""
        found = self.named(name, now)
        return found[frozenset((key.rstrip("_"), value) for key, value in having.items())]

    def sum(self, name: str, /, **having: str) -> float:
        """All samples that have these labels."""
        return sum(value for labelled, value in self.named(name).items() if set(having.items()) <= labelled)

    def named(self, name: str, now: float = 0.0) -> dict[frozenset[tuple[str, str]], float]:
        """The samples of one name; only their lines are parsed, which saves the tests most of their time."""
        text = self.telemetry.exposition(state(), now).decode()
        lines = "".join(f"{each}\n" for each in text.splitlines() if each.startswith((f"fairlane_{name} ", f"fairlane_{name}{{")))
        return {frozenset(each.labels.items()): each.value for family in text_string_to_metric_families(lines) for each in family.samples}


@pytest.fixture
def read() -> Reader:
    return Reader()


def served(**fields: Any) -> Record:
    """A streamed request of the chat pool that met its SLO: 200 ms to the first token, then 10 tokens in 0.9 s."""
    said: dict[str, Any] = {
        "received_at": 10.0,
        "time_unix": 0.0,
        "tenant": "acme",
        "lane": "fast",
        "pool": "chat",
        "platform": "own",
        "backend": "own-1",
        "streamed": True,
        "attempts": 1,
        "outcome": Outcome.OK,
        "status": 200,
        "first_token_at": 10.2,
        "last_token_at": 11.1,
        "tokens_in": 100,
        "tokens_out": 10,
        "tokens_source": "usage",
    }
    return Record(**{**said, **fields})


# --- what is there ---


def test_every_metric_of_the_contract_is_there_with_its_labels_and_help(read: Reader) -> None:
    families = read.families()
    for name, names in CONTRACT.items():
        family = families[f"fairlane_{name}".removesuffix("_total")]
        assert family.documentation, name
        kind = "counter" if name.endswith("_total") else "histogram" if name.endswith(("_seconds", "_tokens")) else "gauge"
        if name in GAUGES_IN_SECONDS:
            kind = "gauge"
        assert family.type == kind, name
        assert family.samples, f"{name} has no series"
        assert all(set(sample.labels) - {"le"} == set(names.split()) for sample in family.samples), name


def test_what_the_catalogue_names_is_what_is_exposed(read: Reader) -> None:
    text = read.telemetry.exposition(state(), 0.0).decode()
    for metric in catalogue.METRICS:
        assert text.count(f"# TYPE {metric.name} {metric.kind}\n") == 1
        assert text.count(f"# HELP {metric.name} ") == 1
        assert (metric.kind == "counter") == metric.name.endswith("_total")
    assert "process_resident_memory_bytes" in text


def test_each_line_is_one_that_promtool_accepts(read: Reader) -> None:
    """promtool check metrics: help on all, counters end in _total and nothing else does, no name of a type, base units."""
    for family in read.families().values():
        assert family.documentation
        name = family.name
        assert not name.endswith(("_milliseconds", "_ms", "_count", "_sum", "_bucket", "_counter", "_histogram", "_gauge"))
        assert all(label == label.lower() and not label.startswith("__") for sample in family.samples for label in sample.labels)


def test_what_happens_adds_no_series(read: Reader) -> None:
    before = set(read.samples())
    telemetry = read.telemetry
    for cell, endings in (("chat", labels.IN_POOL), ("", labels.WITHOUT_POOL)):
        for outcome, statuses in endings.items():
            for status in statuses:
                telemetry.finish(served(pool=cell, lane="slow" if cell else "", outcome=outcome, status=status), 12.0)
    for outcome in labels.ATTEMPT:
        telemetry.attempt(lease(), outcome, 5.0)
    for ending in Outcome:
        telemetry.waited("chat", "fast", ending, 0.1)
    telemetry.first_token(served(), 0.1)
    telemetry.retry_denied("chat")
    telemetry.events([FailedOver("chat", "own", "rented", "ejected"), FailedBack("chat", "rented", "own")])
    assert set(read.samples(1000.0)) == before


def test_a_backends_ten_thousand_statuses_stay_a_closed_set(read: Reader) -> None:
    for status in range(100, 600):
        read.telemetry.finish(served(outcome=Outcome.UPSTREAM_STATUS, status=status), 12.0)
    codes = {
        dict(having)["code"] for (name, having), value in read.samples().items() if name == "fairlane_requests_total" and value and having
    }
    assert codes == {str(status) for status in labels.OWN_STATUSES if status} | {"1xx", "2xx", "3xx", "4xx", "5xx"}
    assert read.sum("requests_total") == 500


def test_every_outcome_has_a_place() -> None:
    assert {*labels.WITHOUT_POOL, *labels.IN_POOL} == set(Outcome)
    assert set(labels.ATTEMPT) <= set(labels.IN_POOL)


def test_odd_names_are_escaped() -> None:
    plan = Plan((LanePlan('fa"st\\'),), (PlatformPlan("o\nwn", (BackendPlan("b", 1),)),), (PoolPlan("pôol", ("o\nwn",)),))
    read = Reader(Inventory(plan))
    assert read("requests_total", pool="pôol", lane='fa"st\\', outcome="ok", code="200") == 0
    assert read("tokens_total", pool="pôol", lane='fa"st\\', platform="o\nwn", direction="input", source="usage") == 0


# --- requests ---


def test_a_request_that_met_its_slo(read: Reader) -> None:
    record = served()
    read.telemetry.first_token(record, 0.15)
    read.telemetry.finish(record, 11.2)
    assert read("requests_total", pool="chat", lane="fast", outcome="ok", code="200") == 1
    assert read.sum("requests_total") == 1
    assert read("request_seconds_count", pool="chat", lane="fast") == 1
    assert read("request_seconds_sum", pool="chat", lane="fast") == pytest.approx(1.2)
    assert read("ttft_seconds_sum", pool="chat", lane="fast") == pytest.approx(0.2)
    assert read("backend_ttft_seconds_sum", backend="own-1") == pytest.approx(0.15)
    assert read("tpot_seconds_sum", pool="chat", lane="fast") == pytest.approx(0.1)
    assert read("prompt_tokens_sum", pool="chat") == 100
    assert read("slo_requests_total", pool="chat", lane="fast") == 1
    assert read("slo_met_total", pool="chat", lane="fast") == 1
    assert read("slo_tokens_total", pool="chat", platform="own") == 10
    tokens: dict[str, Any] = {"pool": "chat", "lane": "fast", "platform": "own", "source": "usage"}
    assert (read("tokens_total", direction="input", **tokens), read("tokens_total", direction="output", **tokens)) == (100, 10)
    assert read.sum("tokens_total", source="estimated") == 0


def test_a_request_that_never_reached_a_pool(read: Reader) -> None:
    read.telemetry.finish(served(pool="", lane="fast", attempts=0, outcome=Outcome.FORBIDDEN, status=403), 10.1)
    assert read("requests_total", pool="", lane="", outcome="forbidden", code="403") == 1
    assert read("request_seconds_count", pool="", lane="") == 1
    assert read.sum("slo_requests_total") == read.sum("tokens_total") == 0


@pytest.mark.parametrize(
    ("fields", "counted", "met"),
    [
        ({}, 1, 1),
        ({"first_token_at": 11.01, "last_token_at": 11.1}, 1, 0),  # TTFT
        ({"last_token_at": 12.0}, 1, 0),  # TPOT
        ({"last_token_at": 10.2, "tokens_out": 1}, 1, 1),  # one token has no gaps
        ({"streamed": False}, 0, 0),
        ({"outcome": Outcome.QUEUE_FULL, "status": 429, "first_token_at": None, "attempts": 0}, 1, 0),
        ({"outcome": Outcome.TRUNCATED}, 1, 0),
        ({"outcome": Outcome.UPSTREAM_STATUS, "status": 400}, 0, 0),
        ({"outcome": Outcome.UPSTREAM_STATUS, "status": 429}, 1, 0),
        ({"outcome": Outcome.UPSTREAM_STATUS, "status": 500}, 1, 0),
        ({"outcome": Outcome.CLIENT_GONE}, 0, 0),
        ({"outcome": Outcome.CLIENT_GONE, "first_token_at": None}, 1, 0),  # left after 2 s without a token
        ({"outcome": Outcome.WRITE_TIMEOUT}, 0, 0),
        ({"pool": "batch"}, 0, 0),  # no targets
    ],
)
def test_what_counts_against_the_slo(read: Reader, fields: dict[str, Any], counted: int, met: int) -> None:
    read.telemetry.finish(served(**fields), 12.0)
    assert (read.sum("slo_requests_total"), read.sum("slo_met_total")) == (counted, met)
    assert read.sum("slo_tokens_total") == (fields.get("tokens_out", 10) if met else 0)


@pytest.mark.parametrize(
    ("fields", "target"),
    [
        ({"first_token_at": 11.01, "last_token_at": 11.1}, "ttft"),
        ({"first_token_at": 11.01, "last_token_at": 15.0}, "ttft"),  # late and slow: counted once
        ({"last_token_at": 12.0}, "tpot"),
        ({"outcome": Outcome.QUEUE_FULL, "status": 429, "first_token_at": None, "attempts": 0}, "unanswered"),
        ({"outcome": Outcome.TRUNCATED}, "unanswered"),
        ({"outcome": Outcome.CLIENT_GONE, "first_token_at": None}, "ttft"),
        ({}, None),
        ({"outcome": Outcome.CLIENT_GONE}, None),
    ],
)
def test_what_is_missed_says_which_promise_and_adds_up(read: Reader, fields: dict[str, Any], target: str | None) -> None:
    read.telemetry.finish(served(**fields), 12.0)
    missed = {each: read("slo_missed_total", pool="chat", lane="fast", target=each) for each in labels.SLO_MISSES}
    assert missed == {each: int(each == target) for each in labels.SLO_MISSES}
    assert sum(missed.values()) == read.sum("slo_requests_total") - read.sum("slo_met_total")


@pytest.mark.parametrize(("tokens", "prompt"), [(0, 0), (512, 0), (513, 1), (2048, 1), (2049, 2), (8192, 2), (8193, 3), (1_000_000, 3)])
def test_durations_by_prompt_length(read: Reader, tokens: int, prompt: int) -> None:
    read.telemetry.finish(served(tokens_in=tokens), 11.2)
    read.telemetry.finish(served(tokens_in=tokens, outcome=Outcome.QUEUE_FULL, status=429, first_token_at=None, attempts=0), 11.2)
    name = labels.PROMPT_CLASSES[prompt]
    assert read("prompt_class_ttft_seconds_count", pool="chat", prompt=name) == read.sum("prompt_class_ttft_seconds_count") == 1
    assert read("prompt_class_request_seconds_sum", pool="chat", prompt=name) == pytest.approx(1.2)  # whole answers alone
    assert read.sum("prompt_class_request_seconds_count") == 1


def test_who_asked_for_a_stream(read: Reader) -> None:
    read.telemetry.finish(served(), 12.0)
    read.telemetry.finish(served(streamed=False, first_token_at=None), 12.0)
    assert read.sum("streamed_requests_total") == read("streamed_requests_total", pool="chat", lane="fast") == 1
    assert read.sum("requests_total") == 2


def test_what_the_file_promised_is_there_to_compare_with(read: Reader) -> None:
    assert [read("lane_rank", lane=lane) for lane in ("fast", "slow")] == [0, 1]
    assert [read("lane_share_ratio", lane=lane) for lane in ("fast", "slow")] == [0, 0.1]
    assert [read("platform_standby", pool="chat", platform=each) for each in ("own", "rented")] == [0, 1]
    assert read("platform_standby", pool="batch", platform="rented") == 0
    assert read("slo_target_seconds", pool="chat", target="ttft") == 1.0
    assert read("slo_target_seconds", pool="chat", target="tpot") == 0.15
    assert read("slo_target_seconds", pool="batch", target="ttft") == 0
    read.telemetry.reconfigure(Inventory(Plan(LANES[:1], (OWN,), (BATCH,))), 0.0)
    assert read.named("lane_rank").keys() == {frozenset({("lane", "fast")})}


def test_the_loops_lag(read: Reader) -> None:
    read.telemetry.swept(0.03)
    assert read("loop_lag_seconds_bucket", le="0.025") == 0
    assert read("loop_lag_seconds_bucket", le="0.05") == 1


def test_rent_without_a_pool_is_there_from_the_start() -> None:
    read = Reader(Inventory(Plan(LANES, (OWN, RENTED), (PoolPlan("chat", ("own",)),)), prices={"rented": Price(per_hour=1.0)}))
    assert read("cost_dollars_total", pool="", platform="rented") == 0


def test_tokens_that_nobody_counted_are_estimates_and_nothing_produced_is_nothing(read: Reader) -> None:
    read.telemetry.finish(served(tokens_source="estimated", outcome=Outcome.CLIENT_GONE, phase="streaming"), 12.0)
    read.telemetry.finish(served(tokens_source="", tokens_out=0, outcome=Outcome.UPSTREAM_RESET, status=502), 12.0)
    assert (read.sum("tokens_total", source="estimated"), read.sum("tokens_total", source="usage")) == (110, 0)


def test_retries_are_counted_by_what_became_of_them(read: Reader) -> None:
    read.telemetry.finish(served(attempts=3), 12.0)  # two retries, the second worked
    read.telemetry.finish(served(attempts=2, outcome=Outcome.UPSTREAM_RESET, status=502), 12.0)
    read.telemetry.retry_denied("chat")
    assert {result: read("retries_total", pool="chat", result=result) for result in labels.RETRY_RESULTS} == {
        "ok": 1,
        "failed": 2,
        "denied": 1,
    }
    read.telemetry.finish(served(retry_count=1), 12.0)
    assert read("client_retries_total", pool="chat") == 1


@pytest.mark.parametrize("phase", labels.DISCONNECT_PHASES)
def test_callers_that_left_are_counted_where_they_were(read: Reader, phase: str) -> None:
    read.telemetry.finish(served(outcome=Outcome.CLIENT_GONE, phase=phase), 12.0)
    read.telemetry.finish(served(phase=phase), 12.0)
    assert read("disconnects_total", phase=phase) == read.sum("disconnects_total") == 1


def test_waits_by_how_they_ended(read: Reader) -> None:
    for ending in (*labels.WAIT_ENDINGS, Outcome.QUEUE_FULL):
        read.telemetry.waited("chat", "slow", ending, 0.3)
    for name in labels.WAIT_ENDINGS:
        assert read("queue_wait_seconds_count", pool="chat", lane="slow", outcome=name) == 1
        assert read("queue_wait_seconds_bucket", pool="chat", lane="slow", outcome=name, le="0.25") == 0
        assert read("queue_wait_seconds_bucket", pool="chat", lane="slow", outcome=name, le="0.5") == 1
    assert read.sum("queue_wait_seconds_count") == len(labels.WAIT_ENDINGS)


def test_gaps_and_overhead_are_observed_on_what_was_bound_once(read: Reader) -> None:
    observe = read.telemetry.itl("own-1").observe
    for gap in (0.01, 0.0100001, 3.0):
        observe(gap)
    cumulative = [read("itl_seconds_bucket", backend="own-1", le=le) for le in ("0.01", "0.025", "2.5", "+Inf")]
    assert cumulative == [1, 2, 2, 3]  # a boundary belongs to its bucket
    read.telemetry.overhead("intake").observe(0.00002)
    assert read("overhead_seconds_count", phase="intake") == 1
    read.telemetry.connected("own-1", 0.002)
    assert read("backend_connect_seconds_sum", backend="own-1") == pytest.approx(0.002)


# --- money ---


def lease(pool: str = "chat", backend: str = "own-1", platform: str = "own") -> Lease:
    return Lease(1, pool, platform, backend, 0.0, 0, probe=False, slotless=False)


def test_rent_runs_while_nobody_calls_and_tokens_cost_by_usage(read: Reader) -> None:
    assert read("cost_dollars_total", now=3600.0, pool="chat", platform="own") == pytest.approx(3.6)  # two backends
    read.telemetry.finish(served(platform="rented", backend="api", tokens_in=1_000_000, tokens_out=2_000_000), 12.0)
    assert read("cost_dollars_total", now=3600.0, pool="chat", platform="rented") == pytest.approx(3.5)
    assert read("cost_dollars_total", now=7200.0, pool="chat", platform="own") == pytest.approx(7.2)


def test_who_holds_slots_on_a_shared_platform_pays_for_them() -> None:
    plan = Plan(LANES, (RENTED,), (PoolPlan("chat", ("rented",)), BATCH))
    read = Reader(Inventory(plan, prices={"rented": Price(per_hour=3600.0)}))
    read.telemetry.attempt(lease("batch", "api", "rented"), Outcome.OK, 20.0)
    assert read("cost_dollars_total", now=20.0, pool="batch", platform="rented") == pytest.approx(0.5)  # one slot of 40
    assert read("cost_dollars_total", now=20.0, pool="chat", platform="rented") == pytest.approx(19.5)
    assert read("attempts_total", backend="api", outcome="ok") == 1


# --- many at a time ---

RECORDS = st.builds(
    served,
    pool=st.sampled_from(["chat", "chat", "batch", ""]),
    lane=st.sampled_from(["fast", "slow"]),
    platform=st.sampled_from(["own", "rented"]),
    backend=st.sampled_from(["own-1", "api"]),
    streamed=st.booleans(),
    attempts=st.integers(1, 3),
    hedges=st.integers(0, 1),
    continued=st.integers(0, 1),
    outcome=st.sampled_from([Outcome.OK, Outcome.OK, Outcome.OK, *Outcome]),
    status=st.sampled_from([200, 200, 0, 400, 429, 502]),
    phase=st.sampled_from(["", *labels.DISCONNECT_PHASES]),
    first_token_at=st.sampled_from([None, 10.2, 11.01]),
    last_token_at=st.sampled_from([None, 11.1, 15.0]),
    tokens_in=st.sampled_from([0, 5, 512, 513, 9000]),
    tokens_out=st.sampled_from([0, 1, 10]),
    tokens_source=st.sampled_from(["usage", "estimated", ""]),
    retry_count=st.sampled_from([0, 0, 3]),
)


def told(reader: Reader) -> dict[str, float]:
    """Every sample that is not zero."""
    lines = [each.rpartition(" ") for each in reader.telemetry.exposition(state(), 0.0).decode().splitlines()]
    return {series: float(value) for series, _, value in lines if series.startswith("fairlane_") and value not in ("0", "0.0")}


@settings(max_examples=40, deadline=None)
@given(st.lists(RECORDS, min_size=1, max_size=20))
def test_requests_counted_together_come_to_what_each_alone_comes_to(records: list[Record]) -> None:
    together, alone = Reader(), Reader()
    for number, record in enumerate(records):
        if not record.streamed:
            record.first_token_at = None  # no story has one
        together.telemetry.finish(record, 12.0 + number)
        alone.telemetry.finish(record, 12.0 + number)
        alone.telemetry.settle()
    assert told(together) == pytest.approx(told(alone))
    assert together.sum("requests_total") == len(records)


def test_no_more_wait_to_be_counted_than_agreed_and_none_longer_than_a_sweep(read: Reader) -> None:
    for number in range(3 * ENDED_MAX + 5):
        read.telemetry.finish(served(), 12.0)
        assert len(read.telemetry._ended) == (number + 1) % ENDED_MAX
    read.telemetry.swept(0.0)
    assert not read.telemetry._ended
    assert read.sum("requests_total") == 3 * ENDED_MAX + 5


@pytest.mark.parametrize(
    "fault", [{"tokens_in": None}, {"tokens_out": "7"}, {"tokens_out": 10**400}, {"last_token_at": "late"}, {"status": "x"}]
)
def test_a_record_that_makes_no_sense_is_told_and_spoils_no_other(fault: dict[str, Any], tmp_path: Path) -> None:
    writer = LogWriter(open_sink("off"), line, notices=open_sink(str(tmp_path / "notices")))
    spoilt, well = Reader(process_log=ProcessLog(writer)), Reader()
    sound: dict[str, Any] = {"platform": "rented", "backend": "api"}
    for read in (spoilt, well):
        for _ in range(3):
            read.telemetry.finish(served(**sound), 12.0)
    spoilt.telemetry.finish(served(id="odd", **{**sound, **fault}), 12.0)
    spoilt.telemetry.finish(served(**sound), 12.0)
    well.telemetry.finish(served(**sound), 12.0)
    assert told(spoilt) == pytest.approx(told(well))
    writer.start()
    writer.close()
    (said,) = (tmp_path / "notices").read_bytes().splitlines()
    assert b'"event":"not_counted","id":"odd"' in said


# --- another file ---


def test_what_has_ended_is_counted_by_the_file_it_ended_under(read: Reader) -> None:
    read.telemetry.finish(served(platform="rented", backend="api", tokens_in=1_000_000, tokens_out=0), 12.0)
    read.telemetry.reconfigure(Inventory(PLAN, {"chat": 0.15}, {"rented": Price(input_per_million=50.0)}), 0.0)
    assert read("cost_dollars_total", pool="chat", platform="rented") == pytest.approx(0.5)


def test_slo_targets_are_boundaries_in_every_series_of_their_metric() -> None:
    plan = Plan(LANES, (OWN, RENTED), (PoolPlan("chat", ("own",), slo_ttft_s=0.3), BATCH))
    read = Reader(Inventory(plan, {"chat": 0.12}))
    assert read("ttft_seconds_bucket", pool="batch", lane="slow", le="0.3") == 0
    assert read("backend_ttft_seconds_bucket", backend="api", le="0.3") == 0
    assert read("tpot_seconds_bucket", pool="chat", lane="fast", le="0.12") == 0
    assert read("itl_seconds_bucket", backend="own-1", le="0.12") == 0


def test_counts_go_on_over_a_reload(read: Reader) -> None:
    observe = read.telemetry.itl("own-1").observe
    read.telemetry.finish(served(), 12.0)
    observe(0.02)
    before = read.samples()
    added = PoolPlan("new", ("own",))
    read.telemetry.reconfigure(Inventory(Plan(LANES, (OWN, RENTED), (CHAT, added)), {"chat": 0.15}, PRICES, INVENTORY.standbys), 0.0)
    read.telemetry.reloaded(True, 1_700_000_100.0)
    after = read.samples()
    moved = {key for key, value in before.items() if after.get(key, value) != value and key[0].startswith("fairlane_")}
    assert {name for name, _ in before.keys() - after.keys()} == {"fairlane_platform_standby", "fairlane_slo_target_seconds"}  # batch's
    assert moved == {("fairlane_config_last_reload_timestamp_seconds", frozenset())}
    assert read("requests_total", pool="new", lane="slow", outcome="ok", code="200") == 0
    read.telemetry.finish(served(pool="batch", platform="rented", backend="api"), 12.0)  # still in flight when its pool left the file
    assert read("requests_total", pool="batch", lane="fast", outcome="ok", code="200") == 1


def test_a_histogram_whose_boundaries_change_begins_anew_under_the_hands_of_those_who_observe(read: Reader) -> None:
    observe = read.telemetry.itl("own-1").observe
    observe(0.02)
    read.telemetry.reconfigure(Inventory(PLAN, {"chat": 0.11}, PRICES), 0.0)
    assert read("itl_seconds_count", backend="own-1") == 0
    observe(0.105)
    assert read("itl_seconds_bucket", backend="own-1", le="0.11") == 1
    assert read("itl_seconds_sum", backend="own-1") == pytest.approx(0.105)


def test_a_price_that_changes_holds_from_then_on(read: Reader) -> None:
    read.telemetry.reconfigure(Inventory(PLAN, {"chat": 0.15}, {"own": Price(per_hour=3.6)}), 3600.0)
    assert read("cost_dollars_total", now=7200.0, pool="chat", platform="own") == pytest.approx(3.6 + 7.2)
    read.telemetry.reconfigure(Inventory(Plan(LANES, (RENTED,), (BATCH,))), 7200.0)
    assert read("cost_dollars_total", now=9999.0, pool="chat", platform="own") == pytest.approx(10.8)


def test_a_file_that_was_refused_shows(read: Reader) -> None:
    assert read("config_last_reload_successful") == 1
    read.telemetry.reloaded(False, 1_700_000_100.0)
    assert read("config_last_reload_successful") == 0
    assert read("config_last_reload_timestamp_seconds") == 1_700_000_000.0


def test_failovers_by_reason(read: Reader) -> None:
    lost = [FailedOver("chat", "own", "rented", reason) for reason in ("drained", "", "hungry")]
    read.telemetry.events([*lost, FailedBack("chat", "rented", "own")])
    assert read("failovers_total", pool="chat", from_="own", to="rented", reason="drained") == 1
    assert read("failovers_total", pool="chat", from_="own", to="rented", reason="other") == 2
    assert read("failovers_total", pool="chat", from_="rented", to="own", reason="recovered") == 1


def test_dropped_lines_are_counted() -> None:
    telemetry = Telemetry(INVENTORY, LogWriter(open_sink("/dev/null"), line, lines_max=5), now=0.0, wall=0.0, version="0")
    for _ in range(8):
        telemetry.finish(served(), 12.0)
    assert b"\nfairlane_log_lines_dropped_total 3\n" in telemetry.exposition(state(), 0.0)


# --- the snapshot ---


def gauges_of_the_state() -> Iterator[tuple[str, dict[str, str], float]]:
    yield "queue_waiting", {"pool": "chat", "lane": "fast"}, 3
    yield "queue_oldest_seconds", {"pool": "chat", "lane": "fast"}, 1.5
    yield "queue_max_wait_seconds", {"pool": "chat", "lane": "fast"}, 4
    yield "queue_places", {"pool": "chat"}, 7
    yield "queue_bytes", {}, 900
    yield "retries_in_flight", {}, 1
    yield "backend_streams", {"backend": "own-1", "platform": "own"}, 5
    yield "backend_max_streams", {"backend": "own-2", "platform": "own"}, 16
    yield "backend_usable_streams", {"backend": "own-2", "platform": "own"}, 2
    yield "backend_state", {"backend": "own-1", "platform": "own"}, 0
    yield "backend_state", {"backend": "own-2", "platform": "own"}, 2
    yield "backend_state", {"backend": "api", "platform": "rented"}, 3
    yield "platform_in_service", {"pool": "chat", "platform": "own"}, 1
    yield "platform_in_service", {"pool": "chat", "platform": "rented"}, 0
    yield "arrival_rate", {"pool": "chat"}, 2
    yield "generation_seconds", {"pool": "chat"}, 8
    yield "needed_streams", {"pool": "chat"}, 16
    yield "load_ratio", {"pool": "chat"}, 0.5


def test_gauges_say_what_the_snapshot_says(read: Reader) -> None:
    found = read.samples()
    for name, having, value in gauges_of_the_state():
        assert found[f"fairlane_{name}", frozenset(having.items())] == value, name


def test_a_dispatcher_that_has_just_begun_shows_every_gauge() -> None:
    telemetry = Telemetry(INVENTORY, LogWriter(open_sink("off"), line), now=0.0, wall=0.0, version="0")
    text = telemetry.exposition(Dispatcher(PLAN, 0.0).snapshot(0.0), 0.0).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for name, having, _ in gauges_of_the_state():
        assert having in [sample.labels for sample in families[f"fairlane_{name}"].samples], name
    assert {sample.value for sample in families["fairlane_backend_streams"].samples} == {0}
    assert {(*sample.labels.values(), sample.value) for sample in families["fairlane_platform_in_service"].samples} == {
        ("chat", "own", 1),
        ("chat", "rented", 0),
        ("batch", "rented", 1),
    }


def test_the_document_names_states_and_dates() -> None:
    shown = document(state(closed=True), version="0.1.0", uptime_s=12.3456, wall=1_700_000_000.0)
    assert (shown["version"], shown["uptime_s"], shown["draining"], shown["waiting"]) == ("0.1.0", 12.346, True, 6)
    ejected = shown["backends"]["own-2"]
    assert (ejected["state"], ejected["why"], ejected["until"], ejected["until_s"]) == (
        "ejected",
        "reset",
        "2023-11-14T22:13:32.500Z",
        12.5,
    )
    assert shown["backends"]["own-1"]["until"] is None
    assert shown["platforms"]["rented"]["refuses_until_s"] == 30.0
    assert shown["pools"]["chat"]["lanes"]["fast"] == {"waiting": 3, "oldest_s": 1.5, "max_wait_s": 4.0}


def test_ready_while_one_pool_is_served_and_nobody_drains() -> None:
    def faults(seen: State, which: Callable[[bool], bool] = bool) -> list[str]:
        return [check.name for check in checks(seen) if check.fault and which(check.needed)]

    down = pool_state(("own",), in_service=())
    assert faults(state()) == []
    assert faults(state(closed=True)) == ["accepting"]
    half = state(pools={"chat": down, "batch": pool_state(("rented",))})
    assert faults(half) == [] and [check.name for check in checks(half) if check.fault] == ["pool chat"]
    assert faults(state(pools={"chat": down, "batch": down})) == ["backends"]
    assert [check.name for check in checks(state())] == ["accepting", "backends", "pool chat", "pool batch"]
