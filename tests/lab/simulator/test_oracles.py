"""Does the simulator come to what queueing theory, computed apart, says? Experiments 1 to 7, 9 and 10 of the decisions.

The short form runs a part of the arrivals with wider margins; `make soak` runs the whole, over ten seeds, at the stated ones.
"""

from __future__ import annotations

import random
from fractions import Fraction
from math import fsum
from typing import Any

import pytest

from lab.planner.erlang import erlang_b, finite_queue, lane_waits_s, mean_wait_s, wait_quantile_s
from lab.simulator.draws import Spread
from lab.simulator.incidents import Incident, What
from lab.simulator.station import Mode
from tests.lab.simulator.worlds import plan, platform, prepared, share_of, simulated

TENTH = Fraction(1, 10)
SOAK = pytest.mark.soak


def averaged(results: list[dict[str, Any]], *path: str) -> float:
    values = []
    for found in results:
        value: Any = found
        for step in path:
            value = value[step]
        values.append(float(value))
    mean = fsum(values) / len(values)
    told(".".join(path), f"{mean:.4f}", f"{min(values):.4f} to {max(values):.4f} in {len(values)} runs")
    return mean


def told(*words: object) -> None:
    """The figures themselves, with `pytest -s`."""
    print(*words, sep=": ")


def test_the_formulas_give_the_published_figures() -> None:
    assert [round(mean_wait_s(80, rps, 8.0), 3) for rps in (9.0, 9.5)] == [0.263, 1.097]
    assert mean_wait_s(8, 0.9, 8.0) == pytest.approx(7.02, abs=0.005)
    assert [round(wait_quantile_s(80, 9.0, 8.0, q), 2) for q in (0.95, 0.99)] == [1.66, 3.27]
    assert lane_waits_s(80, (3, 6), 8.0) == pytest.approx([0.0376, 0.3758], rel=0.002)
    assert lane_waits_s(80, (3, 6.5), 8.0) == pytest.approx([0.0783, 1.567], rel=0.002)
    assert lane_waits_s(8, (0.3, 0.6), 8.0) == pytest.approx([1.002, 10.02], rel=0.002)
    assert lane_waits_s(8, (0.25, 0.45), 8.0) == pytest.approx([0.3608, 1.2027], rel=0.001)
    assert erlang_b(80, 72.0) == pytest.approx(0.03447, rel=0.001)
    for rps, blocked, wait_s in ((9, 0.0051, 0.143), (10, 0.0359, 0.506), (12, 0.1683, 1.140)):
        share, waiting = finite_queue(80, 16, rps * 8.0)
        assert share == pytest.approx(blocked, rel=0.02)
        assert waiting / (rps * (1 - share)) == pytest.approx(wait_s, rel=0.01)


@pytest.mark.parametrize(("requests", "seeds", "margin"), [(40_000, 1, 0.35), pytest.param(400_000, 10, 0.05, marks=SOAK)])
def test_1_and_2_little_and_one_lane(requests: int, seeds: int, margin: float) -> None:
    results = [simulated(plan(80), {"fast": 9.0}, requests, seed) for seed in range(seeds)]
    lane = ("lanes", "fast")
    assert averaged(results, "backends", "gpu", "mean_in_flight") == pytest.approx(72.0, rel=0.02 if seeds == 1 else 0.005)
    assert max(found["backends"]["gpu"]["max_in_flight"] for found in results) == 80
    assert averaged(results, *lane, "queue_wait_s", "mean") == pytest.approx(0.263, rel=margin)
    assert averaged(results, *lane, "mean_waiting") == pytest.approx(2.37, rel=margin)
    assert averaged(results, *lane, "queue_wait_s", "p95") == pytest.approx(1.66, rel=max(margin, 0.1))
    assert averaged(results, *lane, "queue_wait_s", "p99") == pytest.approx(3.27, rel=max(margin, 0.1))
    assert results[0]["lanes"]["fast"]["answered"] == results[0]["lanes"]["fast"]["offered"]


