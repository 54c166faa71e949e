"""Which bytes make up the corpora? Data files beside this module, with the catalogue's notation written out."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.wire import EVIL, JS, NEXT, A, J

FOLDER = Path(__file__).with_name("corpus")
_NAMED = {"A": A, "J": J, "JS": JS, "EVIL": EVIL, "NEXT": NEXT, "CH": b"Transfer-Encoding: chunked\r\n\r\n"}
_MACRO = re.compile(r"<(?:(\w)\*(\d+)|([A-Z]+))>")


class Sent(NamedTuple):
    """One entry of a corpus: which case it is of, its bytes, and what must come of them."""

    case: str
    name: str
    raw: bytes
    verdict: str
    more: dict[str, Any]

    @property
    def id(self) -> str:
        return f"{self.case}-{self.name}"


def written_out(text: str) -> bytes:
    """The bytes of an entry."""

    def put(match: re.Match[str]) -> str:
        if match[3] is not None:
            return _NAMED[match[3]].decode("latin-1") if match[3] in _NAMED else match[0]
        return match[1] * int(match[2])

    return _MACRO.sub(put, text).encode("latin-1")


@cache
def corpus(name: str) -> tuple[Sent, ...]:
    """All entries of one file, in its order."""
    entries = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    return tuple(
        Sent(entry.pop("case"), entry.pop("name"), written_out(entry.pop("send")), entry.pop("verdict", "refused"), entry)
        for entry in map(dict, entries)
    )


def cases(name: str) -> list[str]:
    """The cases that a corpus has entries of."""
    return list(dict.fromkeys(entry.case for entry in corpus(name)))
