"""Are the figures of docs/sizing.md those that its own commands give? The cheap ones in `make test`, all of them in `make soak`."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.lab.commands import ROOT, fairlane, listening

PAGE = (ROOT / "docs" / "sizing.md").read_text()
FENCED = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
FILE = next(block for language, block in FENCED if language == "yaml")
COMMANDS = [
    command.replace("\\\n", " ")
    for language, block in FENCED
    if not language
    for command in re.findall(r"^ *(fairlane (?:.*\\\n)*.*)", block, re.MULTILINE)
]
ENGINE = ("--slots", "16", "--ttft", "150ms", "--tpot", "20ms", "--load-factor", "2")


def asked(start: str) -> list[str]:
    """The page's command that begins so, without `fairlane`."""
    (found,) = (command for command in COMMANDS if command.startswith(f"fairlane {start}"))
    return shlex.split(found)[1:]


def number(pattern: str) -> float:
    """What the page says there."""
    match = re.search(pattern, PAGE)
    assert match is not None, pattern
    return float(match[1].replace(",", ""))


def json_of(*words: str, timeout_s: float = 60.0) -> Any:
    done = fairlane(*words, "--json", timeout_s=timeout_s)
    assert done.returncode == 0, done.stderr
    print(done.stderr[-500:])
    return json.loads(done.stdout)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "fairlane.yaml"
    path.write_text(FILE)
    return path


def test_plan() -> None:
    found = json_of(*asked("plan"))
    assert (found["streams"], found["places"], found["capacity"]) == (80, 16, 96)
    assert "**80**" in PAGE and "(**16**, so **96** requests in all)" in PAGE
    assert found["streams_at_90"] == number(r"rounded up, is (\d+) streams")
    assert found["instances_at_90"] == number(r"that is \*\*(\d+) backends\*\*")


def test_six_backends_are_enough_and_five_are_not(file: Path) -> None:
    assert "warning" not in fairlane("check", str(file)).stderr
    file.write_text(FILE.replace('      - "http://127.0.0.1:8006"\n', ""))
    few = fairlane("check", str(file))
    assert few.returncode == 0 and "needs 80 streams" in few.stderr


@pytest.mark.parametrize("command", [command for command in COMMANDS if "simulate" in command], ids=str)
def test_its_simulations_run(command: str, file: Path) -> None:
    words = [str(file) if word == "fairlane.yaml" else word for word in shlex.split(command)[1:]]
    found = json_of(*words, "--requests", "2000")
    assert found["requests"] <= 2000 and set(found["lanes"]) == {"fast", "slow"}


@pytest.mark.soak
def test_what_the_simulation_says(file: Path) -> None:
    words = [str(file) if word == "fairlane.yaml" else word for word in asked("simulate fairlane.yaml --arrivals fast=3")]
    lanes = json_of(*words, timeout_s=300.0)["lanes"]
    for name, answered, offered, mean, p99, most in re.findall(
        r"^(fast|slow) +answered ([\d,]+) of ([\d,]+), queue wait mean (\d+) ms, p99 ([\d.]+) s, max ([\d.]+) s", PAGE, re.MULTILINE
    ):
        lane = lanes.pop(name)
        wait = lane["queue_wait_s"]
        assert (lane["answered"], lane["offered"]) == (int(answered.replace(",", "")), int(offered.replace(",", "")))
        assert (round(wait["mean"] * 1e3), round(wait["p99"], 2), round(wait["max"], 2)) == (int(mean), float(p99), float(most))
    assert not lanes, "the page speaks of both"


@contextmanager
def engines(*flags: tuple[str, ...]) -> Iterator[list[str]]:
    with ExitStack() as stack:
        yield [stack.enter_context(listening("engine", "--port", "0", *each)) for each in flags]


