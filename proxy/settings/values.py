"""How is each kind of value spelt in the file, and what does it become? Seconds, bytes, shares, caps, addresses, names.

Numbers go through `Decimal`, so that 1.1 x 50 s is 55 streams and not 56. A validator raises ValueError with a message that
names the remedy and never quotes the value, which may be a secret in the wrong place.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from proxy.settings.document import Substituted, core_scalar


@dataclass(frozen=True, slots=True)
class Kind:
    """What the reference calls this kind of value."""

    name: str


# In the file a variable may stand for any value; the schema lets it pass where a number or a truth value is expected.
VariableText = Annotated[str, Field(pattern=r"\$\{")]

_UNITS = {"h": Decimal(3600), "m": Decimal(60), "s": Decimal(1), "ms": Decimal("0.001")}
_DURATION = re.compile(
    r"(?:(\d{1,9}(?:\.\d{1,9})?)h)?(?:(\d{1,9}(?:\.\d{1,9})?)m)?(?:(\d{1,9}(?:\.\d{1,9})?)s)?(?:(\d{1,9}(?:\.\d{1,9})?)ms)?", re.ASCII
)
_SIZES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE = re.compile(r"(\d{1,12})(B|KiB|MiB|GiB)", re.ASCII)
_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,9})?)%", re.ASCII)
_PERCENTILE = re.compile(r"p([5-9][0-9])", re.ASCII)
_COMPARISON = re.compile(r"(<=|<|>=|>|==|=)\s*(\d{1,12})(\s+or\s+unset)?", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252}[A-Za-z0-9])?", re.ASCII)
_PATH = re.compile(r"(?:/[A-Za-z0-9._~!$&'()*+,;=:@%-]*)*", re.ASCII)


class Address(NamedTuple):
    """Where to listen."""

    host: str
    port: int  # 0: any free one

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Url(NamedTuple):
    """Where a backend answers. `path` has no slash at its end."""

    scheme: str  # http or https
    host: str
    port: int
    path: str

    def __str__(self) -> str:
        return f"{self.scheme}://{Address(self.host, self.port)}{self.path}"


class Late(NamedTuple):
    """When is a first token late: past this percentile of those before it, or after so long? One of the two is None."""

    percent: int | None
    after_s: float | None


class Comparison(NamedTuple):
    """A bound on a number of the request. `or_unset`: a request without the number is inside."""

    operator: str  # <= < >= > ==
    value: int
    or_unset: bool = False


def _unwrap(value: Any) -> Any:
    """What a variable brought is text; where a number or a truth value is expected it is read as one."""
    return core_scalar(value) if isinstance(value, Substituted) else value


def _decimal(value: Any) -> Decimal:
    number = _unwrap(value)
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ValueError("must be a number")
    return Decimal(str(number))  # the shortest spelling of a float is what the file says


def duration(value: Any) -> Decimal:
    """How many seconds is `1m30s`? ValueError without a unit."""
    found = _DURATION.fullmatch(value) if isinstance(value, str) and value else None
    if found is None:
        raise ValueError("must be a duration with its unit, such as 250ms, 10s, 1m30s or 2h")
    return sum((Decimal(part) * scale for part, scale in zip(found.groups(), _UNITS.values(), strict=True) if part), Decimal(0))


def _seconds(value: Any) -> float:
    return float(duration(value))


def size(value: Any) -> int:
    """How many bytes is `64KiB`? ValueError without a unit."""
    found = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError("must be a size with its unit, such as 64KiB, 8MiB or 1GiB")
    return int(found[1]) * _SIZES[found[2]]


def share(value: Any) -> Fraction:
    """Which part of the whole is `10%`, or 0.1? Exactly."""
    found = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    try:
        part = Fraction(found[1]) / 100 if found else Fraction(_decimal(value))
    except (ValueError, OverflowError):
        raise ValueError("must be a share, such as 10% or 0.1") from None
    if not 0 <= part <= 1:
        raise ValueError("must be a share from 0% to 100%: 10% or 0.1")
    return part


def late(value: Any) -> Late:
    """When is a first token late by `p95`, or by `800ms`?"""
    found = _PERCENTILE.fullmatch(value) if isinstance(value, str) else None
    if found is not None:
        return Late(int(found[1]), None)
    try:
        return Late(None, _positive(_seconds(value)))
    except ValueError:
        raise ValueError("must be a percentile from p50 to p99, such as p95, or a duration, such as 800ms") from None


def address(value: Any) -> Address:
    """Which host and port is `127.0.0.1:8080`?"""
    host, colon, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    if not host and colon:
        raise ValueError("must name a host: 127.0.0.1 for this machine alone, 0.0.0.0 or [::] for everyone")
    if not colon or not re.fullmatch(r"\d{1,5}", port, re.ASCII) or int(port) > 65535:
        raise ValueError("must be HOST:PORT, such as 127.0.0.1:8080")
    return Address(_host(host), int(port))


def _host(text: str) -> str:
    if text.startswith("["):
        try:
            return str(ipaddress.IPv6Address(text[1:-1] if text.endswith("]") else text))
        except ValueError:
            raise ValueError("must be an IPv6 address inside the brackets, such as [::1]") from None
    if not _HOST.fullmatch(text):
        raise ValueError("must be a host name or an IP address (an IPv6 address in brackets: [::1])")
    return text


def url(value: Any) -> Url:
    """Where does `https://llm.example.com/v1` answer?"""
    if not isinstance(value, str) or not value.startswith(("http://", "https://")):
        raise ValueError("must be a URL that begins with http:// or https://")
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:
        raise ValueError("must be a URL such as http://10.0.0.21:8000") from None
    if not all("!" <= letter <= "~" for letter in value):  # urlsplit takes line ends out, silently
        raise ValueError("must hold visible ASCII characters only")
    if "@" in parts.netloc:
        raise ValueError("must not hold a user or password; give the platform an api_key or headers")
    if "?" in value or "#" in value:
        raise ValueError("must end with its path: no query, no fragment")
    if not _PATH.fullmatch(parts.path) or port == 0 or parts.netloc.endswith(":"):
        raise ValueError("must be a URL such as http://10.0.0.21:8000 or https://llm.example.com/v1")
    host = parts.netloc.removesuffix(f":{port}") if port is not None else parts.netloc
    return Url(parts.scheme, _host(host).lower(), port or (443 if parts.scheme == "https" else 80), parts.path.rstrip("/"))


def comparison(value: Any) -> Comparison:
    """Which bound is `<= 500 or unset`? A bare number asks for exactly that many."""
    number = _unwrap(value)
    if isinstance(number, int) and not isinstance(number, bool) and number >= 0:
        return Comparison("==", number)
    found = _COMPARISON.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise ValueError('must be a comparison in quotes, such as "<= 500" or "> 4"')
    return Comparison("==" if found[1] == "=" else found[1], int(found[2]), found[3] is not None)


def _without_unset(bound: Comparison) -> Comparison:
    if bound.or_unset:
        raise ValueError('must not say "or unset": every request has this number')
    return bound


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError("must be a name of at most 63 letters, digits, dots, dashes and underscores, beginning with a letter or digit")
    return text


def _positive(number: Any) -> Any:
    if number <= 0:
        raise ValueError("must be more than zero")
    return number


def _listed(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _some(values: tuple[str, ...]) -> tuple[str, ...]:
    if not values or not all(values):
        raise ValueError("must name at least one")
    return values


def _distinct(values: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(values)) < len(values):
        raise ValueError("names the same one twice")
    return values


_DURATION_TEXT = Annotated[str, Field(pattern=r"^([0-9.]+(h|m|s|ms))+$|\$\{", examples=["250ms", "10s", "1m30s", "2h"])]
_SHARE_TEXT = Annotated[str, Field(pattern=r"^[0-9.]+%$|\$\{")] | float

Seconds = Annotated[float, BeforeValidator(_seconds, json_schema_input_type=_DURATION_TEXT), Kind("duration")]
Timeout = Annotated[Seconds, AfterValidator(_positive)]
ExactSeconds = Annotated[
    Decimal, AfterValidator(_positive), BeforeValidator(duration, json_schema_input_type=_DURATION_TEXT), Kind("duration")
]
Bytes = Annotated[
    int,
    AfterValidator(_positive),
    BeforeValidator(size, json_schema_input_type=Annotated[str, Field(pattern=r"^[0-9]+(B|KiB|MiB|GiB)$|\$\{")]),
    Kind("size"),
]
Share = Annotated[Fraction, BeforeValidator(share, json_schema_input_type=_SHARE_TEXT), Kind("share")]
Whole = Annotated[int, BeforeValidator(_unwrap, json_schema_input_type=int | VariableText), Kind("whole number")]
Number = Annotated[
    float, Field(ge=0, allow_inf_nan=False), BeforeValidator(_unwrap, json_schema_input_type=float | VariableText), Kind("number")
]
Rate = Annotated[Decimal, AfterValidator(_positive), BeforeValidator(_decimal, json_schema_input_type=float | VariableText), Kind("number")]
Flag = Annotated[bool, BeforeValidator(_unwrap, json_schema_input_type=bool | VariableText), Kind("true or false")]
Lateness = Annotated[
    Late,
    BeforeValidator(late, json_schema_input_type=Annotated[str, Field(pattern=r"^p[5-9][0-9]$|^([0-9.]+(h|m|s|ms))+$|\$\{")]),
    Kind("percentile p50 to p99, or duration"),
]
Listen = Annotated[Address, BeforeValidator(address, json_schema_input_type=str), Kind("HOST:PORT")]
BackendUrl = Annotated[Url, BeforeValidator(url, json_schema_input_type=str), Kind("URL")]
Name = Annotated[str, AfterValidator(_name), Kind("name")]
OneOrMore = Annotated[
    tuple[str, ...],
    AfterValidator(_distinct),
    AfterValidator(_some),
    BeforeValidator(_listed, json_schema_input_type=str | tuple[str, ...]),
    Kind("text, or a list"),
]
Names = Annotated[
    tuple[str, ...],
    AfterValidator(_distinct),
    AfterValidator(_some),
    BeforeValidator(_listed, json_schema_input_type=str | tuple[str, ...]),
    Kind("name, or a list"),
]
Bound = Annotated[
    Comparison, AfterValidator(_without_unset), BeforeValidator(comparison, json_schema_input_type=str | int), Kind("comparison")
]
BoundOrUnset = Annotated[Comparison, BeforeValidator(comparison, json_schema_input_type=str | int), Kind("comparison")]
