"""What does each spelling of a value become, and which are refused?"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.settings.document import Substituted
from proxy.settings.values import Address, Comparison, Late, Url, address, comparison, duration, late, share, size, url


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", "0.25"), ("10s", "10"), ("1m30s", "90"), ("2h", "7200"), ("1.5h", "5400"), ("1h2m3s4ms", "3723.004"), ("0s", "0")],
)
def test_durations(text: str, seconds: str) -> None:
    assert duration(text) == Decimal(seconds)


@pytest.mark.parametrize(
    "value", [10, 1.5, 0, "10", "", "s", "s1", "1d", "1s1m", "1s 2s", "-1s", "+1s", " 1s", "1S", "1e3s", ".5s", "1 s", "٣s", True, None]
)
def test_what_is_no_duration(value: Any) -> None:
    with pytest.raises(ValueError, match="must be a duration with its unit"):
        duration(value)


@given(st.integers(0, 99), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999))
def test_durations_add_up(h: int, m: int, s: int, ms: int) -> None:
    assert duration(f"{h}h{m}m{s}s{ms}ms") * 1000 == ((h * 60 + m) * 60 + s) * 1000 + ms


@pytest.mark.parametrize(
    ("text", "found"), [("p50", Late(50, None)), ("p95", Late(95, None)), ("p99", Late(99, None)), ("1s", Late(None, 1.0))]
)
def test_lateness(text: str, found: Late) -> None:
    assert late(text) == found


@pytest.mark.parametrize("value", ["p100", "p49", "p9", "p 95", "p95 ", "P95", 95, "95%", "0s", None, True, "p٩٥"])
def test_what_is_no_lateness(value: Any) -> None:
    with pytest.raises(ValueError, match="must be a percentile from p50 to p99"):
        late(value)


@pytest.mark.parametrize(("text", "count"), [("1B", 1), ("64KiB", 65536), ("8MiB", 8 << 20), ("1GiB", 1 << 30)])
def test_sizes(text: str, count: int) -> None:
    assert size(text) == count


@pytest.mark.parametrize("value", [64, "64", "64MB", "64 MiB", "-1B", "1.5MiB", "", None])
def test_what_is_no_size(value: Any) -> None:
    with pytest.raises(ValueError, match="must be a size with its unit"):
        size(value)


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ("10%", Fraction(1, 10)),
        (0.1, Fraction(1, 10)),
        ("12.5%", Fraction(1, 8)),
        (0, Fraction(0)),
        (1, Fraction(1)),
        (Substituted("0.1"), Fraction(1, 10)),
    ],
)
def test_shares_are_exact(value: Any, part: Fraction) -> None:
    assert share(value) == part


@pytest.mark.parametrize("value", [10, "101%", "-1%", "10", "10 %", "%", -0.1, True, "", None, Substituted("x")])
def test_what_is_no_share(value: Any) -> None:
    with pytest.raises(ValueError, match="must be a share"):
        share(value)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("127.0.0.1:8080", Address("127.0.0.1", 8080)),
        ("localhost:0", Address("localhost", 0)),
        ("[::1]:9090", Address("::1", 9090)),
        ("[0:0::1]:9090", Address("::1", 9090)),
    ],
)
def test_addresses(text: str, where: Address) -> None:
    assert address(text) == where


@pytest.mark.parametrize(
    "value", ["", "8080", ":8080", "a", "a:", "a:x", "a:65536", "::1:80", "[::1:80", "[x]:80", "a b:80", "a/b:80", 8080, None, "u@h:1"]
)
def test_what_is_no_address(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^must"):
        address(value)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("http://10.0.0.21:8000", Url("http", "10.0.0.21", 8000, "")),
        ("https://LLM.example.com/compatible-mode/v1", Url("https", "llm.example.com", 443, "/compatible-mode/v1")),
        ("http://h/", Url("http", "h", 80, "")),
        ("http://[::1]:81/a/", Url("http", "::1", 81, "/a")),
    ],
)
def test_urls(text: str, where: Url) -> None:
    assert url(text) == where
    assert url(str(where)) == where


@pytest.mark.parametrize(
    "value",
    [
        "",
        "h:80",
        "ftp://h",
        "http://",
        "http://:80",
        "http://h:",
        "http://h:0",
        "http://h:99999",
        "http://u:p@h",
        "http://h/?q",
        "http://h/#f",
        "http://h/a b",
        "http://h\r\n/",
        "http://ü.de",
        "http://[::1",
        "http://h:8o",
        8,
        None,
    ],
)
def test_what_is_no_url(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^must"):
        url(value)


@pytest.mark.parametrize(
    ("value", "bound"),
    [
        ("<= 500", Comparison("<=", 500)),
        ("<256 or unset", Comparison("<", 256, True)),
        (" >  4 ", Comparison(">", 4)),
        (">=1", Comparison(">=", 1)),
        ("= 2", Comparison("==", 2)),
        ("== 2", Comparison("==", 2)),
        (3, Comparison("==", 3)),
        (Substituted("3"), Comparison("==", 3)),
    ],
)
def test_comparisons(value: Any, bound: Comparison) -> None:
    assert comparison(value) == bound


@pytest.mark.parametrize("value", ["", "500", "<= ", "<= -1", "<= 1.5", "=< 5", "<= 5 or", "!= 5", "<= 5 or unsett", -1, 1.5, True, None])
def test_what_is_no_comparison(value: Any) -> None:
    with pytest.raises(ValueError, match="must be a comparison"):
        comparison(value)


@pytest.mark.parametrize("read", [duration, size, share, address, url, comparison])
@given(value=st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.none(), st.builds(Substituted, st.text())))
def test_a_refusal_is_a_value_error_that_does_not_quote(read: Callable[[Any], Any], value: Any) -> None:
    try:
        read(value)
    except ValueError as error:
        assert len(str(value)) < 12 or str(value) not in str(error)
