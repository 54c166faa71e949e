"""May this attempt be tried again? The table of endings, and the budget."""

from __future__ import annotations

import pytest

from policies.model import Ending, Outcome, Verdict
from policies.retries import Budget, attempts_allowed, may_pay_twice, may_retry
from tests.policies.stage import GONE, OK, OUR_KEY, REFUSED, RESET, busy


@pytest.mark.parametrize(
    ("ending", "retried"),
    [(OK, False), (GONE, False), (RESET, True), (REFUSED, True), (OUR_KEY, True), (busy(), True)],
)
def test_what_is_retried(ending: Ending, retried: bool) -> None:
    assert may_retry(ending, attempts=1, allowed=2, pays_twice=False, paid_twice=False, after_send=True) is retried
    assert not may_retry(ending, attempts=2, allowed=2, pays_twice=False, paid_twice=False, after_send=True)


def test_paying_twice_is_done_once_if_at_all() -> None:
    def ask(*, paid_twice: bool, after_send: bool) -> bool:
        return may_retry(RESET, attempts=1, allowed=9, pays_twice=True, paid_twice=paid_twice, after_send=after_send)

    assert ask(paid_twice=False, after_send=True)
    assert not ask(paid_twice=True, after_send=True)
    assert not ask(paid_twice=False, after_send=False)


@pytest.mark.parametrize(
    ("outcome", "sent", "twice"),
    [
        (Outcome.UPSTREAM_RESET, True, True),
        (Outcome.UPSTREAM_RESET, False, False),
        (Outcome.FIRST_TOKEN_TIMEOUT, True, True),
        (Outcome.UPSTREAM_CONNECT, False, False),
        (Outcome.UPSTREAM_STATUS, True, False),
    ],
)
def test_what_may_have_been_generated_already(outcome: Outcome, sent: bool, twice: bool) -> None:
    assert may_pay_twice(Ending(Verdict.FAILED, outcome), sent) is twice


def test_batch_may_try_once_more() -> None:
    assert [attempts_allowed(attempts, "interactive") for attempts in (1, 2, 3)] == [1, 2, 3]
    assert [attempts_allowed(attempts, "batch") for attempts in (1, 2, 3)] == [1, 3, 4]


def test_the_budget_is_three_or_a_fifth() -> None:
    budget = Budget()
    for _ in range(3):
        assert budget.allows()
        budget.granted(True)
    assert not budget.allows()
    for _ in range(16):
        budget.granted(False)
    assert budget.allows(), "4 of 20"
    budget.ended(False)
    assert not budget.allows()
    budget.ended(True)
    assert budget.allows()


def test_many_failures_at_once_are_retried_by_a_fifth_in_all() -> None:
    budget = Budget()
    for _ in range(200):
        budget.granted(False)
    retried = 0
    for _ in range(200):
        budget.ended(False)
        if budget.allows():
            budget.granted(True)
            budget.ended(True)
            retried += 1
    assert retried == 43


def test_a_quiet_day_pays_for_no_storm() -> None:
    budget = Budget()
    for _ in range(10_000):
        budget.granted(False)
        budget.ended(False)
    for _ in range(3):
        assert budget.allows()
        budget.granted(True)
        budget.ended(True)
    assert not budget.allows()
