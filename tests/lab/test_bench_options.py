"""Does each spelling on the command line become what it says, and is nonsense told apart before anything is sent?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.bench import options as spelt
from lab.bench.command import options
from lab.bench.demand import Load
from lab.bench.figures import Price, Slo
from lab.bench.options import Options

USUAL: dict[str, Any] = {
    "urls": ["http://127.0.0.1:8000"],
    "models": [],
    "keys": [],
    "rate": None,
    "arrivals": "poisson",
    "concurrency": None,
    "trace": None,
    "endpoint": "chat",
    "rounds": None,
    "duration": "30s",
    "prompt_tokens": "128,2048",
    "output_tokens": "256",
    "lanes": [],
    "slo": None,
    "find_max": False,
    "per_hour": [],
    "per_million": [],
    "weights": "realtime",
    "floor": 20,
    "timeout": "2m",
    "ca": None,
    "insecure": False,
    "seed": 0,
    "html": None,
    "baseline": None,
    "fail_if": [],
    "json": False,
}


def asked(**more: Any) -> Options:
    return options(**{**USUAL, **more})


def test_the_usual_ladder_is_measured_three_times_and_a_rate_once() -> None:
    assert [load.concurrency for load in asked().loads] == [1, 4, 8, 16, 32, 64]
    assert asked().rounds == 3
    run = asked(rate="1,2.5", duration="1m30s")
    assert (run.loads, run.rounds, run.duration_s) == ((Load(rate_rps=1.0), Load(rate_rps=2.5)), 1, 90.0)


def test_lengths() -> None:
    assert spelt.lengths("--x", "256").choices == ((256, 1.0),)
    assert spelt.lengths("--x", "128:0.8,2048:0.2").choices == ((128, 0.8), (2048, 0.2))
    drawn = spelt.lengths("--x", "lognormal:200,cv=1.5")
    assert (drawn.mean, drawn.cv) == (200.0, 1.5)


def test_lanes_keep_keys_with_colons_and_scale_their_shares() -> None:
    fast, slow = spelt.lanes(["fast=sk:a=b:1", "slow=sk-s:3"])
    assert (fast.name, fast.key, fast.share, slow.share) == ("fast", "sk:a=b", 0.25, 0.75)


def test_slo_by_targets_and_by_profile() -> None:
    assert spelt.slo("ttft=1s,tpot=150ms") == Slo(1.0, 0.15) == spelt.slo("chat")
    assert spelt.slo("tpot=80ms") == Slo(None, 0.08)


def test_what_belongs_to_a_platform_is_given_by_name_by_order_or_once() -> None:
    run = asked(
        urls=["own=http://10.0.0.1:8000", "rented=https://llm.example.com/v1"],
        keys=["rented=sk=1"],
        models=["a", "b"],
        per_hour=["own=2.10"],
        per_million=["rented=0.5,1.5"],
    )
    own, rented = run.platforms
    assert (own.name, own.key, own.model, own.price) == ("own", "", "a", Price(per_hour=2.10))
    assert (rented.key, rented.model, rented.price) == ("sk=1", "b", Price(per_million=(0.5, 1.5)))
    assert [p.key for p in asked(urls=["http://a:1", "http://b:1"], keys=["sk"]).platforms] == ["sk", "sk"]
    assert asked().platforms[0].name == "127.0.0.1:8000"


def test_a_trace_is_replayed_from_its_first_arrival(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    lines: list[dict[str, Any]] = [
        {
            "t": 12.5,
            "lane": "slow",
            "pool": "p",
            "prompt_tokens": 9,
            "max_tokens": None,
            "output_tokens": 0,
            "stream": False,
            "outcome": "x",
        },
        {
            "t": 10.0,
            "lane": "fast",
            "pool": "p",
            "prompt_tokens": 80,
            "max_tokens": 64,
            "output_tokens": 33,
            "stream": True,
            "outcome": "ok",
        },
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = asked(trace=file, lanes=["fast=sk-f", "slow=sk-s"])
    first, second = run.demand.trace
    assert (first.at_s, first.lane and first.lane.key, first.prompt_tokens, first.output_tokens, first.stream) == (
        0.0,
        "sk-f",
        80,
        33,
        True,
    )
    assert (second.at_s, second.output_tokens, second.stream) == (2.5, 256, False)
    assert (run.loads, run.rounds, run.duration_s) == ((Load(),), 1, 3.5)
    with pytest.raises(ValueError, match=r"trace.jsonl:1: lane 'slow' has no key"):
        asked(trace=file, lanes=["fast=sk-f"])
    file.write_text('{"t": "x"}\n')
    with pytest.raises(ValueError, match="is not an arrival"):
        asked(trace=file)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"urls": ["127.0.0.1:8000"]}, "--url"),
        ({"urls": ["http://a:1", "http://a:1"]}, "one name"),
        ({"rate": "fast"}, "--rate"),
        ({"rate": "0"}, "--rate"),
        ({"concurrency": "1.5"}, "whole numbers"),
        ({"duration": "30"}, "--duration"),
        ({"duration": "0s"}, "above 0"),
        ({"arrivals": "gamma"}, "--arrivals"),
        ({"arrivals": "gamma:cv=0"}, "--arrivals"),
        ({"prompt_tokens": "0"}, "--prompt-tokens"),
        ({"output_tokens": "lognormal:x"}, "--output-tokens"),
        ({"output_tokens": "1:0"}, "add up to nothing"),
        ({"lanes": ["fast"]}, "NAME=KEY:SHARE"),
        ({"lanes": ["fast=a:1", "fast=b:1"]}, "name of its own"),
        ({"slo": "quick"}, "--slo"),
        ({"slo": "ttft=1"}, "--slo"),
        ({"find_max": True}, "Add --slo"),
        ({"find_max": True, "slo": "chat", "rate": "1"}, "at a time"),
        ({"weights": "speed=1"}, "--weights"),
        ({"per_million": ["0.5"]}, "INPUT,OUTPUT"),
        ({"per_hour": ["1"], "per_million": ["1,2"]}, "say which"),
        ({"keys": ["a", "b"]}, "once for each"),
        ({"fail_if": ["ttft.p95 > 1.2x"]}, "--baseline"),
        ({"fail_if": ["ttft > 1.2x"]}, "not a figure"),
        ({"baseline": Path("no-such-file")}, "cannot read"),
        ({"trace": Path("no-such-file")}, "cannot read"),
        ({"html": Path("no-such-folder/a.html")}, "no folder"),
    ],
)
def test_nonsense_is_named_with_its_remedy(more: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        asked(**more)


def test_a_baseline_must_be_a_report_and_must_be_used(tmp_path: Path) -> None:
    file = tmp_path / "last-week.json"
    file.write_text("[]")
    with pytest.raises(ValueError, match="not a report"):
        asked(baseline=file, fail_if=["ttft.p95 > 1.2x"])
    file.write_text('{"platforms": []}')
    with pytest.raises(ValueError, match="say what fails"):
        asked(baseline=file)
