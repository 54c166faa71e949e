"""Do the figures of a run say what its calls were? Against numbers worked out by hand."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from lab.bench.call import Call
from lab.bench.demand import Arrivals, Demand, Lane, Lengths, Load
from lab.bench.drift import condition, drifted
from lab.bench.drive import Step
from lab.bench.figures import Price, Slo, call_figures, fairness, keeps, median_of, quantile, step_figures
from lab.bench.prompts import NUMBER_WORDS, Prompts, calibrated
from lab.bench.ranking import WEIGHTS, best_step, by_cost, by_weights, knee


def call(at: float, ttft: float = 0.1, tpot: float = 0.05, tokens: int = 11, **more: Any) -> Call:
    """An answered call: its first token after `ttft`, the last (tokens - 1) x tpot later."""
    last_at = at + ttft + (tokens - 1) * tpot
    made = Call("", 100, tokens, True, at, at, at, at + ttft, last_at, tpot, last_at, "ok", prompt_tokens=100, output_tokens=tokens)
    made.counted_by_usage = True
    for name, value in more.items():
        setattr(made, name, value)
    return made


def lost(at: float, outcome: str = "queue_full", refused: bool = True) -> Call:
    return Call("", 100, 11, True, at, at, at, ended_at=at + 0.01, outcome=outcome, refused=refused)


def test_latencies_are_those_of_the_definitions() -> None:
    late = call(10.0, started_at=10.3, first_token_at=10.5)
    assert late.ttft_s == pytest.approx(0.5)  # from the intended start, not from when the client got round to it
    assert late.late_s == pytest.approx(0.3)
    assert call(0.0, tpot=0.04, tokens=11).tpot_s == pytest.approx(0.04)
    assert call(0.0, tokens=1).tpot_s is None


@pytest.mark.parametrize(("q", "expected"), [(0.5, 2.5), (0.95, 3.85), (0.0, 1.0), (1.0, 4.0)])
def test_quantiles_are_linear_between_values(q: float, expected: float) -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], q) == pytest.approx(expected)


def test_a_quantile_among_infinities_is_infinite() -> None:
    assert quantile([1.0, math.inf, math.inf], 0.9) == math.inf


def test_rates_count_the_part_of_an_answer_that_lies_inside() -> None:
    # Ten tokens a second each, for 10 s, one begun 5 s before the span and one 5 s before its end.
    calls = [call(at - 1.0, ttft=1.0, tpot=0.1, tokens=101) for at in (5.0, 12.0, 25.0)]
    figures = call_figures(calls, 10.0, 30.0, None, None)
    assert figures["output_tokens_per_s"] == pytest.approx(101 * (0.5 + 1.0 + 0.5) / 20.0)
    assert figures["throughput_rps"] == pytest.approx(2.0 / 20.0)
    assert figures["in_flight_mean"] == pytest.approx((5.0 + 11.0 + 6.0) / 20.0)


def test_outcomes_are_counted_apart() -> None:
    calls = [call(0.0), lost(0.0), lost(0.0, "queue_timeout"), lost(0.0, "reset", refused=False)]
    requests = call_figures(calls, 0.0, 1.0, None, None)["requests"]
    assert requests == {"offered": 4, "answered": 1, "refused": {"queue_full": 1, "queue_timeout": 1}, "failed": {"reset": 1}}


def test_the_slo_is_judged_over_all_and_goodput_over_those_that_met_it() -> None:
    slo = Slo(ttft_s=1.0, tpot_s=0.1)
    good, slow = [call(0.0) for _ in range(19)], call(0.0, ttft=2.0)
    figures = call_figures([*good, slow], 0.0, 10.0, slo, None)
    assert figures["slo_attainment"] == pytest.approx(0.95)
    assert figures["goodput_rps"] == pytest.approx(1.9)
    assert keeps([call(0.0)] * 20, slo)
    assert keeps([call(0.0)] * 39 + [lost(0.0)], slo)
    assert not keeps([call(0.0)] * 18 + [lost(0.0)] * 2, slo)  # a refused request kept nothing
    assert not keeps([call(0.0, tpot=0.2)] * 20, slo)
    assert not keeps([], slo)


def test_cost_by_hand() -> None:
    # 20 answers of 11 tokens in 10 s: 22 tokens/s. $3.60 an hour is $0.001 a second, so 10,000 tokens cost 0.001 / 22 x 10,000.
    slo = Slo(ttft_s=1.0)
    calls = [call(1.0) for _ in range(15)] + [call(1.0, ttft=2.0) for _ in range(5)]
    hourly = call_figures(calls, 0.0, 10.0, slo, Price(per_hour=3.60))
    assert hourly["cost_per_10k_tokens"] == pytest.approx(0.4545454545)
    assert hourly["cost_per_10k_tokens_slo"] == pytest.approx(0.4545454545 * 20 / 15)  # three quarters bear it all
    # 100 tokens in at $0.50 and 11 out at $1.50 a million: $0.0000665 a call, 11 tokens each.
    by_tokens = call_figures(calls, 0.0, 10.0, slo, Price(per_million=(0.5, 1.5)))
    assert by_tokens["cost_per_10k_tokens"] == pytest.approx(0.0000665 / 11 * 10_000)
    assert by_tokens["cost_per_hour"] == pytest.approx(2 * 0.0000665 * 3600)


def step(label: str, **figures: Any) -> dict[str, Any]:
    requests = {"offered": 10, "answered": 10, "refused": {}, "failed": {}}
    base: dict[str, Any] = {"label": label, "requests": requests, "ttft_s": {"p95": 0.5}, "tpot_s": {"p95": 0.05}, "e2e_s": {"p95": 5.0}}
    return {**base, "slo_kept": True, "goodput_rps": 1.0, "output_tokens_per_s": 100.0, **figures}


def test_ranking_by_cost_takes_each_platform_at_its_cheapest_step_that_keeps_the_slo() -> None:
    fast = [step("4", cost_per_10k_tokens_slo=0.09), step("8", cost_per_10k_tokens_slo=0.06), step("16", cost_per_10k_tokens_slo=0.03)]
    fast[2]["slo_kept"] = False  # the cheapest of all does not count
    slow = [step("4", cost_per_10k_tokens_slo=0.05), step("8", cost_per_10k_tokens_slo=0.04)]
    never = [step("4", cost_per_10k_tokens_slo=0.01, slo_kept=False)]
    best = {"fast": best_step(fast, True), "never": best_step(never, True), "slow": best_step(slow, True)}
    rows = by_cost(best, True)
    assert [(row["place"], row["platform"], row["at"]) for row in rows] == [(1, "slow", "8"), (2, "fast", "8"), (None, "never", None)]
    assert rows[1]["times_the_cheapest"] == pytest.approx(1.5)
    assert rows[2]["why_not"] == "keeps the SLO at no step"


def test_the_weighted_score_by_hand() -> None:
    quick = step("8", ttft_s={"p95": 0.2}, tpot_s={"p95": 0.02}, goodput_rps=2.0, cost_per_10k_tokens_slo=0.08)
    cheap = step("8", ttft_s={"p95": 0.8}, tpot_s={"p95": 0.04}, goodput_rps=4.0, cost_per_10k_tokens_slo=0.04)
    best = {"quick": quick, "cheap": cheap, "none": None}
    # quick: latency 1, throughput 1/2, cost 1/2; cheap: latency (1/4 + 1/2) / 2, throughput 1, cost 1.
    realtime = by_weights(best, WEIGHTS["realtime"], True)
    assert [(row["platform"], row["score"]) for row in realtime] == [
        ("quick", pytest.approx(0.5 + 0.3 * 0.5 + 0.2 * 0.5)),
        ("cheap", pytest.approx(0.5 * 0.375 + 0.3 + 0.2)),
        ("none", 0.0),
    ]
    assert [row["platform"] for row in by_weights(best, WEIGHTS["batch"], True)] == ["cheap", "quick", "none"]
    unpriced = {name: {**found, "cost_per_10k_tokens_slo": None} for name, found in (("quick", quick), ("cheap", cheap))}
    rows = by_weights(unpriced, WEIGHTS["realtime"], True)
    assert rows[0]["score"] == pytest.approx((0.5 * 1 + 0.3 * 0.5) / 0.8)
    assert "cost" not in rows[0]


def test_the_knee_is_before_the_largest_jump() -> None:
    ttft = [0.1, 0.11, 0.14, 1.4, 4.0]
    found = knee([step(str(2**n), ttft_s={"p95": value}) for n, value in enumerate(ttft)])
    assert found is not None
    assert (found["at"], found["next"], found["metric"]) == ("4", "8", "ttft")
    assert found["ratio"] == pytest.approx(10.0)
    assert knee([step(str(n), ttft_s={"p95": value}) for n, value in enumerate((0.1, 0.15, 0.2))]) is None


def test_fairness() -> None:
    lanes = {
        "fast": call_figures([call(0.0)] * 4, 0.0, 10.0, None, None),
        "slow": call_figures([call(0.0, ttft=0.4), lost(0.0)], 0.0, 10.0, None, None),
    }
    found = fairness(lanes)
    assert found["answered_ratio"] == {"fast": 1.0, "slow": 0.5}
    assert found["jain_index"] == pytest.approx(1.5**2 / (2 * 1.25))
    assert found["share_of_answers"]["fast"] == pytest.approx(0.8)
    assert found["ttft_p95_ratio"] == pytest.approx(4.0)


def test_long_runs_have_windows_and_mixes_their_parts() -> None:
    run = Step(0.0, 400.0, [call(float(n), prompt_tokens_asked=128 if n % 2 else 2048, lane="a" if n < 300 else "b") for n in range(400)])
    run.ended_at = 401.0
    figures = step_figures(run, None, None)
    assert [(window["from_s"], window["to_s"], window["requests"]["offered"]) for window in figures["windows"]] == [
        (0.0, 180.0, 180),
        (180.0, 400.0, 220),
    ]
    assert list(figures["by_prompt_tokens"]) == ["128", "2048"]
    assert figures["lanes"]["b"]["requests"]["offered"] == 100


def test_a_late_client_is_said() -> None:
    calls = [call(float(n), ttft=0.2) for n in range(100)]
    prompt = Step(0.0, 100.0, calls, ended_at=101.0, loop_late_s=[0.001] * 50)
    assert not step_figures(prompt, None, None)["client"]["lagged"]
    for late in calls[:3]:
        late.started_at = late.intended_at + 0.3
    assert step_figures(prompt, None, None)["client"]["lagged"]
    assert step_figures(Step(0.0, 100.0, [], ended_at=101.0, loop_late_s=[0.2] * 9), None, None)["client"]["lagged"]


def test_rounds_become_one_by_medians_and_sums() -> None:
    rounds = [call_figures([call(0.0, ttft=ttft)], 0.0, 1.0, Slo(0.25), None) for ttft in (0.3, 0.1, 0.2)]
    merged = median_of(rounds)
    assert merged["ttft_s"]["p95"] == pytest.approx(0.2)
    assert merged["requests"]["offered"] == 3
    assert merged["slo_kept"] is True  # in two of three


def test_the_same_seed_makes_the_same_load() -> None:
    lanes = (Lane("fast", "f", 0.2), Lane("slow", "s", 0.8))
    demand = Demand(Lengths(((128, 1.0), (2048, 1.0))), Lengths(mean=200, cv=1.0), lanes=lanes, seed=7)
    first, second = (list(demand.asked(Load(rate_rps=50.0), 40.0, 0)) for _ in range(2))
    assert first == second
    assert list(demand.asked(Load(rate_rps=50.0), 40.0, 1)) != first
    assert len(first) == pytest.approx(2000, rel=0.1)
    assert sum(asked.lane == lanes[0] for asked in first) / len(first) == pytest.approx(0.2, abs=0.04)
    assert sum(asked.output_tokens for asked in first) / len(first) == pytest.approx(200, rel=0.1)


@pytest.mark.parametrize("cv", [0.0, 1.0, 2.0])
def test_gaps_have_the_variation_asked_for(cv: float) -> None:
    times = list(Arrivals(cv).times(100.0, 400.0, Random(1)))
    gaps = [later - earlier for earlier, later in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.01, rel=0.05)
    assert math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) / mean == pytest.approx(cv, rel=0.1, abs=1e-6)


def test_every_prompt_differs_from_its_beginning_on() -> None:
    prompts = Prompts(0)
    texts = [prompts.text(60) for _ in range(2000)]
    assert len({" ".join(text.split()[:NUMBER_WORDS]) for text in texts}) == 2000
    assert {len(text.split()) for text in texts} == {60}
    assert len(prompts.text(100_000).split()) == 100_000
    assert Prompts(0).text(60) != Prompts(0).text(60)  # a second run is not answered from the first one's cache


def test_calibration_is_the_line_through_two_prompts() -> None:
    line = calibrated((20, 34), (220, 284))
    assert line.fixed == pytest.approx(9.0)
    assert line.per_word == pytest.approx(1.25)
    assert line.words(134) == 100
    assert line.words(1) == NUMBER_WORDS


def report(**figures: Any) -> dict[str, Any]:
    return {"platforms": [{"name": "gpu", "steps": [step("8", **figures)]}]}


@pytest.mark.parametrize(
    ("spelt", "now", "failed"),
    [
        ("ttft.p95 > 1.2x", {"ttft_s": {"p95": 0.61}}, True),
        ("ttft.p95 > 1.2x", {"ttft_s": {"p95": 0.59}}, False),
        ("ttft.p95 > 800ms", {"ttft_s": {"p95": 0.81}}, True),
        ("goodput_rps < 90%", {"goodput_rps": 0.8}, True),
        ("goodput_rps < 0.9x", {"goodput_rps": 0.95}, False),
        ("requests.failed > 0", {"requests": {"offered": 9, "answered": 8, "refused": {}, "failed": {"reset": 1}}}, True),
        ("ttft.p95 > 1.2x", {"ttft_s": None}, True),  # nothing was answered any more
    ],
)
def test_drift(spelt: str, now: dict[str, Any], failed: bool) -> None:
    rows = drifted(report(**now), report(), [condition(spelt)])
    assert [row["failed"] for row in rows] == [failed]


def test_steps_without_a_counterpart_are_not_compared() -> None:
    other = {"platforms": [{"name": "gpu", "steps": [step("16")]}]}
    assert drifted(report(), other, [condition("ttft.p95 > 1.2x")]) == []


@pytest.mark.parametrize("spelt", ["ttft.p95", "ttft.p95 > much", "tfft.p95 > 1.2x", "ttft.p42 > 1x", "ttft.p95 == 1"])
def test_a_condition_that_means_nothing_is_refused(spelt: str) -> None:
    with pytest.raises(ValueError, match=r"must be a figure|is not a figure"):
        condition(spelt)
