"""Is docs/configuration.md what the models say?"""

from __future__ import annotations

import subprocess
import sys

from proxy.settings.reference import reference, sections
from tests.settings.directory import ROOT

PAGE = ROOT / "docs" / "configuration.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == reference(), "run: python -m proxy.settings.reference > docs/configuration.md"


def test_the_command_prints_it() -> None:
    done = subprocess.run([sys.executable, "-m", "proxy.settings.reference"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == reference()


def test_every_key_of_every_section_is_documented() -> None:
    page = reference()
    for section in sections():
        assert section.__doc__ and section.__doc__ in page
        for name, field in section.model_fields.items():
            assert field.description, f"{section.__name__}.{name} has no description"
            rows = [row for row in page.splitlines() if row.startswith(f"| `{field.alias or name}` |")]
            assert any(field.description.replace("|", "\\|") in row for row in rows)
