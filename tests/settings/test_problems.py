"""Does a problem read well, and is the nearest word the one that was meant?"""

from __future__ import annotations

import pytest

from proxy.settings.problems import Problem, SettingsError, did_you_mean, nearest

KEYS = ["max_wait", "share", "reserve", "ttft", "tpot", "url", "ca", "connect", "idle", "total"]


def test_a_problem_is_one_line_with_its_place() -> None:
    assert str(Problem("a.yaml", 3, 7, "pools.x", "is wrong")) == "a.yaml:3:7: pools.x: is wrong"
    assert str(Problem("a.yaml", 3, 7, "pools.x", "is odd", warning=True)) == "a.yaml:3:7: pools.x: warning: is odd"


def test_an_error_says_all_its_problems() -> None:
    error = SettingsError([Problem("f", 1, 1, "a", "x"), Problem("f", 2, 1, "b", "y")])
    assert str(error) == "f:1:1: a: x\nf:2:1: b: y"


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("max-wait", "max_wait"),
        ("maxWait", "max_wait"),
        ("max_wiat", "max_wait"),
        ("shar", "share"),
        ("ttff", "ttft"),
        ("tptu", None),
        ("rul", "url"),
        ("ac", "ca"),
        ("c", "ca"),
        ("connects", "connect"),
        ("timeout", None),
        ("x", None),
        ("x" * 10_000, None),
    ],
)
def test_the_nearest_word(word: str, meant: str | None) -> None:
    assert nearest(word, KEYS) == meant


def test_without_a_near_word_a_few_known_ones_are_listed() -> None:
    assert did_you_mean("fsat", ["fast", "slow"]) == '; did you mean "fast"?'
    assert did_you_mean("purple", ["fast", "slow"]) == '; there are "fast" and "slow"'
    assert did_you_mean("purple", ["fast"]) == '; there is "fast"'
    assert did_you_mean("purple", [f"lane{n}" for n in range(50)]) == ""
