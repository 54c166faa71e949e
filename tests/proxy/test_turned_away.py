"""Are the answers that are joined once the same bytes as those made anew?"""

from __future__ import annotations

import pytest

from policies.model import Outcome
from proxy.endpoints import Api
from proxy.http1 import heads
from proxy.intake import Refused
from proxy.turned_away import turned_away

REFUSALS = [
    Refused(Outcome.MALFORMED, Api.OPENAI),
    Refused(Outcome.TOO_LARGE, Api.ANTHROPIC, status=431),
    Refused(Outcome.UNAUTHENTICATED, Api.ANTHROPIC),
    Refused(Outcome.NOT_FOUND, Api.RESPONSES, detail="No such model, or not for this key."),
    Refused(Outcome.METHOD_NOT_ALLOWED, Api.OPENAI, allow="POST"),
    Refused(Outcome.METHOD_NOT_ALLOWED, Api.OPENAI, allow="GET"),
    Refused(Outcome.MALFORMED, Api.OPENAI, detail="'n' must be a whole number.", param="n"),
]


@pytest.mark.parametrize("refused", REFUSALS, ids=lambda refused: f"{refused.outcome}-{refused.api.value}-{refused.allow}-{refused.param}")
def test_whoever_is_turned_away_gets_the_same_bytes_the_first_time_and_later(refused: Refused) -> None:
    for keep_alive in (False, True):
        for to_head in (False, True):
            for request_id in ("req-1", "mine", "req-2"):
                status, fields, body = refused.response(request_id)
                whole = heads.response(status, fields, body, keep_alive=keep_alive, to_head=to_head)
                assert turned_away(refused, request_id, keep_alive=keep_alive, to_head=to_head) == (status, whole)
