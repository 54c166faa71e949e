"""Does every name lead somewhere, and is what is doubtful told without refusing it?"""

from __future__ import annotations

import pytest

from tests.settings.directory import lines, read

FILE = """\
lanes: {fast: {}, slow: {}}
keys:
  - {name: acme, secret: a, lane: LANE, pools: [POOL], models: [MODEL]}
anonymous: {lane: ANON}
platforms:
  own: {max_streams: 20, backends: ["http://h"]}
  rented: {max_streams: 40, backends: ["http://i"], models: {qwen-s: theirs}}
pools:
  small: {primary: PRIMARY, standby: [STANDBY], model: SERVED}
  large: {primary: own, demand: {rps: RPS, generation_time: 8s}}
routes:
  - {when: {lane: [WHEN], key: KEY, model: MODEL}, pool: ROUTE}
  - {split: {SPLIT: 1, large: 1}}
"""
GOOD = {
    "LANE": "fast",
    "POOL": "small",
    "MODEL": "qwen-s",
    "ANON": "slow",
    "PRIMARY": "own",
    "STANDBY": "rented",
    "SERVED": "qwen-s",
    "RPS": "2",
    "WHEN": "slow",
    "KEY": "acme",
    "ROUTE": "small",
    "SPLIT": "small",
}


def written(**words: str) -> str:
    text = FILE
    for place, word in {**GOOD, **words}.items():
        text = text.replace(place, word)
    return text


def test_the_file_of_these_tests_is_good() -> None:
    assert read(written()).warnings == []


@pytest.mark.parametrize(
    ("place", "word", "line"),
    [
        ("LANE", "fsat", '3:35: keys[0].lane: names no lane of this file; did you mean "fast"?'),
        ("ANON", "slwo", '4:19: anonymous.lane: names no lane of this file; did you mean "slow"?'),
        ("POOL", "smal", '3:49: keys[0].pools[0]: names no pool of this file; did you mean "small"?'),
        ("PRIMARY", "onw", '9:20: pools.small.primary: names no platform of this file; did you mean "own"?'),
        ("STANDBY", "renter", '9:35: pools.small.standby[0]: names no platform of this file; did you mean "rented"?'),
        ("STANDBY", "own", "9:35: pools.small.standby[0]: is also the primary; a platform cannot stand in for itself, name another"),
        (
            "SERVED",
            "qwen-x",
            "9:51: pools.small.model: is not among platforms.rented.models, so that platform would never serve this pool; "
            'did you mean "qwen-s"?',
        ),
        ("WHEN", "sloow", '12:20: routes[0].when.lane[0]: names no lane of this file; did you mean "slow"?'),
        ("KEY", "purple", '12:32: routes[0].when.key: names no key of this file; there is "acme"'),
        ("ROUTE", "larg", '12:60: routes[0].pool: names no pool of this file; did you mean "large"?'),
        ("SPLIT", "smalll", '13:14: routes[1].split.smalll: names no pool of this file; did you mean "small"?'),
    ],
)
def test_a_name_that_leads_nowhere(place: str, word: str, line: str) -> None:
    assert lines(written(**{place: word})) == [f"f:{line}"]


def test_a_model_that_a_rule_asks_for_must_be_served() -> None:
    text = (
        written(PRIMARY="rented", STANDBY="own")
        .replace(", standby: [own], model: qwen-s", "")
        .replace("model: qwen-s}, pool", "model: [q*, qwen-t]}, pool")
    )
    assert lines(text) == ['f:12:50: routes[0].when.model[1]: is served by no platform of this pool; did you mean "qwen-s"?']


def test_names_are_checked_beside_other_problems() -> None:
    found = lines(written(LANE="fsat", RPS="x"))
    assert [line.split(": ")[1] for line in found] == ["keys[0].lane", "pools.large.demand.rps"]


def test_without_lanes_the_default_ones_are_known() -> None:
    text = written(ANON="slwo").replace("lanes: {fast: {}, slow: {}}", "")
    assert lines(text) == ['f:4:19: anonymous.lane: names no lane of this file; did you mean "slow"?']


def test_somebody_must_be_able_to_call() -> None:
    body = 'platforms: {g: {max_streams: 1, backends: ["http://h"]}}\npools: {p: {primary: g}}\n'
    remedy = "nobody could call: give keys, or `anonymous: {lane: ...}` for callers without one"
    assert lines(body) == [f"f:1:1: keys: {remedy}"]
    assert lines(body + "keys: []\n") == [f"f:3:1: keys: {remedy}"]


def test_several_pools_need_routes() -> None:
    text = written().split("routes:")[0]
    assert lines(text) == [
        "f:1:1: routes: are required with several pools: say which requests go to which, the last rule with a pool alone"
    ]


@pytest.mark.parametrize(("rps", "warned"), [("2", False), ("2.25", False), ("2.26", True)])
def test_caps_below_demand_are_a_warning(rps: str, warned: bool) -> None:
    found = [str(problem) for problem in read(written(RPS=rps)).warnings]
    expected = (
        'f:10:25: pools.large.demand: warning: needs 18.08 streams on average, and platform "own" carries 20: '
        "give its backends a max_streams of 21 in all, so that at most 90% is in use, or expect less"
    )
    assert found == [expected] * warned


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        (
            "http://i",
            "http://h:80/",
            'f:7:40: platforms.rented.backends[0]: warning: is also the URL of backend "own-1": together they may exceed what it carries',
        ),
        ("routes:", "  idle: {primary: own}\nroutes:", "f:11:3: pools.idle: warning: is reached by no route; add one, or remove the pool"),
        (
            "pools:\n",
            '  spare: {max_streams: 1, backends: ["http://j"]}\npools:\n',
            "f:8:3: platforms.spare: warning: serves no pool; name it as primary or standby of one, or remove it",
        ),
        (
            "models: [qwen-s]",
            "models: [qwen-t]",
            'f:3:66: keys[0].models[0]: warning: is a model that nothing in this file names; did you mean "qwen-s"?',
        ),
        (
            "generation_time: 8s}}",
            "generation_time: 8s}, continue: true}",
            "f:10:74: pools.large.continue: warning: can do nothing: this pool has one backend, and it takes another; "
            "add one, or leave this out",
        ),
        (
            "model: qwen-s}",
            "model: qwen-s, hedge: {after: 1m}}",
            "f:9:74: pools.small.hedge.after: warning: can do nothing: an attempt is given up after 60s without a first token; "
            "ask sooner, or raise timeouts.first_token",
        ),
    ],
)
def test_what_is_doubtful_is_a_warning(before: str, after: str, line: str) -> None:
    assert [str(problem) for problem in read(written().replace(before, after, 1)).warnings] == [line]
