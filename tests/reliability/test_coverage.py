"""Is docs/reliability.md what the tests say, and does every case of these groups have its test or its reason?"""

from __future__ import annotations

from tests.reliability.coverage import ROOT, catalogue, covered, page


def test_the_page_is_up_to_date() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text()
    assert text == page(), "run: python -m tests.reliability.coverage > docs/reliability.md"


def test_every_case_on_bytes_streams_callers_and_tenancy_is_shown_or_has_its_reason() -> None:
    where = covered()
    for group in "HLSCT":
        for case, row in catalogue()[group]["cases"].items():
            assert case in where or row.get("why_not"), f"{case} has neither a test nor a reason"


def test_no_test_names_a_case_that_is_not_in_the_catalogue() -> None:
    known = {case for section in catalogue().values() for case in section["cases"]}
    assert sorted(set(covered()) - known) == []
