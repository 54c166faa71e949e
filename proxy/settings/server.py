"""How does the server itself behave? `server:` of the file."""

from __future__ import annotations

import ipaddress
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, SecretStr, ValidationInfo, model_validator

from proxy.settings.files import NO_PAIR, is_pair, resolved, secret
from proxy.settings.section import Section, refuse, setting
from proxy.settings.values import Address, BackendUrl, Bytes, Flag, Kind, Listen, Seconds, Share, Whole

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def _network(value: Any) -> Network:
    try:
        return ipaddress.ip_network(value if isinstance(value, str) else "")
    except ValueError:
        raise ValueError("must be a network such as 10.0.0.0/8, or one address") from None


def _beside(value: Any, info: ValidationInfo) -> Path:
    """A path to be written, from the directory of the settings file."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("must be the path of a file")
    path = Path((info.context or {}).get("directory", "."), value)
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError("must be the path of a file in a directory that exists")
    return path


def _log(value: Any) -> Any:
    if value == "":
        raise ValueError("must be stderr, stdout, off, or the path of a file")
    return value


def _is_there(*modules: str) -> bool:
    try:
        return all(find_spec(module) is not None for module in modules)
    except ModuleNotFoundError:
        return False


File = Annotated[Path, BeforeValidator(resolved, json_schema_input_type=str), Kind("path")]
Secret = Annotated[SecretStr, BeforeValidator(secret, json_schema_input_type=str), Kind("secret")]
Trusted = Annotated[Network, BeforeValidator(_network, json_schema_input_type=str)]


class Drain(Section):
    """How the server ends."""

    grace_s: Seconds = setting("after SIGTERM: not ready any more, but still accepting, for this long", 5.0, shown="5s")
    timeout_s: Seconds = setting("after SIGTERM: what is not over by then is cut", 120.0, shown="120s")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.grace_s > self.timeout_s:
            refuse((("grace",), "must not be longer than the drain's timeout"))
        return self


class ServerTls(Section):
    """The certificate callers see."""

    cert: File = setting("PEM file: the certificate, then those between it and its authority")
    key: File = setting("PEM file: the certificate's private key")

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if not is_pair(self.cert, self.key):
            refuse((("cert",), NO_PAIR))
        return self


class Traces(Section):
    """Spans for a tracing system: queue, attempts, stream. Needs `pip install 'fairlane[traces]'`; OTEL_EXPORTER_OTLP_HEADERS is heard."""

    endpoint: BackendUrl = setting("OTLP over HTTP: the collector; without a path, /v1/traces is asked")
    sample: Share = setting("of the requests, chosen by trace id", Fraction(1, 100), shown="1%")

    @property
    def url(self) -> str:
        """Where spans are posted."""
        return str(self.endpoint) if self.endpoint.path else f"{self.endpoint}/v1/traces"

    @model_validator(mode="after")
    def _installed(self) -> Self:
        if not _is_there("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"):
            refuse((("endpoint",), "needs what is not installed here: pip install 'fairlane[traces]'"))
        return self


class Server(Section):
    """Ports, limits, and how the server ends."""

    listen: Listen = setting("where callers come in", Address("127.0.0.1", 8080), shown="127.0.0.1:8080")
    admin: Listen = setting("metrics, health, state, levers", Address("127.0.0.1", 9090), shown="127.0.0.1:9090")
    max_body_bytes: Bytes = setting("the largest request body", 64 << 20, shown="64MiB")
    drain: Drain = setting("how the server ends", Drain(), shown="{grace: 5s, timeout: 120s}")
    expose: Flag = setting("true: name backend and model in response headers", False)
    tls: ServerTls | None = setting("serve callers over TLS", None, shown="plain HTTP")
    trusted_proxies: Annotated[tuple[Trusted, ...], Kind("list of networks")] = setting(
        "networks whose X-Forwarded-For is believed", (), shown="[]"
    )
    connections_per_address: Whole | None = setting(
        "the most connections from one address at a time; more are closed at once", None, shown="no limit but the descriptors'", ge=1
    )
    admin_token: Secret | None = setting(
        "what `Authorization: Bearer` must present to pull a lever of the admin port", None, shown="levers answer loopback addresses only"
    )
    access_log: Annotated[str, BeforeValidator(_log), Kind("stderr, stdout, off, or a path")] = setting(
        "where the JSON line of each request goes", "stderr"
    )
    trace: Annotated[Path, BeforeValidator(_beside, json_schema_input_type=str), Kind("path")] | None = setting(
        "a file that records arrivals, sizes, lanes and outcomes, never text, for `fairlane simulate --trace`", None, shown="none"
    )

    traces: Traces | None = setting("spans of sampled requests, by OpenTelemetry", None, shown="none are made")

    @model_validator(mode="after")
    def _two_ports(self) -> Self:
        if self.listen == self.admin and self.listen.port:
            refuse((("admin",), "must be another address than listen"))
        return self
