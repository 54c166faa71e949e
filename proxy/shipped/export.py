"""How do those who installed a package get the dashboards and rules? As files in a folder of theirs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

ALERTS = ("prometheus", "runbook.md", "runbook-levers.md")
DASHBOARDS = ("grafana", *ALERTS)
RUNBOOK_IN_REPOSITORY = "runbook_url: docs/runbook.md#"


def export(folder: Path, parts: Sequence[str], runbook_url: str) -> list[Path]:
    """Write these parts below `folder`, over what is there of them; alerts then lead to `runbook_url`. Raises OSError."""
    written = []
    for name, source in _below(files("proxy.shipped"), parts):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = source.read_text(encoding="utf-8")
        path.write_text(text.replace(RUNBOOK_IN_REPOSITORY, f"runbook_url: {runbook_url}#"), encoding="utf-8")
        written.append(path)
    return written


def _below(place: Traversable, names: Sequence[str]) -> Iterator[tuple[str, Traversable]]:
    for name in names:
        entry = place / name
        if entry.is_dir():
            inner = sorted(each.name for each in entry.iterdir())
            yield from ((f"{name}/{path}", source) for path, source in _below(entry, inner))
        else:
            yield name, entry
