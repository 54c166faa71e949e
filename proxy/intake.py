"""What does this caller ask for, and may it? Reception: head and body become one frozen `Request`, or are turned away.

Nothing behind this room sees a header. The body's bytes stay the caller's own; only what decides is read from them.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from policies.model import Outcome, Request
from policies.tokens import TokenEstimate
from proxy import errors, forms, json_spans
from proxy.asked import NOTHING, PLAIN_NAMES, Fields, Malformed, asks_in, fields_of, model_in, name_of, plain_chat, undoubted, values_in
from proxy.endpoints import Api, Endpoint, Kind, api_of, classify
from proxy.identity import CREDENTIAL_FIELDS, Identities, Identity
from proxy.prompts import NO_PROMPT, Message, Prompt, plain_prompt, read_prompt

_SINGLE = frozenset(
    [*CREDENTIAL_FIELDS, b"content-type", b"content-encoding", b"expect", b"x-fairlane-lane", b"x-fairlane-traffic", b"x-fairlane-task"]
)  # twice is ambiguous, and refused

_GENERATION = Kind.GENERATION  # looked up once

_SANE_ID = re.compile(rb"[A-Za-z0-9_-]{1,64}")
_TASK = re.compile(rb"[A-Za-z0-9_.-]{1,64}")
_TRACE = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")
_JSON_KINDS = (b"application/json", b"", b"application/x-www-form-urlencoded")  # the last is what `curl -d` says of any body


class Head(Protocol):
    """A request's head as the server hands it over: names in lower case, fields in the order received."""

    @property
    def method(self) -> str: ...
    @property
    def target(self) -> bytes: ...
    @property
    def version(self) -> str: ...
    @property
    def headers(self) -> list[tuple[bytes, bytes]]: ...
    @property
    def named(self) -> dict[bytes, bytes]: ...
    @property
    def content_length(self) -> int | None: ...
    @property
    def chunked(self) -> bool: ...


class Refused(NamedTuple):
    """Turned away, and how its answer differs from the table's row."""

    outcome: Outcome
    api: Api
    request_id: str = ""  # the caller's own; empty: it gave none
    status: int | None = None
    detail: str | None = None
    param: str | None = None
    allow: str | None = None

    def response(self, request_id: str) -> tuple[int, errors.Headers, bytes]:
        """Status, header fields and body of the answer."""
        return errors.response(
            self.outcome, self.api, None, request_id, self.detail, status=self.status, param=self.param, allow=self.allow
        )


class Admitted(msgspec.Struct, frozen=True, gc=False):
    """A caller whose head is in order: its body may come."""

    endpoint: Endpoint
    api: Api  # whose shapes it expects; for the catalogue, by its headers
    identity: Identity
    request_id: str  # the caller's own `x-request-id`; empty: it gave none
    lane: int  # index: the key's, or a lower one that it asked for
    traffic: str
    task: str | None
    content_type: bytes
    retry_count: int  # as its SDK counts
    read_timeout_s: float | None  # how long its SDK waits for bytes
    trace_id: str  # 32 hexadecimal digits, or empty


class Reading(msgspec.Struct, frozen=True, gc=False):
    """A request that was read to its end."""

    request: Request
    endpoint: Endpoint
    body: bytes
    members: json_spans.Members | None  # of a JSON body
    form: forms.Form | None  # of an upload
    prompt: Prompt  # what the token estimate was made of
    include_usage: bool  # a stream's usage was asked for
    gives_priority: bool = False  # the body has a `priority`, which is not for callers to set

    def renamed(self, model: str) -> bytes:
        """The body with this model asked for instead, every other byte as it came."""
        if self.members is not None:
            return json_spans.replace_model(self.body, self.members, model)
        if self.form is not None:
            return forms.replace_model(self.body, self.form, model)
        return self.body

    def spent(self) -> Reading:
        """The same without its body, once it will not be sent again: a long prompt is not held while its answer streams."""
        return Reading(self.request, self.endpoint, b"", None, None, self.prompt, self.include_usage)

    def prioritised(self, number: int | None) -> Reading:
        """The same with this `priority` in its JSON body, or None for none: engines order their own queue by it."""
        if self.members is None or self.endpoint.kind is not Kind.GENERATION:
            return self
        body = json_spans.replace_priority(self.body, self.members, number)
        return msgspec.structs.replace(self, body=body, members=json_spans.members(body))


