"""What happens to the backends meanwhile? The events planned for a run: `--events FILE`, YAML or JSON.

- {at: 60s, backend: gpu-a, event: dies}            # refuses connections; its streams are reset
- {at: 120s, backend: gpu-a, event: returns}        # as at the start: alive, at its own speed, without faults
- {at: 180s, backend: gpu-a, cap: 8}                # as a reload with another max_streams
- {at: 200s, platform: rented, event: slow, factor: 3}    # everything takes three times as long from now on
- {at: 300s, backend: gpu-b, event: fails, share: 30%}    # so many attempts end with status 500
- {at: 400s, backend: gpu-b, event: hangs}          # accepts, and says nothing more
- {at: 500s, platform: own, event: drain}           # the operator's levers: drain, undrain
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from proxy.settings.document import Mark, Node, decode, parse
from proxy.settings.problems import Problem, SettingsError, did_you_mean
from proxy.settings.values import duration, share


class What(enum.Enum):
    """What happens."""

    DIES = "dies"
    RETURNS = "returns"
    HANGS = "hangs"
    SLOW = "slow"
    FAILS = "fails"
    CAP = "cap"
    DRAIN = "drain"
    UNDRAIN = "undrain"


class Incident(NamedTuple):
    """At `at`, to these backends. `amount`: the factor, the share, the cap; for a lever, `name` is what it is pulled for."""

    at: float
    what: What
    backends: Sequence[str]
    name: str
    amount: float = 1.0


KEYS = ("at", "backend", "platform", "event", "factor", "share", "cap")


def load(path: Path, backends: Mapping[str, str]) -> list[Incident]:
    """The planned events of a file, in order of time. `backends`: name and platform. SettingsError holds all that is wrong with it."""
    problems: list[Problem] = []

    def report(mark: Mark, place: str, message: str) -> None:
        problems.append(Problem(str(path), *mark, place.removeprefix(".") or "file", message))

    try:
        text = decode(path.read_bytes(), report)
    except OSError as error:
        raise SettingsError([Problem(str(path), 1, 1, "file", f"cannot be read: {error.strerror}")]) from None
    root = parse(text, {}, report) if text is not None else None
    incidents = []
    if root is not None and not root.is_list:
        report(root.mark, "file", "must be a list of events, such as - {at: 60s, backend: gpu-a, event: dies}")
    elif root is not None:
        for node in (root.children or {}).values():
            try:
                incidents.append(_incident(node, backends))
            except ValueError as error:
                report(node.mark, node.path, str(error))
    if problems:
        raise SettingsError(sorted(problems))
    return sorted(incidents, key=lambda incident: incident.at)


def _incident(node: Node, backends: Mapping[str, str]) -> Incident:
    said = node.plain()
    if not isinstance(said, dict):
        raise ValueError("must be a mapping, such as {at: 60s, backend: gpu-a, event: dies}")
    for key in said:
        if key not in KEYS:
            raise ValueError(f"{key} is no key here{did_you_mean(key, KEYS)}")
    name, concerned = _concerned(said, backends)
    event = said.get("event", "cap" if "cap" in said else None)
    words = [each.value for each in What]
    if event not in words:
        raise ValueError(f"event: must be one of {', '.join(words)}" + (did_you_mean(event, words) if isinstance(event, str) else ""))
    what = What(event)
    try:
        at = float(duration(said.get("at")))
    except ValueError as error:
        raise ValueError(f"at: {error}") from None
    return Incident(at, what, concerned, name, _amount(what, said))


def _concerned(said: Mapping[str, object], backends: Mapping[str, str]) -> tuple[str, list[str]]:
    if ("backend" in said) == ("platform" in said):
        raise ValueError("needs either a backend or a platform")
    kind = "backend" if "backend" in said else "platform"
    name, known = str(said[kind]), list(backends) if kind == "backend" else list(dict.fromkeys(backends.values()))
    if name not in known:
        raise ValueError(f"{kind}: names no {kind} of this file{did_you_mean(name, known)}")
    return name, [name] if kind == "backend" else [backend for backend, platform in backends.items() if platform == name]


def _amount(what: What, said: Mapping[str, object]) -> float:
    if what is What.CAP:
        cap = said.get("cap")
        if not isinstance(cap, int) or isinstance(cap, bool) or cap < 1:
            raise ValueError("cap: must be a whole number of streams, at least 1")
        return cap
    if what is What.SLOW:
        factor = said.get("factor", 2)
        if isinstance(factor, bool) or not isinstance(factor, int | float) or factor <= 0:
            raise ValueError("factor: must be a number above 0; 2 is twice as slow")
        return float(factor)
    if what is What.FAILS:
        try:
            return float(share(said.get("share", "100%")))
        except ValueError as error:
            raise ValueError(f"share: {error}") from None
    return 1.0
