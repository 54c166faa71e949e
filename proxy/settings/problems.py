"""What is wrong with a file, and where? Problems with their place, and the spelling that was probably meant."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from proxy.settings.document import Substituted

SUGGEST_LENGTH_MAX = 64  # longer words are no typing errors, and the distance is quadratic


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing wrong with a file, at the key or value where it is. `warning`: the file can still be served."""

    file: str
    line: int  # from 1
    column: int  # from 1
    path: str  # dotted: pools.small.queue.max_wait
    message: str
    warning: bool = False

    def __str__(self) -> str:
        note = "warning: " if self.warning else ""
        return f"{self.file}:{self.line}:{self.column}: {self.path}: {note}{self.message}"


class SettingsError(Exception):
    """The file cannot be served. `problems` holds everything that is wrong with it, in the order of the file."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = list(problems)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Which known word was probably meant? None if none is near: more than one edit per three letters is another word."""
    if len(word) > SUGGEST_LENGTH_MAX:
        return None
    plain = _plain(word)
    edits_max = max(1, len(plain) // 3)
    candidates = (name for name in known if abs(len(name) - len(plain)) <= edits_max)
    distance, name = min(
        ((_edits(plain, _plain(name)), name) for name in candidates), key=lambda pair: pair[0], default=(edits_max + 1, "")
    )
    return name if distance <= edits_max and distance < len(name) else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown word: the nearest known one, else all of them if they are few, else nothing."""
    names = [name for name in known if not isinstance(name, Substituted)]  # a variable may hold a secret, by mistake
    near = nearest(word, names)
    if near is not None:
        return f"; did you mean {_quoted(near)}?"
    return f"; there {'is' if len(names) == 1 else 'are'} {listed(names)}" if 0 < len(names) <= 12 else ""


def listed(names: Iterable[str], last: str = "and") -> str:
    """Names as prose: `"a", "b" and "c"`."""
    quoted = [_quoted(name) for name in names]
    return f" {last} ".join([", ".join(quoted[:-1]), quoted[-1]]) if len(quoted) > 1 else "".join(quoted)


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _plain(word: str) -> str:
    return word.lower().replace("-", "_")


def _edits(a: str, b: str) -> int:
    """Insertions, deletions, replacements and swaps of neighbours that turn a into b (optimal string alignment)."""
    before: list[int] = []
    last = list(range(len(b) + 1))
    for i, letter in enumerate(a, 1):
        row = [i]
        for j, other in enumerate(b, 1):
            cost = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == b[j - 2] and a[i - 2] == other:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        before, last = last, row
    return last[-1]