@pytest.mark.soak
def test_the_cap_that_is_found() -> None:
    with engines(ENGINE) as (url,):
        words = [url if word == "http://127.0.0.1:8001" else word for word in asked("bench --url http://127.0.0.1:8001 --find-max")]
        (platform,) = json_of(*words, timeout_s=1200.0)["platforms"]
    found = platform["find_max"]
    print(found, [(step["label"], round(step["output_tokens_per_s"])) for step in platform["steps"]])
    assert found["max_streams"] == number(r"for this backend:  max_streams: (\d+)")
    assert found["rate_rps"] == pytest.approx(number(r"and at ([\d.]+) requests/s arriving at random"), rel=0.25)  # from a hundred arrivals
    steps = {step["label"]: step for step in platform["steps"]}
    for label in ("16 streams", "17 streams"):
        said = number(rf"(?m)^{label} .* (\d+)  +[\d.]+ +[\d.]+%$")
        assert steps[label]["output_tokens_per_s"] == pytest.approx(said, rel=0.05)


@pytest.mark.soak
def test_the_two_platforms() -> None:
    """By hand: dollars an hour / 3600 / tokens a second under the SLO x 10,000."""
    big = ("--slots", "32", "--ttft", "60ms", "--tpot", "12ms")
    small = ("--slots", "12", "--ttft", "150ms", "--tpot", "35ms", "--prefill-rate", "1500")
    assert all(" ".join(each) in PAGE for each in (big, small))
    with engines(big, small) as urls:
        words = asked("bench --url big=")
        for name, url in zip(("big", "small"), urls, strict=True):
            words[next(n for n, word in enumerate(words) if word.startswith(f"{name}=http"))] = f"{name}={url}"
        report = json_of(*words[: words.index("--html")], timeout_s=1200.0)
    ranked = report["ranking"]["by_cost"]
    for row, (place, name, at, cost) in zip(
        ranked, re.findall(r"^(\d)  (\w+) +(\d+ streams) +([\d.]+) +[\d.]+$", PAGE, re.MULTILINE), strict=True
    ):
        print(row)
        assert (row["place"], row["platform"], row["at"]) == (int(place), name, at)
        assert row["cost_per_10k_tokens"] == pytest.approx(float(cost), rel=0.05)
        per_hour = 4.00 if name == "big" else 0.70
        (step,) = (s for platform in report["platforms"] if platform["name"] == name for s in platform["steps"] if s["label"] == at)
        assert step["slo_attainment"] == 1.0, "all its tokens count"
        assert row["cost_per_10k_tokens"] == pytest.approx(per_hour / 3600 / step["output_tokens_per_s"] * 10_000, rel=0.001)


@pytest.mark.soak
def test_the_whole(tmp_path: Path) -> None:
    with engines(*[ENGINE] * 6) as urls, ExitStack() as stack:
        text = FILE.replace('listen: "127.0.0.1:8080", admin: "127.0.0.1:9090"', 'listen: "127.0.0.1:0", admin: "127.0.0.1:0"')
        for number_, url in enumerate(urls, 1):
            text = text.replace(f"http://127.0.0.1:800{number_}", url)
        path = tmp_path / "fairlane.yaml"
        path.write_text(text)
        words = asked("bench --url http://127.0.0.1:8080")
        words[2] = stack.enter_context(listening("serve", str(path)))
        (step,) = json_of(*words[: words.index("--html")], timeout_s=300.0)["platforms"][0]["steps"]
    assert step["in_flight_mean"] == pytest.approx(number(r"10/s: ([\d.]+) in flight"), rel=0.05)
    assert step["output_tokens_per_s"] == pytest.approx(number(r"in flight, (\d+) tokens/s"), rel=0.05)
    assert step["requests"]["answered"] == step["requests"]["offered"], "nobody refused"
    for name in ("fast", "slow"):
        assert step["lanes"][name]["requests"]["answered"] == number(rf"(?m)^{name} +(\d+)/")
        assert step["lanes"][name]["slo_attainment"] >= 0.95