@SOAK
@pytest.mark.parametrize(("streams", "rps", "wait_s", "margin"), [(80, 9.5, 1.097, 0.1), (8, 0.9, 7.02, 0.05)])
def test_2_one_lane_near_full_load(streams: int, rps: float, wait_s: float, margin: float) -> None:
    results = [simulated(plan(streams), {"fast": rps}, 400_000, seed) for seed in range(10)]
    assert averaged(results, "lanes", "fast", "queue_wait_s", "mean") == pytest.approx(wait_s, rel=margin)


@pytest.mark.parametrize(
    ("streams", "rates", "expected_s", "requests", "seeds", "margin"),
    [
        (8, (0.25, 0.45), (0.3608, 1.2027), 60_000, 1, 0.12),
        pytest.param(8, (0.25, 0.45), (0.3608, 1.2027), 400_000, 10, 0.05, marks=SOAK),
        pytest.param(80, (3.0, 6.0), (0.0376, 0.3758), 400_000, 10, 0.1, marks=SOAK),
        pytest.param(80, (3.0, 6.5), (0.0783, 1.567), 400_000, 10, 0.1, marks=SOAK),
        pytest.param(8, (0.3, 0.6), (1.002, 10.02), 400_000, 10, 0.05, marks=SOAK),
    ],
)
def test_3_two_strict_lanes(
    streams: int, rates: tuple[float, float], expected_s: tuple[float, float], requests: int, seeds: int, margin: float
) -> None:
    results = [simulated(plan(streams), {"fast": rates[0], "slow": rates[1]}, requests, seed) for seed in range(seeds)]
    for name, wait_s in zip(("fast", "slow"), expected_s, strict=True):
        assert averaged(results, "lanes", name, "queue_wait_s", "mean") == pytest.approx(wait_s, rel=margin)


@pytest.mark.parametrize(("requests", "seeds", "margin"), [(20_000, 1, 0.08), pytest.param(400_000, 5, 0.02, marks=SOAK)])
def test_4_the_owed_share_and_its_control(requests: int, seeds: int, margin: float) -> None:
    rates, world = {"fast": 12.0, "slow": 3.0}, plan(80, places=96, share=TENTH)
    found = simulated(world, rates, requests)["lanes"]
    for name, lane in found.items():
        told(name, f"{lane['throughput_rps']:.3f}/s", f"mean wait {lane['queue_wait_s']['mean']:.2f} s")
    assert found["slow"]["throughput_rps"] == pytest.approx(1.0, rel=margin)
    assert found["fast"]["throughput_rps"] == pytest.approx(9.0, rel=margin)
    assert found["slow"]["queue_wait_s"]["mean"] == pytest.approx(10.0, rel=0.15)
    slow_rps = []
    for seed in range(seeds):  # one run of 400,000 strays by 4 %
        control = prepared(world, rates, requests, seed)
        for lane in control.dispatcher._floor.rooms["chat"].lanes:
            lane.reserved = 0
        tally = control.run()
        slow_rps.append(tally.lanes[1].completed / tally.measured_s)
    told("slow without reserved places", f"{fsum(slow_rps) / seeds:.4f}/s", ", ".join(f"{each:.3f}" for each in slow_rps))
    assert fsum(slow_rps) / seeds == pytest.approx(0.405, rel=2 * margin)


