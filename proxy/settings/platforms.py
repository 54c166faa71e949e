"""Which backends are there, and what can each carry? `platforms:` of the file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, SecretStr, model_validator

from proxy.settings.document import Substituted, core_scalar
from proxy.settings.files import NO_PAIR, is_authority, is_pair, secret_in
from proxy.settings.section import Section, refuse, rivals, setting
from proxy.settings.server import File, Secret
from proxy.settings.values import BackendUrl, ExactSeconds, Flag, Kind, Name, Number, Rate, Timeout, VariableText

STREAMS_MAX = 1_000_000
# What Fairlane itself writes or must not send on: framing, hop-by-hop, and the host.
RESERVED_HEADERS = frozenset({
    "connection", "content-length", "expect", "host", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te",
    "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip
_TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


class Load(Section):
    """Streams by Little's law: requests per second x generation time."""

    later: ClassVar[frozenset[str]] = frozenset({"min", "max"})

    rps: Rate = setting("requests per second")
    generation_time_s: ExactSeconds = setting("how long one request holds its slot")

    @property
    def streams(self) -> Fraction:
        """Streams in flight on average, exactly."""
        return Fraction(self.rps) * Fraction(self.generation_time_s)


def _streams(value: Any) -> Any:
    """A cap from a whole number, or from a load, rounded up."""
    if isinstance(value, Mapping):
        return math.ceil(Load.model_validate(value).streams)
    return core_scalar(value) if isinstance(value, Substituted) else value


def _bounded(streams: int) -> int:
    if not 1 <= streams <= STREAMS_MAX:
        raise ValueError(f"must be from 1 to {STREAMS_MAX} streams")
    return streams


def _bare_url(value: Any) -> Any:
    return {"url": value} if isinstance(value, str) else value


def _named_already(value: Any) -> Any:
    """Those of a list have been given their platform's name by now; only the schema needs to know of the list."""
    return value


def _header(name: str) -> str:
    if not name or not set(name) <= _TOKEN:
        raise ValueError("must be the name of a header")
    if name.lower() in RESERVED_HEADERS:
        raise ValueError("must be another header: Fairlane writes this one itself")
    return name.lower()


def _header_value(value: Any) -> SecretStr:
    if not isinstance(value, str) or not all(" " <= letter <= "~" for letter in value) or value != value.strip():
        raise ValueError("must be text of printable ASCII characters, in quotes")
    return SecretStr(value)


Streams = Annotated[
    int,
    AfterValidator(_bounded),
    BeforeValidator(_streams, json_schema_input_type=int | Load | VariableText),
    Kind("whole number, or {rps, generation_time}"),
]
SecretInFile = Annotated[SecretStr, BeforeValidator(secret_in, json_schema_input_type=str), Kind("path")]
HeaderName = Annotated[str, AfterValidator(_header)]
HeaderValue = Annotated[SecretStr, BeforeValidator(_header_value, json_schema_input_type=str)]


class Backend(Section):
    """One endpoint with its own cap."""

    url: BackendUrl = setting(
        "http or https, host, port; a path that ends in /v1 replaces the /v1 of the caller's, any other goes before it"
    )
    max_streams: Streams | None = setting("the most streams in flight here, ever", None, shown="the platform's")
    weight: Number = setting("share of the work against the other backends, beside the cap", 1.0, gt=0)


class PlatformTls(Section):
    """TLS towards the backends."""

    ca: File | None = setting("PEM file of the authorities to trust", None, shown="the system's")
    cert: File | None = setting("PEM file: the certificate to show", None, shown="none")
    key: File | None = setting("PEM file: that certificate's private key", None, shown="none")

    @model_validator(mode="after")
    def _readable(self) -> Self:
        if (self.cert is None) != (self.key is None):
            refuse(((), "needs both cert and key, or neither"))
        if self.cert is not None and self.key is not None and not is_pair(self.cert, self.key):
            refuse((("cert",), NO_PAIR))
        if self.ca is not None and not is_authority(self.ca):
            refuse((("ca",), "must be a PEM file with certificates of authorities"))
        return self


