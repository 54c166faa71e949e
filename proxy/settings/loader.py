"""Is this file good, and what does it say? Reads, parses, defaults and cross-checks it; all problems at once, with their places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from proxy.settings.document import FILE_BYTES_MAX, Mark, Node, decode, dotted, parse
from proxy.settings.problems import Problem, SettingsError
from proxy.settings.references import contradictions, warnings
from proxy.settings.root import Settings
from proxy.settings.section import KEY, UNKNOWN, Steps


@dataclass(frozen=True, slots=True)
class Loaded:
    """A file that can be served, and what is doubtful about it."""

    settings: Settings
    warnings: list[Problem]


def load(path: str | Path, environ: Mapping[str, str]) -> Loaded:
    """The settings of a file. Relative paths in it start from its directory. SettingsError holds all that is wrong with it."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no such path"
        raise SettingsError([Problem(str(path), 1, 1, "file", f"cannot be read: {reason}")]) from None
    return loads(data, environ, name=str(path), directory=Path(path).absolute().parent)


def loads(data: bytes, environ: Mapping[str, str], name: str = "settings", directory: Path = Path()) -> Loaded:
    """The same of a file's content."""
    findings = _Findings(name)
    text = decode(data, findings.unread)
    root = parse(text, environ, findings.unread) if text is not None else None
    if root is None:
        raise SettingsError(findings.sorted())
    content, settings = root.plain(), None
    try:
        settings = Settings.model_validate(content, context={"directory": directory})
    except ValidationError as error:
        for detail in error.errors(include_url=False, include_input=False):
            findings.add(root, detail["loc"], detail["msg"], at_key=detail["type"] == UNKNOWN)
    for steps, message in contradictions(content):
        findings.add(root, steps, message)
    if settings is None or findings.problems:
        raise SettingsError(findings.sorted())
    for steps, message in warnings(settings):
        findings.add(root, steps, message, warning=True)
    return Loaded(settings, findings.sorted())


class _Findings:
    """Problems as they are found, each brought to its place."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: set[Problem] = set()

    def sorted(self) -> list[Problem]:
        return sorted(self.problems)

    def unread(self, mark: Mark, path: str, message: str) -> None:
        """A problem with the text itself."""
        self.problems.add(Problem(self.file, *mark, path, message))

    def add(self, root: Node, steps: Steps, message: str, *, at_key: bool = False, warning: bool = False) -> None:
        """A problem with what the text says: at the scalar that is wrong, else at the key whose value is, or lacks something."""
        node, rest = root, list(steps)
        while rest and (child := _child(node, rest[0])) is not None:
            node, rest = child, rest[1:]
        if node.broken:
            return  # one problem there is enough
        is_key = rest == [KEY] or (at_key and not rest)
        path = node.path if node.children is None or is_key else node.path + "".join(dotted(step) for step in rest)
        mark = node.mark if node.children is None and not is_key else node.key_mark
        self.problems.add(Problem(self.file, *mark, path.removeprefix(".") or "file", message, warning))


def _child(node: Node, step: str | int) -> Node | None:
    """The part of a node that a step leads to. A backend of a list is known by its platform's name and its number."""
    if node.children is None:
        return None
    if node.is_list and isinstance(step, str):
        number = step.rpartition("-")[2]
        step = int(number) - 1 if number.isdecimal() else step
    return node.children.get(step)
