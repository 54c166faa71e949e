"""H28: does a verdict depend on how bytes were cut? Each entry of the corpora, cut in two at every offset and byte by byte."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.reliability.corpora import Sent, corpus
from tests.reliability.memory import DoorInMemory, taken
from tests.wire import NEXT


def bytewise(raw: bytes) -> Iterator[bytes]:
    return (raw[at : at + 1] for at in range(len(raw)))


@pytest.mark.parametrize("entry", corpus("requests"), ids=lambda entry: entry.id)
async def test_h28_a_request_is_judged_alike_however_it_is_cut(entry: Sent) -> None:
    raw = entry.raw + (NEXT if entry.more.get("then", True) else b"")
    door = DoorInMemory()
    whole = door.verdict([raw])
    assert all(b"canary" not in target for _, target, _ in whole.begun) or entry.verdict == "second"
    if entry.verdict == "refused":
        assert whole.begun == () and len(whole.statuses) <= 1
    assert door.verdict(bytewise(raw)) == whole
    for at in range(1, len(raw)):
        cut = door.verdict([raw[:at], raw[at:]])
        assert cut == whole, f"{entry.id} cut at {at}: {cut} instead of {whole}"


@pytest.mark.parametrize("entry", corpus("answers"), ids=lambda entry: entry.id)
async def test_h28_an_answer_is_judged_alike_however_it_is_cut(entry: Sent) -> None:
    raw, fin = entry.raw, entry.more.get("fin", False)
    whole = taken([raw], fin=fin)
    if entry.verdict == "refused":
        assert whole == (0, b"", "protocol", False)
    else:
        assert whole.body == entry.more["body"].encode()
        assert (whole.end == "whole") == (entry.verdict == "body"), whole
        assert whole.kept == entry.more.get("kept", False), whole
    byte_by_byte = taken(bytewise(raw), fin=fin)
    for at, cut in [(0, byte_by_byte), *((at, taken([raw[:at], raw[at:]], fin=fin)) for at in range(1, len(raw)))]:
        assert cut.status == whole.status and cut.body == whole.body, f"{entry.id} cut at {at}: {cut} instead of {whole}"
        # Bytes that come behind a whole answer in a later read meet a connection at rest: it is closed then.
        assert cut.end == whole.end and cut.kept == whole.kept, f"{entry.id} cut at {at}: {cut} instead of {whole}"
