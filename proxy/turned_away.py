"""What are the bytes that turn a caller away at the door? They differ by the request's id alone, so the rest is joined once.

Whoever floods us with broken requests pays a connection for each; our side of it should be the cheaper one.
"""

from __future__ import annotations

from proxy.http1 import heads
from proxy.intake import Refused

_HOLE = "\x00"  # stands for the id: in no other place of an answer of ours
_KEPT_MAX = 256  # outcomes x statuses x APIs are fewer
_kept: dict[tuple[object, ...], tuple[int, list[bytes]]] = {}


def turned_away(refused: Refused, request_id: str, *, keep_alive: bool, to_head: bool) -> tuple[int, bytes]:
    """Status and whole answer for a request that goes no further than reception."""
    if refused.detail is not None or refused.param is not None:  # in words of the request's own
        return _made(refused, request_id, keep_alive, to_head)
    key = (refused.outcome, refused.status, refused.api.value, refused.allow, keep_alive, to_head)
    kept = _kept.get(key)
    if kept is None:
        status, answer = _made(refused, _HOLE, keep_alive, to_head)
        kept = status, answer.split(_HOLE.encode())
        if len(_kept) < _KEPT_MAX:
            _kept[key] = kept
    return kept[0], request_id.encode("latin-1", "replace").join(kept[1])


def _made(refused: Refused, request_id: str, keep_alive: bool, to_head: bool) -> tuple[int, bytes]:
    status, fields, body = refused.response(request_id)
    return status, heads.response(status, fields, body, keep_alive=keep_alive, to_head=to_head)
