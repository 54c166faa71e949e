"""What does a variable stand for?"""

from __future__ import annotations

import pytest

from proxy.settings.variables import substitute

ENVIRON = {"A": "one", "EMPTY": "", "ODD": "${A} $$"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain", "plain"),
        ("${A}", "one"),
        ("-${A}-${A}-", "-one-one-"),
        ("${NONE:-two}", "two"),
        ("${NONE:-}", ""),
        ("${EMPTY:-two}", "two"),
        ("${EMPTY}", ""),
        ("${A:-two}", "one"),
        ("${NONE:-http://h:1/$x}", "http://h:1/$x"),
        ("$$", "$"),
        ("$${A}", "${A}"),
        ("$$${A}", "$one"),
        ("^a$", "^a$"),
        ("$A", "$A"),
        ("${ODD}", "${A} $$"),  # what a variable brings is not read again
    ],
)
def test_substitution(text: str, value: str) -> None:
    assert substitute(text, ENVIRON) == value


@pytest.mark.parametrize("text", ["${NONE}", "x${NONE}y"])
def test_an_unset_variable_is_named_with_its_remedy(text: str) -> None:
    with pytest.raises(ValueError, match=r"variable NONE, which is not set; set it, or write \$\{NONE:-default\}"):
        substitute(text, ENVIRON)


@pytest.mark.parametrize("text", ["${", "${}", "${A", "${1A}", "${A-x}", "${ A }"])
def test_what_is_no_variable_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must spell a variable"):
        substitute(text, ENVIRON)
