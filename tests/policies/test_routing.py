"""Which pool is this request for?"""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.model import Request
from policies.routing import KINDS, Choice, Route, Router, condition


def request(**fields: Any) -> Request:
    return Request(**{"id": "r", "tenant": "acme", "lane": 0, **fields})


def holds(kind: str, value: Any, **fields: Any) -> bool:
    return condition(kind, value).holds(request(**fields))


# The rules of the example file in contract.md.
ROUTER = Router(
    [
        Route([condition("traffic", "batch")], "batch"),
        Route(
            [condition("prompt_tokens", ("<=", 500, False)), condition("max_tokens", ("<=", 256, False)), condition("tools", False)],
            "small",
        ),
        Route([], "large"),
    ]
)


@pytest.mark.parametrize(
    ("fields", "pool"),
    [
        ({"traffic": "batch", "prompt_tokens": 3, "max_tokens": 3}, "batch"),
        ({"prompt_tokens": 500, "max_tokens": 256}, "small"),
        ({"prompt_tokens": 501, "max_tokens": 256}, "large"),
        ({"prompt_tokens": 500, "max_tokens": 257}, "large"),
        ({"prompt_tokens": 500, "max_tokens": 256, "tools": True}, "large"),
        ({"prompt_tokens": 500}, "large"),  # without max_tokens it is above every limit
    ],
)
def test_the_example_file(fields: dict[str, Any], pool: str) -> None:
    choice = ROUTER.choose(request(**fields))
    assert choice is not None
    assert choice.pool == pool


def test_the_answer_names_the_rule_and_why() -> None:
    assert ROUTER.choose(request(prompt_tokens=1, max_tokens=1)) == Choice(
        "small", 1, "prompt_tokens: <= 500, max_tokens: <= 256, tools: false"
    )
    assert ROUTER.choose(request()) == Choice("large", 2, "always")


def test_no_rule_no_pool() -> None:
    assert Router([]).choose(request()) is None
    assert Router([Route([condition("key", "acme")], "large")]).choose(request(tenant="trial")) is None


@pytest.mark.parametrize("kind", ["model", "path", "key", "traffic", "task"])
@pytest.mark.parametrize(
    ("value", "name", "expected"),
    [
        ("qwen", "qwen", True),
        ("qwen", "qwen-72b", False),
        ("qwen", "Qwen", False),
        ("qwen*", "qwen-72b", True),
        ("qwen*", "my-qwen", False),
        ("*/qwen?", "org/qwen2", True),
        ("[gq]wen", "qwen", True),
        ("a.b", "axb", False),
        (["llama", "qwen-*"], "llama", True),
        (["llama", "qwen-*"], "qwen-7b", True),
        (["llama", "qwen-*"], "llama-7b", False),
        ([], "llama", False),
        ("*", "line\nbreak", True),
    ],
)
def test_names_globs_and_lists(kind: str, value: Any, name: str, expected: bool) -> None:
    field = {"key": "tenant"}.get(kind, kind)
    assert holds(kind, value, **{field: name}) is expected


def test_what_a_request_does_not_name_matches_no_name() -> None:
    for value in ("*", "qwen", ["", "*"]):
        assert not holds("model", value)
        assert not holds("task", value)


@pytest.mark.parametrize(
    ("symbol", "below", "at", "above", "unset"),
    [
        ("<", True, False, False, False),
        ("<=", True, True, False, False),
        (">", False, False, True, True),
        (">=", False, True, True, True),
        ("==", False, True, False, False),
        ("!=", True, False, True, True),
    ],
)
def test_comparisons(symbol: str, below: bool, at: bool, above: bool, unset: bool) -> None:
    numbers = (255, 256, 257, None)
    assert [holds("max_tokens", (symbol, 256, False), max_tokens=number) for number in numbers] == [below, at, above, unset]
    assert [holds("max_tokens", (symbol, 256, True), max_tokens=number) for number in numbers] == [below, at, above, True]
    assert [holds("turns", (symbol, 256, False), turns=number) for number in numbers[:3]] == [below, at, above]
    assert [holds("prompt_tokens", (symbol, 256, False), prompt_tokens=number) for number in numbers[:3]] == [below, at, above]


@pytest.mark.parametrize("kind", ["tools", "json", "images"])
def test_facts(kind: str) -> None:
    for wanted in (True, False):
        for given_fact in (True, False):
            assert holds(kind, wanted, **{kind: given_fact}) is (wanted is given_fact)


def test_lane() -> None:
    assert holds("lane", 1, lane=1)
    assert not holds("lane", 1, lane=0)


def test_text_and_who_needs_it() -> None:
    assert holds("text", r"(?i)\btranslate\b", text="Please Translate this")
    assert not holds("text", r"^translate", text="Please translate")
    assert Router([Route([], "a"), Route([condition("text", "x")], "b")]).needs_text
    assert not ROUTER.needs_text


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("colour", "red"),
        ("model", 7),
        ("model", ["a", 7]),
        ("lane", "fast"),
        ("tools", "true"),
        ("max_tokens", ("=<", 5, False)),
        ("max_tokens", ("<=", "5", False)),
        ("max_tokens", "<= 5"),
        ("text", "(unclosed"),
        ("text", 5),
    ],
)
def test_what_is_no_condition(kind: str, value: Any) -> None:
    with pytest.raises(ValueError, match=kind):
        condition(kind, value)


