"""What does a caller see of each way to fail? The one table from outcome to response, in the shape of the API called.

Strings name no host, file or library. Framing (Content-Length, Connection) is added where the bytes are written.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from policies.model import Outcome
from proxy.endpoints import Api

Headers = list[tuple[bytes, bytes]]

RETRY_AFTER_MIN_S, RETRY_AFTER_MAX_S = 1, 60  # openai gives up above 120 s, anthropic sleeps whatever it is told


class Failure(NamedTuple):
    """One row: what is said when a request ends so. `code` is OpenAI's own word where it has one, else the outcome's name."""

    status: int
    message: str
    type: str = "server_error"
    code: str | None = None
    retry_later: bool = False  # carries Retry-After
    final: bool = False  # waiting cannot help: SDKs are told not to retry


_INVALID = "invalid_request_error"
_LIMIT = "rate_limit_error"

# None: nothing is ever said. Rows of endings that come only after the first token are for their error event.
TABLE: dict[Outcome, Failure | None] = {
    Outcome.OK: None,
    Outcome.CLIENT_GONE: None,
    Outcome.WRITE_TIMEOUT: None,
    Outcome.MALFORMED: Failure(400, "The request is malformed or ambiguous.", _INVALID),
    Outcome.UNAUTHENTICATED: Failure(401, "No valid API key was given.", "authentication_error", "invalid_api_key"),
    Outcome.FORBIDDEN: Failure(403, "This API key may not use this model or pool.", "permission_error"),
    Outcome.NOT_FOUND: Failure(404, "No such endpoint, or no route for this request.", _INVALID),
    Outcome.METHOD_NOT_ALLOWED: Failure(405, "This method is not allowed here.", _INVALID),
    Outcome.UNSUPPORTED: Failure(501, "This is not supported.", _INVALID, final=True),
    Outcome.CLIENT_TIMEOUT: Failure(408, "The request took too long to arrive.", _INVALID),
    Outcome.TOO_LARGE: Failure(413, "The request is too large.", _INVALID),
    Outcome.RATE_LIMITED: Failure(429, "The rate limit of this API key is reached.", _LIMIT, "rate_limit_exceeded", retry_later=True),
    Outcome.QUOTA_EXHAUSTED: Failure(429, "The quota of this API key is used up.", "insufficient_quota", "insufficient_quota", final=True),
    Outcome.QUEUE_FULL: Failure(429, "Too many requests are waiting.", _LIMIT, retry_later=True),
    Outcome.QUEUE_TIMEOUT: Failure(429, "No capacity became free in time.", _LIMIT, retry_later=True),
    Outcome.DISPLACED: Failure(429, "The request gave way to one of higher priority.", _LIMIT, retry_later=True),
    Outcome.NO_BACKEND: Failure(503, "The service is unavailable at the moment.", retry_later=True),
    Outcome.DRAINING: Failure(503, "The service is shutting down.", retry_later=True),
    Outcome.UPSTREAM_CONNECT: Failure(502, "The model server could not be reached."),
    Outcome.UPSTREAM_RESET: Failure(502, "The model server broke the connection."),
    Outcome.UPSTREAM_PROTOCOL: Failure(502, "The model server gave an invalid answer."),
    Outcome.UPSTREAM_AUTH: Failure(502, "The model server refused the service's own request."),
    Outcome.UPSTREAM_STATUS: Failure(502, "The model server failed."),
    Outcome.FIRST_TOKEN_TIMEOUT: Failure(504, "The model server did not begin its answer in time."),
    Outcome.TOTAL_TIMEOUT: Failure(504, "The request ran out of time."),
    Outcome.TRUNCATED: Failure(502, "The answer broke off."),
    Outcome.IDLE_TIMEOUT: Failure(504, "The answer stalled."),
    Outcome.CANCELLED: Failure(503, "The request was cancelled by the service's operator.", final=True),
    Outcome.INTERNAL: Failure(500, "The request could not be handled."),
}

_DETAILS = {
    405: "This method is not allowed here.",
    414: "The request target is too long.",
    415: "The content type or content encoding of the body is not supported.",
    417: "The expectation cannot be met.",
    431: "The request's header fields are too large.",
    505: "This HTTP version is not supported.",
}

_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    501: "invalid_request_error",
    502: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def response(
    outcome: Outcome,
    api: Api,
    retry_after_s: int | None,
    request_id: str,
    detail: str | None = None,
    *,
    status: int | None = None,
    param: str | None = None,
    allow: str | None = None,
) -> tuple[int, Headers, bytes]:
    """What answers a request that ends so, before anything of an answer went out: status, header fields, body.

    `status` chooses among the statuses of one outcome (413, 414, 431; 415, 417, 501), `detail` says more than the table,
    `param` names the field at fault, `allow` the method of a 405. Raises ValueError for an outcome that has no answer.
    """
    failure = _row(outcome)
    status = status or failure.status
    detail = detail or _DETAILS.get(status) or failure.message
    headers: Headers = [(b"content-type", b"application/json"), (b"x-fairlane-reason", outcome.value.encode())]
    headers += id_headers(request_id, api)
    if allow is not None:
        headers.append((b"allow", allow.encode()))
    if failure.retry_later:
        seconds = min(max(retry_after_s or RETRY_AFTER_MIN_S, RETRY_AFTER_MIN_S), RETRY_AFTER_MAX_S)
        headers += [(b"retry-after", b"%d" % seconds), (b"retry-after-ms", b"%d" % (seconds * 1000))]
    if failure.final:
        headers.append((b"x-should-retry", b"false"))
    if api is Api.ANTHROPIC:
        return status, headers, msgspec.json.encode(_anthropic(status, detail))
    return status, headers, msgspec.json.encode({"error": _openai(outcome, failure, detail, param)})


def stream_error(outcome: Outcome, api: Api, sequence: int = 0, detail: str | None = None) -> bytes:
    """The one event that ends a broken stream after its first token. What closes an event left open goes before it.

    That is `StreamWatcher.closing`. `sequence` is the number this event has in a stream of the Responses API. Raises ValueError
    for an outcome that has none.
    """
    failure = _row(outcome)
    detail = detail or failure.message
    if api is Api.ANTHROPIC:
        return b"event: error\ndata: " + msgspec.json.encode(_anthropic(failure.status, detail)) + b"\n\n"
    if api is Api.RESPONSES:
        event = {"type": "error", "code": failure.code or outcome.value, "message": detail, "param": None, "sequence_number": sequence}
        return b"event: error\ndata: " + msgspec.json.encode(event) + b"\n\n"
    return b"data: " + msgspec.json.encode({"error": _openai(outcome, failure, detail, None)}) + b"\n\n"


def id_headers(request_id: str, api: Api) -> Headers:
    """Under which names does a caller's SDK look for the request id?"""
    value = request_id.encode("latin-1", "replace")
    named = [(b"x-request-id", value)]
    return [*named, (b"request-id", value)] if api is Api.ANTHROPIC else named


def _row(outcome: Outcome) -> Failure:
    failure = TABLE[outcome]
    if failure is None:
        raise ValueError(f"nothing is said when a request ends as {outcome.value}")
    return failure


def _openai(outcome: Outcome, failure: Failure, message: str, param: str | None) -> dict[str, str | None]:
    return {"message": message, "type": failure.type, "param": param, "code": failure.code or outcome.value}


def _anthropic(status: int, message: str) -> dict[str, object]:
    return {"type": "error", "error": {"type": _ANTHROPIC_TYPES.get(status, "invalid_request_error"), "message": message}}