class Cost(Section):
    """What the platform charges."""

    per_hour: Number | None = setting("dollars per hour of each backend, busy or idle", None)
    input_per_million: Number | None = setting("dollars per million prompt tokens", None)
    output_per_million: Number | None = setting("dollars per million output tokens", None)

    @model_validator(mode="after")
    def _known_price(self) -> Self:
        if not self.model_fields_set:
            refuse(((), "needs per_hour, or input_per_million and output_per_million"))
        return self


class Platform(Section):
    """Backends that fail together: a cluster, a region, a provider."""

    backends: Annotated[
        Mapping[Name, Annotated[Backend, BeforeValidator(_bare_url, json_schema_input_type=str | Backend)]],
        BeforeValidator(_named_already, json_schema_input_type=Mapping[str, str | Backend] | tuple[str | Backend, ...]),
        Kind("mapping of names, or list of URLs"),
    ] = setting("its endpoints by name; those of a list are named PLATFORM-1, PLATFORM-2 and so on", min_length=1)
    max_streams: Streams | None = setting("the cap of each of its backends that gives none itself", None, shown="each backend's own")
    api_key: Secret | None = setting("sent to the backends instead of the caller's key", None, shown="none is sent")
    api_key_file: SecretInFile | None = setting("a file that holds it instead", None, shown="none is sent", repr=False)
    auth: Annotated[Literal["bearer", "x-api-key", "none"] | None, Kind("bearer, x-api-key or none")] = setting(
        "how the key is sent", None, shown="bearer; x-api-key under /v1/messages"
    )
    headers: Annotated[Mapping[HeaderName, HeaderValue], Kind("mapping of names to text")] = setting(
        "headers added to each request; their values are kept secret", {}, shown="{}"
    )
    tls: PlatformTls = setting("private authorities and mutual TLS", PlatformTls(), shown="{}")
    probe: Annotated[Literal["health", "models", "none"], Kind("health, models or none")] = setting(
        "what asks every 5 s whether a backend lives: GET /health, GET /v1/models, or nothing", "health"
    )
    models: Annotated[Mapping[str, str] | None, Kind("mapping of our names to theirs")] = setting(
        "the models it serves, our name: theirs; what is not listed is not served", None, shown="every model, by the name asked for"
    )
    priority: Flag = setting(
        "true: send the lane's number as the body's `priority` (vLLM with --scheduling-policy priority); a caller's own is removed anyway",
        False,
    )
    continues: Annotated[Literal["flags", "prefill", "none"], Kind("flags, prefill or none")] = setting(
        "how it is asked for the rest of an answer, in pools with `continue`: the beginning as last message, with continue_final_message "
        "(vLLM, SGLang; llama.cpp needs no flag and ignores it), the message alone, or not at all",
        "flags",
    )
    startup_s: Timeout = setting("how long loading a model may take: until then refused connections are no failures", 60.0, shown="60s")
    smoke_s: Timeout | None = setting(
        "how often each backend is asked for a few tokens while the platform serves no pool; it then must also pass three such tests, "
        "after its hold, before it serves again",
        None,
        shown="never",
    )
    cost: Cost | None = setting("what it charges, for the cost metrics", None, shown="no cost is counted")

    @model_validator(mode="after")
    def _whole(self) -> Self:
        problems = rivals(self, "api_key", "api_key_file")
        if self.max_streams is None:
            uncapped = [name for name, backend in self.backends.items() if backend.max_streams is None]
            problems += [(("backends", name), "needs max_streams, here or on its platform") for name in uncapped]
        if self.models is not None and not self.models:
            problems.append((("models",), "must list at least one model; without this key every model is served"))
        refuse(*problems)
        return self

    @property
    def credential(self) -> SecretStr | None:
        """The key to send to the backends, from the file or the file it names."""
        return self.api_key or self.api_key_file

    def cap_streams(self, backend: str) -> int:
        """The most streams in flight on one of its backends. KeyError if it has none of that name."""
        return self.backends[backend].max_streams or self.max_streams or 0