@pytest.mark.parametrize(("requests", "seeds", "margin"), [(30_000, 1, 0.12), pytest.param(400_000, 5, 0.05, marks=SOAK)])
def test_5_a_finite_queue(requests: int, seeds: int, margin: float) -> None:
    for rps, blocked, wait_s in ((9.0, 0.0051, 0.143), (10.0, 0.0359, 0.506), (12.0, 0.1683, 1.140)):
        if seeds == 1 and rps < 12.0:
            continue  # so few are blocked that it takes a long run to count them
        runs = [simulated(plan(80, places=16), {"fast": rps}, requests, seed)["lanes"]["fast"] for seed in range(seeds)]
        share = fsum(share_of(lane) for lane in runs) / seeds
        told(f"{rps}/s", f"blocked {share:.4f}")
        assert share == pytest.approx(blocked, rel=2 * margin if rps == 9.0 else margin)
        assert averaged(runs, "queue_wait_s", "mean") == pytest.approx(wait_s, rel=margin)
    runs = [simulated(plan(80, places=16), {"fast": 3.0, "slow": 9.0}, requests, seed)["lanes"] for seed in range(seeds)]
    told("fast, slow blocked", [f"{share_of(lanes['fast']):.4f}, {share_of(lanes['slow']):.4f}" for lanes in runs])
    assert all(share_of(lanes["fast"]) == 0.0 for lanes in runs)
    assert fsum(share_of(lanes["slow"]) for lanes in runs) / seeds == pytest.approx(0.224, rel=margin)
    assert set(runs[0]["slow"]["refused"]) == {"queue_full", "displaced"}


@pytest.mark.parametrize(("requests", "seeds", "margin"), [(40_000, 1, 0.2), pytest.param(400_000, 5, 0.05, marks=SOAK)])
@pytest.mark.parametrize(
    "service", [Spread("exponential", 8.0), Spread("fixed", 8.0), Spread("lognormal", 8.0, 2.0)], ids=lambda s: s.shape
)
def test_6_no_queue_whatever_the_lengths(service: Spread, requests: int, seeds: int, margin: float) -> None:
    runs = [simulated(plan(80, places=0), {"fast": 9.0}, requests, seed, service)["lanes"]["fast"] for seed in range(seeds)]
    shares = [share_of(lane, "queue_full") for lane in runs]
    told(f"{service.shape}: find all streams taken", f"{fsum(shares) / seeds:.5f}", ", ".join(f"{share:.4f}" for share in shares))
    assert fsum(shares) / seeds == pytest.approx(0.03447, rel=margin)
    assert all(lane["queue_wait_s"]["max"] == 0.0 for lane in runs)


@pytest.mark.parametrize("requests", [15_000, pytest.param(400_000, marks=SOAK)])
@pytest.mark.parametrize(("max_wait_s", "useful_rps"), [(10.0, 0.0), (4.0, 10.0)])
def test_7_overload_and_patience(max_wait_s: float, useful_rps: float, requests: int) -> None:
    world = plan(80, places=10_000, max_wait_s=max_wait_s)
    found = simulated(world, {"fast": 12.0}, requests, patience_s=5.0)["lanes"]["fast"]
    told(f"max_wait {max_wait_s:g} s", f"{found['goodput_rps']:.3f} useful answers/s")
    assert found["goodput_rps"] == pytest.approx(useful_rps, abs=0.3)
    assert found["offered"] == found["answered"] + found["abandoned"] + sum(found["refused"].values())
    seen = simulated(world, {"fast": 12.0}, requests, patience_s=5.0, seen_leaving=True)["lanes"]["fast"]
    assert seen["goodput_rps"] == pytest.approx(10.0, abs=0.3), "who closes its connection makes room"


@pytest.mark.parametrize("ratio", [1.0, 0.7, 0.5])
@pytest.mark.parametrize("runs", [150, pytest.param(2_000, marks=SOAK)])
def test_9_detection(ratio: float, runs: int) -> None:
    """One call every 2 s, so that the rule of the window (20 samples in 30 s) has nothing to say."""
    expected = (1 - ratio**5) / (ratio**5 * (1 - ratio)) if ratio < 1 else 5.0
    counts = []
    own = (platform("own", gpu=8), platform("rented", api=8))  # nothing behind it: the last backend is never learned away
    for seed in range(runs if ratio < 1 else 1):
        incident = Incident(0.0, What.FAILS, ["gpu"], "gpu", ratio)
        world = prepared(
            plan(platforms=own, attempts=1), {"fast": 0.5}, 1_000, seed, Spread("fixed", 0.1), gap="fixed", incidents=[incident],
            warm_up_requests=0,
        )  # fmt: skip
        ejected: list[int] = []
        note = world.note

        def watch(now: float, world: Any = world, ejected: list[int] = ejected, note: Any = note) -> None:
            note(now)
            if not ejected and any(each.kind == "Ejected" for each in world.tally.happened):
                ejected.append(world.stations["gpu"].attempts)
                world.stopped = True

        world.note = watch  # type: ignore[method-assign]
        world.run()
        counts += ejected
    assert len(counts) == (runs if ratio < 1 else 1)
    told(f"failures {ratio}", f"ejected after {fsum(counts) / len(counts):.2f} calls; {expected:.2f} by the formula")
    # The number of calls is spread about as widely as it is large.
    assert fsum(counts) / len(counts) == pytest.approx(expected, rel=3.5 / len(counts) ** 0.5 if ratio < 1 else 0.0)


