"""May this attempt be tried again?

Only before the first token, on another backend, while attempts are left. A budget over all requests keeps retries off what is
failing: retries in flight <= max(3, 20 % of the requests in flight), and 3 and 20 % of the requests in all. The second bound is for
failures that come at once: hundreds of them follow each other through three places in flight within a second (linkerd and Finagle count
so too). A retry onto a backend whose latest result is good is counted and never held back, so that a healthy standby takes over at once;
beyond the budget the others wait.
"""

from __future__ import annotations

from policies.model import Ending, Outcome, Verdict

BUDGET_LEAST = 3  # policies.md 9
BUDGET_RATIO = 0.2
RETRIED = frozenset({Verdict.FAILED, Verdict.BUSY, Verdict.REFUSES_US})
# Failures that tell nothing about whether an answer was being generated: trying again may pay for it twice.
UNKNOWN_PROGRESS = frozenset({Outcome.UPSTREAM_RESET, Outcome.UPSTREAM_PROTOCOL, Outcome.FIRST_TOKEN_TIMEOUT, Outcome.TRUNCATED})


def attempts_allowed(attempts: int, traffic: str) -> int:
    """How many attempts in all? Batch has time for one more, unless the pool forbids retries."""
    return attempts + 1 if traffic == "batch" and attempts > 1 else attempts


def may_pay_twice(ending: Ending, sent: bool) -> bool:
    """Would another attempt perhaps generate a second time what the failed one already did? `sent`: the request was fully sent."""
    return sent and ending.verdict is Verdict.FAILED and ending.outcome in UNKNOWN_PROGRESS


def may_retry(ending: Ending, *, attempts: int, allowed: int, pays_twice: bool, paid_twice: bool, after_send: bool) -> bool:
    """May the request be tried again? `paid_twice`: it was retried after a full send before; that is done once, if at all."""
    if ending.verdict not in RETRIED or attempts >= allowed:
        return False
    return not pays_twice or (after_send and not paid_twice)


class Budget:
    """The leases in flight over the whole dispatcher, those of them that are retries, and the credit for more of these.

    A first attempt earns a fifth of a retry. What is saved up is never more than what may be in flight: a quiet day pays for no storm.
    """

    __slots__ = ("_credit", "in_flight", "retries", "withheld")

    _RETRY = round(1 / BUDGET_RATIO)  # the price of a retry, in first attempts
    _START = BUDGET_LEAST * _RETRY

    def __init__(self) -> None:
        self.in_flight = 0
        self.retries = 0
        self.withheld = False  # somebody waits for it
        self._credit = self._START

    def allows(self) -> bool:
        """May one more retry be sent to a backend whose latest result is not good?"""
        return self._credit >= self._RETRY and self.retries + 1 <= max(BUDGET_LEAST, BUDGET_RATIO * (self.in_flight + 1))

    def granted(self, retry: bool) -> None:
        """An attempt begins."""
        self.in_flight = in_flight = self.in_flight + 1
        if retry:
            self.retries += 1
            self._credit = max(0, self._credit - self._RETRY)
        elif self._credit < self._START + in_flight:
            self._credit += 1
        else:
            self._credit = self._START + in_flight

    def ended(self, retry: bool) -> None:
        """An attempt has ended."""
        self.in_flight -= 1
        self.retries -= retry
