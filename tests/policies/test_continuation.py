"""May another backend say the rest? The table of cuts and requests, and the ceiling."""

from __future__ import annotations

import pytest

from policies.continuation import may_continue, tokens_left
from policies.model import Ending, Outcome, Request, Verdict
from tests.policies.stage import GONE, OK, RESET

CUT = Ending(Verdict.FAILED, Outcome.TRUNCATED, why="truncated")
STALLED = Ending(Verdict.FAILED, Outcome.IDLE_TIMEOUT, why="idle_timeout")
OUT_OF_TIME = Ending(Verdict.NEUTRAL, Outcome.TOTAL_TIMEOUT)
ASKED = Request("r", "t", 0, model="m", streamed=True)


@pytest.mark.parametrize(
    ("ending", "may"), [(CUT, True), (STALLED, True), (RESET, False), (OUT_OF_TIME, False), (GONE, False), (OK, False)]
)
def test_which_endings_leave_a_rest(ending: Ending, may: bool) -> None:
    assert may_continue(ending, ASKED, "m", None, attempts=1, allowed=2) is may


@pytest.mark.parametrize("more", [{"tools": True}, {"json": True}, {"images": True}, {"streamed": False}])
def test_only_streams_of_plain_text(more: dict[str, bool]) -> None:
    assert not may_continue(CUT, ASKED._replace(**more), "m", None, attempts=1, allowed=2)  # type: ignore[arg-type]


def test_only_of_a_model_that_has_a_name_and_only_the_first_failure_with_an_attempt_left() -> None:
    assert not may_continue(CUT, ASKED, None, None, attempts=1, allowed=2)
    assert not may_continue(CUT, ASKED, "m", RESET, attempts=1, allowed=2)
    assert not may_continue(CUT, ASKED, "m", None, attempts=2, allowed=2)
    assert may_continue(CUT, ASKED, "m", None, attempts=2, allowed=3), "a hedge is no failure"


def test_a_ceiling_shrinks_by_what_was_said() -> None:
    assert (tokens_left(None, 7), tokens_left(10, 7), tokens_left(7, 7), tokens_left(3, 7)) == (None, 3, 0, 0)
