"""Which pool is this request for?

The file's rules in order; the first whose conditions all hold decides, with a pool or with a split by weight. A pure function of the
request: the same tenant and conversation always land on the same side of a split, and moving a weight from 5 to 10 of 100 moves only
those 5 % of the conversations. Conditions are compiled once; per request a rule costs one call per condition until one fails.
"""

from __future__ import annotations

import fnmatch
import hashlib
import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from policies.model import Request

Comparison = tuple[str, int, bool]  # operator, limit, "or unset"
Value = str | bool | int | Sequence[str] | Comparison

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}

_NAMES: dict[str, Callable[[Request], str | None]] = {
    "model": lambda request: request.model,
    "path": lambda request: request.path,
    "key": lambda request: request.tenant,
    "traffic": lambda request: request.traffic,
    "task": lambda request: request.task,
}
_NUMBERS: dict[str, Callable[[Request], int | None]] = {
    "prompt_tokens": lambda request: request.prompt_tokens,
    "max_tokens": lambda request: request.max_tokens,
    "turns": lambda request: request.turns,
}
_FACTS: dict[str, Callable[[Request], bool]] = {
    "tools": lambda request: request.tools,
    "json": lambda request: request.json,
    "images": lambda request: request.images,
}
KINDS = frozenset({*_NAMES, *_NUMBERS, *_FACTS, "lane", "text"})


@dataclass(frozen=True, slots=True)
class Condition:
    """One entry of a rule's `when`, compiled by `condition`."""

    kind: str
    value: str  # as an operator reads it
    holds: Callable[[Request], bool]

    def describe(self) -> str:
        return f"{self.kind}: {self.value}"


def condition(kind: str, value: Value) -> Condition:
    """What must hold of a request?

    `model`, `path`, `key`, `traffic`, `task`: a name, a glob, or a sequence of them; nothing matches what the request does not name.
    `prompt_tokens`, `max_tokens`, `turns`: `(operator, limit, or_unset)`; what is unset is above every limit, unless `or_unset`.
    `tools`, `json`, `images`: a bool. `lane`: its index. `text`: a regular expression, found anywhere in the last user message.

    ValueError: an unknown kind or operator, a value of the wrong type, an invalid expression.
    """
    if kind in _NAMES:
        names = [value] if isinstance(value, str) else value
        if isinstance(names, Sequence) and all(isinstance(name, str) for name in names):
            return Condition(kind, ", ".join(map(str, names)), _named(_NAMES[kind], [str(name) for name in names]))
    elif kind in _NUMBERS and isinstance(value, tuple) and len(value) == 3:
        symbol, limit, or_unset = value
        if symbol in _OPERATORS and isinstance(limit, int):
            described = f"{symbol} {limit} or unset" if or_unset else f"{symbol} {limit}"
            return Condition(kind, described, _compared(_NUMBERS[kind], _OPERATORS[symbol], limit, bool(or_unset)))
    elif kind in _FACTS and isinstance(value, bool):
        fact = _FACTS[kind]
        return Condition(kind, str(value).lower(), lambda request: fact(request) is value)
    elif kind == "lane" and isinstance(value, int):
        return Condition(kind, str(value), lambda request: request.lane == value)
    elif kind == "text" and isinstance(value, str):
        try:
            found = re.compile(value).search
        except re.error as error:
            raise ValueError(f"text: {error}") from None
        return Condition(kind, value, lambda request: found(request.text) is not None)
    raise ValueError(f"{kind}: {value!r} is no condition")


def _named(name_of: Callable[[Request], str | None], names: Sequence[str]) -> Callable[[Request], bool]:
    plain = frozenset(name for name in names if not set(name) & set("*?["))
    globs = [fnmatch.translate(name) for name in names if name not in plain]
    if not globs:
        return lambda request: name_of(request) in plain
    matches = re.compile("|".join(globs)).match
    return lambda request: (name := name_of(request)) is not None and (name in plain or matches(name) is not None)


def _compared(
    number_of: Callable[[Request], int | None], compare: Callable[[float, float], bool], limit: int, or_unset: bool
) -> Callable[[Request], bool]:
    unset = or_unset or compare(math.inf, limit)
    return lambda request: unset if (number := number_of(request)) is None else compare(number, limit)


@dataclass(frozen=True, slots=True)
class Route:
    """One rule of the file: all conditions hold, so it is for `pool`, or for one of `split` (pool, weight)."""

    conditions: Sequence[Condition]
    pool: str | None
    split: tuple[tuple[str, int], ...] = ()


class Choice(NamedTuple):
    """The answer, and the rule that gave it, for log and `explain`."""

    pool: str
    rule_index: int
    why: str


class _Split:
    """Sides of a split, as upper ends of intervals of the hash's range."""

    __slots__ = ("_salt", "_sides")

    def __init__(self, choices: Sequence[Choice], weights: Sequence[int]) -> None:
        total = sum(weights)
        if total <= 0 or min(weights) < 0:
            raise ValueError("split: weights are not negative, and one is above zero")
        ends = [(sum(weights[: index + 1]) << 64) // total for index in range(len(weights))]
        self._sides = list(zip(ends, choices, strict=True))
        # So that two splits divide the same conversations independently of each other.
        self._salt = "\0".join(choice.pool for choice in choices).encode()

    def choose(self, request: Request) -> Choice:
        name = f"{request.tenant}\0{request.conversation or request.id}"  # no conversation: each request by itself
        point = int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8, key=self._salt[:64]).digest(), "big")
        return next(choice for end, choice in self._sides if point < end)


class Router:
    """The file's rules. ValueError: a rule with neither pool nor split, or with both, or with weights that divide nothing."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.needs_text = any(each.kind == "text" for route in routes for each in route.conditions)  # else nobody need extract it
        self.splits = any(route.split for route in routes)  # else nobody need tell conversations apart
        self._rules: list[tuple[tuple[Callable[[Request], bool], ...], Choice | _Split]] = []
        for index, route in enumerate(routes):
            if (route.pool is None) == (not route.split):
                raise ValueError(f"rule {index}: either a pool or a split")
            why = ", ".join(each.describe() for each in route.conditions) or "always"
            answer: Choice | _Split
            if route.pool is not None:
                answer = Choice(route.pool, index, why)
            else:
                total = sum(weight for _, weight in route.split)
                choices = [Choice(pool, index, f"{why}; split {weight}/{total}") for pool, weight in route.split]
                answer = _Split(choices, [weight for _, weight in route.split])
            self._rules.append((tuple(each.holds for each in route.conditions), answer))

    def choose(self, request: Request) -> Choice | None:
        """Which pool, and why? None: no rule holds (404)."""
        for tests, answer in self._rules:
            for holds in tests:
                if not holds(request):
                    break
            else:
                return answer.choose(request) if isinstance(answer, _Split) else answer
        return None
