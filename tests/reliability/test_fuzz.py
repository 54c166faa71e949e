"""H30: does anything at all upset a parser? What Hypothesis thinks of, and mutations of the corpora, into every fuzz target."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.reliability import fuzz


@pytest.fixture(autouse=True)
def loop() -> object:
    """Targets ask for the loop's clock; nothing runs on it."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield loop
    asyncio.set_event_loop(None)
    loop.close()


@pytest.mark.parametrize("name", fuzz.TARGETS)
@given(data=st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_h30_any_bytes_are_taken_or_refused(name: str, data: st.DataObject) -> None:
    base = data.draw(st.sampled_from(fuzz.seeds(name)) | st.binary(max_size=200))
    at = data.draw(st.integers(0, len(base)))
    fuzz.TARGETS[name](base[:at] + data.draw(st.binary(max_size=8)) + base[at + data.draw(st.integers(0, 4)) :])


@pytest.mark.parametrize("name", fuzz.TARGETS)
def test_h30_mutations_of_the_corpus_are_taken_or_refused(name: str) -> None:
    assert fuzz.run(name, 0.6) > 0
