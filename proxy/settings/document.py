"""What does the YAML say, and where does each part of it stand? Strict YAML 1.2 core scalars in a tree that keeps its places.

Only what a settings file needs: mappings with text keys, lists, scalars. Anchors, aliases, merge keys, tags, several documents
and duplicate keys are problems; so is an empty value. Built from the parser's events, iteratively, with bounded depth.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

import yaml

from proxy.settings.variables import substitute

FILE_BYTES_MAX = 1 << 20
DEPTH_MAX = 16  # the deepest setting is at 6
NODES_MAX = 50_000  # a thousand backends need about ten thousand

# The core schema's numbers without octal and hexadecimal, and without leading zeros: those are text here.
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,18})?|\.[0-9]{1,18})(?:[eE][-+]?[0-9]{1,2})?", re.ASCII)
_FIXED = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_WORD = re.compile(r"[\w./${}*:+-]{1,64}")
_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")


class Mark(NamedTuple):
    """A place in the file, both from 1."""

    line: int
    column: int


class Substituted(str):
    """Text that variables went into: read as a number or truth value where one is expected."""

    __slots__ = ()


class Node:
    """A part of the file. `value`: a plain scalar; None for a mapping, a list and what is broken (already reported)."""

    __slots__ = ("broken", "children", "is_list", "key_mark", "mark", "path", "value")

    def __init__(
        self,
        mark: Mark,
        path: str,
        value: Any = None,
        children: dict[str | int, Node] | None = None,
        *,
        is_list: bool = False,
    ) -> None:
        self.mark = mark
        self.path = path  # dotted, as the file spells it
        self.value = value
        self.children = children
        self.is_list = is_list
        self.key_mark = mark
        self.broken = False

    def plain(self) -> Any:
        """The value as dicts, tuples and scalars."""
        if self.children is None:
            return self.value
        if self.is_list:
            return tuple(child.plain() for child in self.children.values())
        return {key: child.plain() for key, child in self.children.items()}


Report = Callable[[Mark, str, str], None]  # place, path, message


def core_scalar(text: str) -> str | int | float | bool:
    """What does an unquoted word mean? Only `true`, `false` and decimal numbers are more than text."""
    if text in _FIXED:
        return _FIXED[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def dotted(step: str | int) -> str:
    """One step of a path; what is no plain word is quoted, and cut."""
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if _WORD.fullmatch(step) else "." + json.dumps(step[:64], ensure_ascii=False)


def decode(data: bytes, report: Report) -> str | None:
    """The file as text, or None after a problem was reported: too large, not UTF-8, or holding what no text holds."""
    if len(data) > FILE_BYTES_MAX:
        report(Mark(1, 1), "file", f"is larger than {FILE_BYTES_MAX >> 20} MiB")
        return None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8", "replace")
        report(_mark_after(before), "file", "is not UTF-8 text from here on")
        return None
    found = _UNPRINTABLE.search(text)
    if found:
        report(_mark_after(text[: found.start()]), "file", f"holds the unprintable character U+{ord(found[0]):04X}")
        return None
    return text


def _mark_after(before: str) -> Mark:
    lines = re.split("\r\n|[\r\n\x85\u2028\u2029]", before)
    return Mark(len(lines), len(lines[-1]) + 1)


class _Unreadable(Exception):
    """The rest of the file cannot be read; the problem has been reported."""


class _Open:
    """A mapping or list whose end has not been seen."""

    __slots__ = ("children", "key", "key_mark", "key_source", "node", "unwanted")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.children: dict[str | int, Node] = {} if node.children is None else node.children
        self.key: str | None = None
        self.key_mark = node.mark
        self.key_source = ""  # as the file has it, before variables
        self.unwanted = False  # the key's value is to be read and forgotten: the key has been reported


class _Builder:
    """From the parser's events to the tree."""

    def __init__(self, environ: Mapping[str, str], report: Report) -> None:
        self.environ = environ
        self.report = report
        self.root: Node | None = None
        self.open: list[_Open] = []
        self.nodes = 0
        self.documents = 0

    @property
    def path(self) -> str:
        """Where the next node goes: its path, as the file spells it."""
        if not self.open:
            return ""
        owner = self.open[-1]
        step = dotted(len(owner.children)) if owner.node.is_list else dotted(owner.key_source) if owner.key is not None else ""
        return owner.node.path + step

    def problem(self, mark: Mark, message: str) -> None:
        self.report(mark, self.path.removeprefix(".") or "file", message)

    def place(self, node: Node, event: yaml.Event) -> None:
        """Put a finished scalar or a beginning collection where it belongs: root, list item, or value of the pending key."""
        self.nodes += 1
        if self.nodes > NODES_MAX:
            self.stop(event, f"is too large: more than {NODES_MAX} parts")
        if not self.open:
            self.root = node
            return
        owner = self.open[-1]
        if owner.node.is_list:
            owner.children[len(owner.children)] = node
            return
        if owner.key is None:
            self.stop(event, "must have a plain word for a key here; a value beginning with { or [ in braces needs quotes")
        node.key_mark = owner.key_mark
        if not owner.unwanted:
            owner.children[owner.key] = node
        owner.key, owner.unwanted = None, False

    def stop(self, event: yaml.Event, message: str) -> NoReturn:
        self.problem(_mark(event), message)
        raise _Unreadable

    def scalar(self, event: yaml.ScalarEvent) -> None:
        mark, owner = _mark(event), self.open[-1] if self.open else None
        text, failure = str(event.value), ""
        try:
            value = substitute(text, self.environ)
        except ValueError as error:
            value, failure = text, str(error)
        if owner is not None and not owner.node.is_list and owner.key is None:
            self.key(owner, mark, text, value, failure, plain=not event.style)
            return
        node = Node(mark, self.path)
        if failure:
            node.broken = True
            self.problem(mark, failure)
        elif value != text:
            node.value = Substituted(value)
        elif event.style:
            node.value = text
        elif text in _NULL:
            node.broken = True
            self.problem(mark, "has no value; give it one ({} for all the defaults), or remove the key")
        else:
            node.value = core_scalar(text)
        self.place(node, event)

    def key(self, owner: _Open, mark: Mark, text: str, value: str, failure: str, *, plain: bool) -> None:
        owner.key, owner.key_mark, owner.key_source = Substituted(value) if value != text else text, mark, text
        if text == "<<" and plain:
            failure = "is a merge key; those are not read, write the values out"
        elif value in owner.children:
            failure = f"is given twice; the first is on line {owner.children[value].key_mark.line}"
        if failure:
            owner.unwanted = True
            self.problem(mark, failure)

    def take(self, event: yaml.Event) -> None:
        match event:
            case yaml.ScalarEvent():
                self.refuse_extras(event)
                self.scalar(event)
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                self.refuse_extras(event)
                if len(self.open) >= DEPTH_MAX:
                    self.stop(event, f"is nested too deeply: more than {DEPTH_MAX} levels")
                node = Node(_mark(event), self.path, children={}, is_list=isinstance(event, yaml.SequenceStartEvent))
                self.place(node, event)
                self.open.append(_Open(node))
            case yaml.CollectionEndEvent():
                self.open.pop()
            case yaml.AliasEvent():
                self.stop(event, "is an alias; anchors and aliases are not read, write the value out")
            case yaml.DocumentStartEvent():
                self.documents += 1
                if self.documents > 1:
                    self.stop(event, "begins a second document; the file must hold one")

    def refuse_extras(self, event: yaml.ScalarEvent | yaml.CollectionStartEvent) -> None:
        if event.anchor is not None:
            self.problem(_mark(event), "has an anchor; anchors and aliases are not read, write the value out")
        if event.tag is not None:
            self.problem(_mark(event), "has a tag; tags are not read, write the bare value")


def _mark(event: yaml.Event) -> Mark:
    at = event.start_mark
    return Mark(at.line + 1, at.column + 1) if at is not None else Mark(1, 1)


def _next(events: Iterator[yaml.Event]) -> yaml.Event | None:
    try:
        return next(events, None)
    except (ValueError, OverflowError):  # escapes that are no character, directives with absurd numbers
        raise yaml.YAMLError from None


def parse(text: str, environ: Mapping[str, str], report: Report) -> Node | None:
    """The tree of the file's one document, or None after a problem was reported that leaves no tree."""
    builder = _Builder(environ, report)
    events = yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    try:
        while (event := _next(events)) is not None:
            builder.take(event)
    except _Unreadable:
        return None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "this is no YAML"
        builder.problem(Mark(mark.line + 1, mark.column + 1) if mark else Mark(1, 1), f"cannot be read: {problem}")
        return None
    if builder.root is None:
        report(Mark(1, 1), "file", "is empty; the smallest useful file has platforms, pools, and keys or anonymous")
    return builder.root