class Reception:
    """Admits heads and reads bodies, by the keys and limits of one configuration."""

    def __init__(
        self,
        identities: Identities,
        lanes: Sequence[str],
        tokens: TokenEstimate,
        *,
        max_body_bytes: int,
        needs_text: bool = False,
        splits: bool = False,
    ) -> None:
        """`lanes` in order of precedence. `needs_text`: some route looks at the last user message; `splits`: some divides conversations."""
        self._identities = identities
        self._lane_of = {name.encode(): index for index, name in enumerate(lanes)}
        self._tokens = tokens
        self._max_body_bytes = max_body_bytes
        self._needs_text = needs_text
        self._splits = splits

    def admit(self, head: Head) -> Admitted | Refused:
        """Who calls, and for what? Asked when the head is complete, before the body is let in."""
        fields = head.named
        doubled = len(fields) < len(head.headers) and _doubled(head.headers)
        sent_id = fields.get(b"x-request-id", b"")
        request_id = sent_id.decode() if _SANE_ID.fullmatch(sent_id) else ""
        endpoint = classify(head.target)
        if endpoint is None and head.target.partition(b"?")[0] == b"/health":
            return Refused(Outcome.METHOD_NOT_ALLOWED, Api.OPENAI, request_id, allow="GET, HEAD")
        if endpoint is None or endpoint.kind is Kind.STATEFUL:
            detail = "This endpoint is not routed." if endpoint is not None else None
            return Refused(Outcome.NOT_FOUND, api_of(head.target), request_id, detail=detail)
        api = endpoint.api
        if endpoint.kind is Kind.CATALOGUE and b"anthropic-version" in fields:
            api = Api.ANTHROPIC
        if endpoint.kind is Kind.REALTIME:
            return Refused(Outcome.UNSUPPORTED, api, request_id)
        if head.method != endpoint.method:
            return Refused(Outcome.METHOD_NOT_ALLOWED, api, request_id, allow=endpoint.method)
        if doubled:
            return Refused(Outcome.MALFORMED, api, request_id, detail="A header field that may be given once is given twice.")
        identity = self._identities.identify(fields)
        if identity is None:
            return Refused(Outcome.UNAUTHENTICATED, api, request_id)
        content_type = fields.get(b"content-type", b"")
        status = self._refused_body(head, endpoint, fields, content_type)
        if status is not None:
            return Refused(Outcome.TOO_LARGE if status == 413 else Outcome.UNSUPPORTED, api, request_id, status=status)
        task = fields.get(b"x-fairlane-task")
        trace = _TRACE.fullmatch(fields[b"traceparent"]) if b"traceparent" in fields else None
        return Admitted(
            endpoint=endpoint,
            api=api,
            identity=identity,
            request_id=request_id,
            lane=max(identity.lane, self._lane_of.get(fields.get(b"x-fairlane-lane", b""), 0)),
            traffic="batch" if fields.get(b"x-fairlane-traffic") == b"batch" else identity.traffic,
            task=task.decode() if task is not None and _TASK.fullmatch(task) else None,
            content_type=content_type,
            retry_count=_whole_number(fields.get(b"x-stainless-retry-count")) or 0,
            read_timeout_s=_whole_number(fields.get(b"x-stainless-read-timeout")),
            trace_id=trace[1].decode() if trace is not None else "",
        )

    def read(self, body: bytes, admitted: Admitted, request_id: str) -> Reading | Refused:
        """What is asked for? Never raises, whatever the bytes."""
        endpoint, identity = admitted.endpoint, admitted.identity
        try:
            if endpoint.text_key is None:
                return self._read_other(body, admitted, request_id)
            members = json_spans.members(body)
            fields: Fields = {}  # left empty where neither the names nor the values need a closer look
            if len(PLAIN_NAMES.intersection(map(name_of, members))) < len(members):  # another name, or one that is there twice
                fields = undoubted(members)
            chat = plain_chat(body) if endpoint.text_key == "messages" else None
            if chat is not None:
                model = chat.model
            else:
                fields = fields or fields_of(members)
                model = model_in(fields)
            if identity.models is not None and not identity.may_use_model(model):
                return Refused(Outcome.FORBIDDEN, admitted.api, admitted.request_id, param="model")
            if chat is not None:
                streamed, max_tokens = chat.stream is True, chat.max_tokens
                usage = chat.stream_options is not None and chat.stream_options.include_usage is True
                if chat.max_completion_tokens is not None or chat.max_output_tokens is not None:
                    max_tokens = chat.limit()
                if chat.system is not None:
                    chat.messages.insert(0, Message("system", chat.system))
                prompt = plain_prompt(chat.messages, self._needs_text, self._splits)
            else:
                streamed, usage, max_tokens = values_in(fields, endpoint.text_key)
                prompt = read_prompt(fields, endpoint.text_key, self._needs_text)
            asks = asks_in(fields) if fields else NOTHING
        except Malformed as error:
            detail = f"'{error.name}' {error.fault}"
            return Refused(Outcome.MALFORMED, admitted.api, admitted.request_id, detail=detail, param=error.name)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return Refused(Outcome.MALFORMED, admitted.api, admitted.request_id)
        request = Request(
            request_id,
            identity.name,
            admitted.lane,
            "batch" if asks.flexible else admitted.traffic,
            endpoint.path,
            model,
            self._tokens.estimate(model, prompt.ascii_bytes, prompt.other_chars),
            max_tokens,
            prompt.turns,
            asks.tools,
            asks.json,
            prompt.images,
            admitted.task,
            prompt.text,
            streamed and endpoint.kind is _GENERATION,
            len(body),
            zlib.crc32(prompt.opening.encode(), identity.salt) if self._splits else 0,
        )
        return Reading(request, endpoint, body, members, None, prompt, usage, asks.priority)

    def _read_other(self, body: bytes, admitted: Admitted, request_id: str) -> Reading | Refused:
        """Of a form its model is read, of anything else nothing. Raises ValueError."""
        form = forms.read(body, admitted.content_type) if admitted.endpoint.kind is Kind.UPLOAD else None
        model = form.model if form is not None else None
        if not admitted.identity.may_use_model(model):
            return Refused(Outcome.FORBIDDEN, admitted.api, admitted.request_id)
        request = Request(
            id=request_id,
            tenant=admitted.identity.name,
            lane=admitted.lane,
            traffic=admitted.traffic,
            path=admitted.endpoint.path,
            model=model,
            task=admitted.task,
            body_bytes=len(body),
        )
        return Reading(request, admitted.endpoint, body, None, form, NO_PROMPT, False)

    def _refused_body(self, head: Head, endpoint: Endpoint, fields: dict[bytes, bytes], content_type: bytes) -> int | None:
        """With which status is the body refused before it comes? None: let it come."""
        expected = fields.get(b"expect")
        if expected is not None and expected.lower() != b"100-continue":
            return 417
        if head.content_length is not None and head.content_length > self._max_body_bytes:
            return 413
        if endpoint.method != "POST":
            return None
        if fields.get(b"content-encoding", b"identity").lower() not in (b"identity", b""):
            return 415
        if content_type == b"application/json" and endpoint.kind is not Kind.UPLOAD:
            return None
        kind, _, parameters = content_type.lower().partition(b";")
        if endpoint.kind is Kind.UPLOAD:
            return None if kind.strip() == b"multipart/form-data" else 415
        if kind.strip() not in _JSON_KINDS:
            return 415
        return 415 if b"charset" in parameters and b"utf-8" not in parameters else None


_random = random.Random()  # ids need to be apart, not secret; and a count would tell callers of each other


def new_request_id() -> str:
    """An id for a request whose caller gave none."""
    return f"req-{_random.getrandbits(96):024x}"


def _doubled(headers: list[tuple[bytes, bytes]]) -> bool:
    """Is a field there twice that may be there once?"""
    single = [name for name, _ in headers if name in _SINGLE]
    return len(single) > len(set(single))


def _whole_number(value: bytes | None) -> int | None:
    return int(value) if value is not None and value.isdigit() and len(value) <= 9 else None
