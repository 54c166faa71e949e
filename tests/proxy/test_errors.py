"""Every ending has its answer, in both shapes, and says nothing of the house."""

from __future__ import annotations

import json

import pytest

from policies.model import Outcome
from proxy.endpoints import Api
from proxy.errors import TABLE, response, stream_error
from proxy.sse import StreamWatcher

SILENT = {Outcome.OK, Outcome.CLIENT_GONE, Outcome.WRITE_TIMEOUT}
SPOKEN = [outcome for outcome in Outcome if outcome not in SILENT]

CONTRACT = {
    "malformed": 400,
    "unauthenticated": 401,
    "forbidden": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "client_timeout": 408,
    "too_large": 413,
    "rate_limited": 429,
    "quota_exhausted": 429,
    "queue_full": 429,
    "queue_timeout": 429,
    "displaced": 429,
    "no_backend": 503,
    "draining": 503,
    "upstream_connect": 502,
    "upstream_reset": 502,
    "upstream_protocol": 502,
    "upstream_auth": 502,
    "first_token_timeout": 504,
    "total_timeout": 504,
}


def test_no_outcome_is_forgotten() -> None:
    assert set(TABLE) == set(Outcome)
    assert {outcome for outcome, failure in TABLE.items() if failure is None} == SILENT


@pytest.mark.parametrize("api", list(Api))
@pytest.mark.parametrize("outcome", SPOKEN)
def test_shape(outcome: Outcome, api: Api) -> None:
    status, headers, body = response(outcome, api, 7, "req-1")
    fields = dict(headers)
    assert status == CONTRACT.get(outcome.value, status)
    assert fields[b"x-fairlane-reason"] == outcome.value.encode()
    assert fields[b"x-request-id"] == b"req-1" and fields[b"content-type"] == b"application/json"
    document = json.loads(body)
    if api is Api.ANTHROPIC:
        assert set(document) == {"type", "error"} and set(document["error"]) == {"type", "message"}
        assert fields[b"request-id"] == b"req-1"
    else:
        assert set(document) == {"error"} and set(document["error"]) == {"message", "type", "param", "code"}
        assert all(value is None or isinstance(value, str) for value in document["error"].values())


@pytest.mark.parametrize("outcome", SPOKEN)
def test_retry_headers_follow_the_contract(outcome: Outcome) -> None:
    fields = dict(response(outcome, Api.OPENAI, 7, "r")[1])
    waits = outcome.value in ("rate_limited", "queue_full", "queue_timeout", "displaced", "no_backend", "draining")
    assert (fields.get(b"retry-after"), fields.get(b"retry-after-ms")) == ((b"7", b"7000") if waits else (None, None))
    assert fields.get(b"x-should-retry") == (b"false" if outcome.value in ("quota_exhausted", "unsupported", "cancelled") else None)


@pytest.mark.parametrize(("given", "sent"), [(None, b"1"), (0, b"1"), (1, b"1"), (60, b"60"), (600, b"60")])
def test_retry_after_is_from_1_to_60(given: int | None, sent: bytes) -> None:
    assert dict(response(Outcome.DRAINING, Api.OPENAI, given, "r")[1])[b"retry-after"] == sent


def test_variants_of_one_outcome() -> None:
    status, headers, body = response(Outcome.METHOD_NOT_ALLOWED, Api.OPENAI, None, "r", "No.", param="model", allow="POST")
    assert status == 405 and dict(headers)[b"allow"] == b"POST"
    assert json.loads(body)["error"] == {"message": "No.", "type": "invalid_request_error", "param": "model", "code": "method_not_allowed"}
    for status in (413, 414, 431):
        assert response(Outcome.TOO_LARGE, Api.ANTHROPIC, None, "r", status=status)[0] == status


@pytest.mark.parametrize("outcome", sorted(SILENT))
def test_the_silent_ones_have_no_answer(outcome: Outcome) -> None:
    with pytest.raises(ValueError, match=outcome.value):
        response(outcome, Api.OPENAI, None, "r")


@pytest.mark.parametrize("api", list(Api))
@pytest.mark.parametrize("outcome", SPOKEN)
def test_our_own_error_event_is_one_to_the_watcher(outcome: Outcome, api: Api) -> None:
    data = stream_error(outcome, api, 5)
    watcher = StreamWatcher(api)
    watcher.feed(data)
    assert watcher.error is not None and not watcher.open_event and b"[DONE]" not in data
    document = json.loads(watcher.error)
    if api is Api.RESPONSES:
        assert set(document) == {"type", "code", "message", "param", "sequence_number"} and document["sequence_number"] == 5
    if api is not Api.OPENAI:
        assert data.startswith(b"event: error\n")


@pytest.mark.parametrize("outcome", SPOKEN)
def test_nothing_of_the_house_is_named(outcome: Outcome) -> None:
    text = response(outcome, Api.OPENAI, None, "r")[2].decode().lower()
    assert not any(word in text for word in ("http:", "127.", "python", "asyncio", "httptools", "msgspec", ".py", "traceback", "vllm"))