def outages(*times: tuple[float, float]) -> list[Incident]:
    return [Incident(at, what, ["gpu"], "gpu") for down, up in times for at, what in ((down, What.DIES), (up, What.RETURNS))]


def moves(incidents: list[Incident], requests: int) -> list[tuple[float, str]]:
    world = plan(platforms=(platform("own", gpu=16), platform("rented", api=40)))
    host = prepared(
        world, {"fast": 1.0}, requests, service=Spread("fixed", 4.0), gap="fixed", incidents=incidents, warm_up_requests=0, probed=["gpu"]
    )
    tally = host.run()
    assert host.stations["gpu"].mode in Mode
    return [(each.at, each.kind) for each in tally.happened if each.kind in ("FailedOver", "Ramping", "FailedBack")]


def test_10_one_outage_is_one_failover_and_one_failback() -> None:
    found = moves(outages((100.0, 160.0)), 1_000)
    assert [kind for _, kind in found] == ["FailedOver", "Ramping", "FailedBack"]
    (lost_at, _), (ramps_at, _), (back_at, _) = found
    told("lost, ramps, back", *found)
    assert 100.0 <= lost_at <= 120.0
    assert back_at - ramps_at == pytest.approx(120.0)
    assert 420.0 <= back_at - 160.0 <= 420.0 + 15.0, "420 s after the first successful probe, which follows the return"


def test_10_a_primary_that_comes_and_goes_is_not_failed_back_to() -> None:
    found = moves(outages(*((60.0 + 120.0 * turn, 120.0 + 120.0 * turn) for turn in range(30))), 3_600)
    assert [kind for _, kind in found] == ["FailedOver"]


def test_the_same_seed_gives_the_same_run_and_another_gives_another() -> None:
    results = [simulated(plan(8, places=2, share=TENTH), {"fast": 0.6, "slow": 0.6}, 3_000, seed) for seed in (1, 1, 2)]
    assert results[0] == results[1]
    assert results[0]["lanes"] != results[2]["lanes"]


def test_a_run_under_random_trouble_accounts_for_every_caller() -> None:
    generator = random.Random(5)
    kinds = [What.DIES, What.RETURNS, What.HANGS, What.SLOW, What.FAILS, What.CAP, What.DRAIN, What.UNDRAIN]
    for seed in range(20):
        incidents = sorted(
            (
                Incident(generator.uniform(0, 900), what, [name], name, {What.FAILS: 0.5, What.SLOW: 3.0}.get(what, 2.0))
                for what in generator.choices(kinds, k=12)
                for name in [generator.choice(("a", "b", "c"))]
            ),
            key=lambda incident: incident.at,
        )
        world = plan(platforms=(platform("own", a=4, b=4), platform("rented", c=8)), places=4, max_wait_s=20.0, share=TENTH)
        found = simulated(
            world, {"fast": 1.0, "slow": 0.7}, 1_500, seed, incidents=incidents, warm_up_requests=0, probed=["a", "b"],
            patience_s=15.0, seen_leaving=True,
        )  # fmt: skip
        for lane in found["lanes"].values():
            assert lane["unfinished"] == 0
            assert lane["offered"] == lane["answered"] + lane["abandoned"] + sum(lane["refused"].values()) + sum(lane["failed"].values())
        assert all(backend["max_in_flight"] <= 8 for backend in found["backends"].values())
