"""What did a run measure? Medians over its rounds, ratios paired round by round, and where and with what it was made."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from lab.compare.contestants import SUBJECT
from lab.compare.machine import Machine
from lab.compare.works import Measured


@dataclass(frozen=True)
class Row:
    """One contestant at one work. `rounds`: None where it did not come up."""

    rounds: tuple[Measured | None, ...]
    ratio: float | None  # subject / this one, the median of the rounds that both finished; below 1 the subject is cheaper

    def figure(self, name: str) -> float | None:
        """The median of one figure; None: this work has none."""
        values = [value for each in self.rounds if each is not None and (value := getattr(each, name)) is not None]
        return float(statistics.median(values)) if values else None

    @property
    def bad(self) -> int:
        """Bad answers over all rounds: a median would hide them."""
        return sum(each.bad for each in self.rounds if each is not None)

    def as_json(self) -> dict[str, Any]:
        """Every figure's median under its name, the ratio, and the rounds themselves."""
        medians = {name: self.figure(name) for name in Measured.__dataclass_fields__ if self.figure(name) is not None}
        rounds = [None if each is None else asdict(each) for each in self.rounds]
        return {**medians, "bad": self.bad, "ratio": self.ratio, "rounds": rounds}


def rows(rounds: Mapping[str, list[Measured | None]]) -> dict[str, Row]:
    """The rows of one work, of those who finished a round at least."""
    subject = rounds.get(SUBJECT, [])
    found = {}
    for name, measured in rounds.items():
        pairs = zip(subject, measured, strict=False)
        ratios = [ours.us / theirs.us for ours, theirs in pairs if ours is not None and theirs is not None and theirs.us > 0]
        if any(each is not None for each in measured):
            found[name] = Row(tuple(measured), statistics.median(ratios) if ratios else None)
    return found


@dataclass(frozen=True)
class Result:
    """One run: by work, then by contestant."""

    date: str
    machine: Machine
    versions: Mapping[str, str]
    seconds: int
    rounds: int
    works: Mapping[str, Mapping[str, Row]]
    left_out: Mapping[str, str] = field(default_factory=dict)  # name: why, and how to change that

    def as_json(self) -> dict[str, Any]:
        """The whole of it, for a file."""
        return {
            "date": self.date,
            "machine": asdict(self.machine),
            "versions": dict(self.versions),
            "seconds": self.seconds,
            "rounds": self.rounds,
            "works": {work: {name: row.as_json() for name, row in found.items()} for work, found in self.works.items()},
            "left_out": dict(self.left_out),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Result:
        """What `as_json` made. KeyError or TypeError: it was made by something else."""

        def row(found: Mapping[str, Any]) -> Row:
            return Row(tuple(None if each is None else Measured(**each) for each in found["rounds"]), found["ratio"])

        return cls(
            date=document["date"],
            machine=Machine(**document["machine"]),
            versions=document["versions"],
            seconds=document["seconds"],
            rounds=document["rounds"],
            works={work: {name: row(each) for name, each in found.items()} for work, found in document["works"].items()},
            left_out=document["left_out"],
        )