def test_every_kind_can_be_described() -> None:
    values: dict[str, Any] = {"lane": 1, "tools": True, "json": False, "images": True}
    values |= dict.fromkeys(["prompt_tokens", "max_tokens", "turns"], ("<=", 256, True))
    said = {kind: condition(kind, values.get(kind, "x*")).describe() for kind in KINDS}
    assert said["max_tokens"] == "max_tokens: <= 256 or unset"
    assert said["json"] == "json: false"
    assert said["model"] == "model: x*"
    assert len(said) == 13


@pytest.mark.parametrize(
    "route",
    [Route([], None), Route([], "a", (("b", 1),)), Route([], None, (("a", 0), ("b", 0))), Route([], None, (("a", -1), ("b", 2)))],
)
def test_a_rule_leads_somewhere(route: Route) -> None:
    with pytest.raises(ValueError, match=r"split|rule 0"):
        Router([route])


# -- split


def sides(split: tuple[tuple[str, int], ...], number: int = 20_000) -> list[str]:
    router = Router([Route([], None, split)])
    choices = [router.choose(request(tenant=f"t{index % 7}", conversation=index + 1)) for index in range(number)]
    return [choice.pool for choice in choices if choice is not None]


@pytest.mark.parametrize("weights", [(95, 5), (1, 1, 1), (1, 0, 9), (7,)])
def test_split_weights_hold(weights: tuple[int, ...]) -> None:
    split = tuple((f"pool-{index}", weight) for index, weight in enumerate(weights))
    went = sides(split)
    for pool, weight in split:
        share = weight / sum(weights)
        assert abs(went.count(pool) - share * len(went)) <= 4 * math.sqrt(len(went) * share * (1 - share))


def test_a_tenants_conversation_stays_on_its_side() -> None:
    router = Router([Route([], None, (("a", 1), ("b", 1)))])
    for conversation in range(1, 200):
        pools = {router.choose(request(conversation=conversation, id=f"r{index}", lane=index % 2, turns=index)) for index in range(5)}
        assert len(pools) == 1


def test_the_same_conversation_of_two_tenants_is_two() -> None:
    router = Router([Route([], None, (("a", 1), ("b", 1)))])
    pairs = [[router.choose(request(conversation=each, tenant=tenant)) for tenant in ("acme", "trial")] for each in range(1, 2001)]
    assert abs(sum(one == other for one, other in pairs) - 1000) < 4 * math.sqrt(500)


def test_without_a_conversation_each_request_is_divided_by_itself() -> None:
    router = Router([Route([], None, (("a", 1), ("b", 1)))])
    went = [router.choose(request(id=f"r{index}")) for index in range(2000)]
    assert abs(sum(choice is not None and choice.pool == "a" for choice in went) - 1000) < 4 * math.sqrt(500)


def test_a_weight_that_grows_moves_only_what_it_must() -> None:
    before, after = sides((("v1", 95), ("v2", 5))), sides((("v1", 90), ("v2", 10)))
    moved = [(one, other) for one, other in zip(before, after, strict=True) if one != other]
    assert set(moved) == {("v1", "v2")}
    assert abs(len(moved) - 1000) < 4 * math.sqrt(1000)


def test_two_splits_divide_independently() -> None:
    one, other = sides((("a", 1), ("b", 1))), sides((("c", 1), ("d", 1)))
    both = sum(first == "a" and second == "c" for first, second in zip(one, other, strict=True))
    assert abs(both - 5000) < 4 * math.sqrt(20_000 * 0.25 * 0.75)


def test_why_of_a_split_tells_its_weight() -> None:
    choice = Router([Route([condition("model", "m")], None, (("a", 95), ("b", 0)))]).choose(request(model="m"))
    assert choice == Choice("a", 0, "model: m; split 95/95")


# -- what must always hold

a_condition = st.one_of(
    st.builds(condition, st.sampled_from(["model", "key", "task"]), st.lists(st.sampled_from(["a", "b", "a*", "?"]), max_size=2)),
    st.builds(
        condition,
        st.sampled_from(["prompt_tokens", "max_tokens"]),
        st.tuples(st.sampled_from(["<=", ">"]), st.integers(0, 3), st.booleans()),
    ),
    st.builds(condition, st.sampled_from(["tools", "json"]), st.booleans()),
    st.builds(condition, st.just("lane"), st.integers(0, 2)),
)
a_request = st.builds(
    Request,
    id=st.text(max_size=3),
    tenant=st.sampled_from(["a", "b", "ab"]),
    lane=st.integers(0, 2),
    model=st.sampled_from([None, "a", "ab", "c"]),
    prompt_tokens=st.integers(0, 4),
    max_tokens=st.none() | st.integers(0, 4),
    tools=st.booleans(),
    json=st.booleans(),
    conversation=st.integers(-(2**63), 2**64),
)


@given(st.lists(st.lists(a_condition, max_size=2), max_size=5), a_request)
def test_the_first_rule_whose_conditions_all_hold_decides(rules: list[list[Any]], asked: Request) -> None:
    router = Router([Route(conditions, f"pool-{index}") for index, conditions in enumerate(rules)])
    expected = next((index for index, conditions in enumerate(rules) if all(each.holds(asked) for each in conditions)), None)
    choice = router.choose(asked)
    assert (None if choice is None else (choice.rule_index, choice.pool)) == (None if expected is None else (expected, f"pool-{expected}"))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any), a_request)
def test_a_split_always_answers_and_never_with_a_side_of_no_weight(weights: list[int], asked: Request) -> None:
    choice = Router([Route([], None, tuple((f"pool-{index}", weight) for index, weight in enumerate(weights)))]).choose(asked)
    assert choice is not None
    assert weights[int(choice.pool.removeprefix("pool-"))] > 0
