"""Which case is covered where? `python -m tests.reliability.coverage > docs/reliability.md` says so, from the tests themselves.

A test covers a case by naming it: `test_h01_...`, `test_s07_s08_...`; an entry of a corpus by its `case`.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import yaml

from tests.reliability.corpora import cases

ROOT = Path(__file__).resolve().parents[2]
CATALOGUE = Path(__file__).with_name("catalogue.yaml")
_CASE = re.compile(r"_(?!p9[059]_|p50_)([a-z]\d\d)(?=_)")  # percentiles are no cases
_CORPORA = {"requests": ("test_requests.py", "test_cuts.py"), "answers": ("test_answers.py", "test_cuts.py")}
_YET = "no test names it yet"

HEAD = """# Reliability, case by case

What holds when callers and backends misbehave, and which test shows it. Printed by `python -m tests.reliability.coverage`; change the
tests or `tests/reliability/catalogue.yaml`, not this page. Run one case by its number: `pytest tests -k h01` (those of a corpus: `-k H01`).

After each case in `tests/reliability` the oracles of `tests/reliability/watch.py` are applied: what the backends received is read
again by another parser and compared with the log (O-a), every request ended once and under one name (O-b), no cap was exceeded as the
backend counts (O-c), nothing is left in flight, waiting or open (O-d), no slot stood free beside a waiter (O-e, where a queue forms),
attempts and usage are counted once (O-f), nothing was reported that stderr would show (O-g), no key and no prompt is in a log or metric
(O-h), and a valid request is answered (O-i). The cases run on uvloop, as the server does.

`make soak` adds what takes minutes. Each part alone:

| command | runs | takes |
| --- | --- | --- |
| `python -m pytest -m soak tests/reliability` | the long forms of the cases: storms, reloads, F14, L17 | 20 min |
| `make outage` | an outage of 60 s, a flapping and a slow primary, on the real clock with the defaults | 10 min |
| `python -m tests.reliability.soak --minutes 20` | mixed traffic; memory, descriptors, tasks, slots; slopes against targets | 20 min |
| `make storm` | 10,000 requests with mixed endings after a warm-up of 15,000: what each leaves in memory | 5 min |
| `make flood` | 1,000 malformed requests a second, each on a new connection: what good callers notice | 2 min |
| `make fuzz FUZZ_SECONDS=120` | the fuzz targets under atheris; one alone: `python -m tests.reliability.fuzz requests 120` | 10 min |

What is in and out of scope is in [SECURITY.md](../SECURITY.md).
"""


def catalogue() -> dict[str, dict[str, Any]]:
    """The groups, each with its title and cases."""
    loaded: dict[str, dict[str, Any]] = yaml.safe_load(CATALOGUE.read_text())
    return loaded


def covered() -> dict[str, list[str]]:
    """Each case that some test names, and where."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                for case in _CASE.findall(node.name.removeprefix("test") + "_"):
                    found[case.upper()].add(path.relative_to(ROOT / "tests").as_posix())
    for corpus, files in _CORPORA.items():
        for case in cases(corpus):
            found[case] |= {f"reliability/{file}" for file in files}
    return {case: sorted(files) for case, files in found.items()}


def page() -> str:
    """The page, in Markdown."""
    where = covered()
    parts = [HEAD]
    for group, section in catalogue().items():
        rows = section["cases"]
        shown = sum(case in where for case in rows)
        parts.append(
            f"\n## {group}. {section['title']} ({shown} of {len(rows)})\n\n| case | about | shown by, or why not |\n| --- | --- | --- |\n"
        )
        for case, row in rows.items():
            files = ", ".join(f"`{file}`" for file in where.get(case, ()))
            shown_by = files or "not shown: " + row.get("why_not", _YET)
            if files and "partly" in row:
                shown_by += f"; not: {row['partly']}"
            parts.append(f"| {case} | {row['about'].replace('|', chr(92) + '|')} | {shown_by} |\n")
    return "".join(parts)


if __name__ == "__main__":
    print(page(), end="")
