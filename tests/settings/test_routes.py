"""Which rules can never match?"""

from __future__ import annotations

import pytest

from tests.settings.directory import lines, read, with_smallest


def rules(first: str, second: str) -> str:
    return with_smallest(f"routes:\n  - {{when: {{{first}}}, pool: chat}}\n  - {{when: {{{second}}}, pool: chat}}")


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        ("", "tools: true"),
        ("lane: fast", "lane: fast, tools: true"),
        ("lane: [fast, slow]", "lane: slow"),
        ("model: qwen-*", "model: [qwen-s, qwen-l]"),
        ("model: qwen-*", "model: qwen-*"),
        ('turns: "<= 5"', 'turns: "< 6"'),
        ('turns: "< 6"', 'turns: "<= 5"'),
        ('turns: "> 4"', 'turns: ">= 5"'),
        ('turns: "<= 5"', "turns: 5"),
        ('turns: ">= 0"', "turns: 7"),
        ('max_tokens: "<= 9 or unset"', 'max_tokens: "<= 9"'),
        ("text: a+", "text: a+"),
    ],
)
def test_a_rule_behind_one_that_takes_all_of_it(wide: str, narrow: str) -> None:
    [line] = lines(rules(wide, narrow))
    assert "routes[1]: can never match: routes[0] takes all that it could" in line


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("tools: true", ""),
        ("tools: true", "tools: false"),
        ("lane: fast, tools: true", "lane: fast"),
        ("lane: slow", "lane: [fast, slow]"),
        ("model: qwen-s", "model: qwen-*"),
        ("model: qwen-?", "model: qwen-*"),
        ('turns: "<= 5"', 'turns: "<= 6"'),
        ('turns: "<= 5"', 'turns: "> 5"'),
        ('turns: "<= 5"', 'prompt_tokens: "<= 5"'),
        ('max_tokens: "<= 9"', 'max_tokens: "<= 9 or unset"'),
        ('max_tokens: "<= 9"', 'max_tokens: ">= 9"'),
        ("text: a+", "text: aa"),
    ],
)
def test_a_rule_that_may_still_match(first: str, second: str) -> None:
    assert read(rules(first, second)).warnings == []
