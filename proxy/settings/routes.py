"""Which pool does a request go to? `routes:` of the file, first match wins."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, model_validator

from proxy.settings.section import Section, refuse, rivals, setting
from proxy.settings.values import Bound, BoundOrUnset, Comparison, Flag, Kind, Name, Names, OneOrMore, Whole

TEXT_LENGTH_MAX = 1000


def _expression(text: str) -> str:
    if len(text) > TEXT_LENGTH_MAX:
        raise ValueError(f"must be at most {TEXT_LENGTH_MAX} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(text)
    except (re.error, RecursionError, OverflowError):
        raise ValueError("must be a regular expression (in single quotes, so that YAML leaves backslashes alone)") from None
    return text


class When(Section):
    """Conditions on a request, all of which must hold."""

    model: OneOrMore | None = setting("the model asked for: names or globs", None)
    path: OneOrMore | None = setting("the path called: names or globs, such as /v1/embeddings", None)
    lane: Names | None = setting("the request's lane", None)
    key: Names | None = setting("the key's name", None)
    traffic: Annotated[Literal["interactive", "batch"] | None, Kind("interactive or batch")] = setting(
        "from the key, the header x-fairlane-traffic, or the body's `service_tier: flex`", None
    )
    prompt_tokens: Bound | None = setting("estimated length of the prompt", None)
    max_tokens: BoundOrUnset | None = setting(
        'the request\'s limit on its answer; without one it is above every limit unless the rule says "<= 256 or unset"', None
    )
    turns: Bound | None = setting("how many messages the conversation has", None)
    tools: Flag | None = setting("whether tools are offered", None)
    json_mode: Flag | None = setting("whether JSON is asked for", None, alias="json")
    images: Flag | None = setting("whether there are images", None)
    task: OneOrMore | None = setting("header x-fairlane-task: names", None)
    text: Annotated[str, AfterValidator(_expression), Kind("regular expression")] | None = setting(
        "searched for in the last message of the user", None
    )

    @property
    def conditions(self) -> Iterator[tuple[str, object]]:
        """What is asked: the file's key, and its value."""
        for key, name in type(self).file_keys().items():
            value = getattr(self, name)
            if value is not None:
                yield key, value


class Route(Section):
    """One rule: where requests go that meet its conditions."""

    when: When = setting("conditions, all of which must hold", When(), shown="every request")
    pool: Name | None = setting("where they go", None, shown="pool or split")
    split: Annotated[Mapping[Name, Whole] | None, Kind("mapping of pools to weights")] = setting(
        "pools with weights instead; one tenant's conversation stays on one side", None, shown="pool or split"
    )

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        refuse(*rivals(self, "pool", "split"))
        if self.pool is None and self.split is None:
            refuse(((), "needs a pool, or a split"))
        if self.split is not None and (min(self.split.values(), default=0) < 0 or not sum(self.split.values())):
            refuse((("split",), "must give weights of zero or more, and one above zero"))
        return self

    @property
    def targets(self) -> tuple[tuple[str, int], ...]:
        """Pools with their weights; a plain pool is one of weight 1."""
        return tuple(self.split.items()) if self.split is not None else ((self.pool or "", 1),)


def reachable(routes: Sequence[Route]) -> tuple[Route, ...]:
    """The rules, if none stands behind another that takes all it could match."""
    problems = []
    for index, route in enumerate(routes):
        before = next((i for i, earlier in enumerate(routes[:index]) if _covers(earlier.when, route.when)), None)
        if before is not None:
            problems.append(((index,), f"can never match: routes[{before}] takes all that it could; put this one before it, or remove it"))
    refuse(*problems)
    return tuple(routes)


def _covers(wide: When, narrow: When) -> bool:
    """Does every request that meets `narrow` meet `wide`? False where we cannot tell."""
    asked = dict(narrow.conditions)
    return all(key in asked and _implies(asked[key], value) for key, value in wide.conditions)


def _implies(narrow: object, wide: object) -> bool:
    if isinstance(narrow, Comparison) and isinstance(wide, Comparison):
        return _within(narrow, wide)
    if isinstance(narrow, tuple) and isinstance(wide, tuple):
        return all(any(name == other or (not is_glob(name) and fnmatchcase(name, other)) for other in wide) for name in narrow)
    return narrow == wide


def is_glob(name: str) -> bool:
    """Does this stand for a family of names?"""
    return bool(set(name) & set("*?["))


def _within(narrow: Comparison, wide: Comparison) -> bool:
    """Is every number inside `narrow` inside `wide`? Bounds as whole numbers from low to high; unset counts as infinite."""
    low, high = _range(narrow)
    wide_low, wide_high = _range(wide)
    return low >= wide_low and high <= wide_high and (wide.or_unset or not narrow.or_unset)


def _range(bound: Comparison) -> tuple[float, float]:
    infinite = float("inf")
    return {
        "<=": (0, bound.value),
        "<": (0, bound.value - 1),
        ">=": (bound.value, infinite),
        ">": (bound.value + 1, infinite),
        "==": (bound.value, bound.value),
    }[bound.operator]
