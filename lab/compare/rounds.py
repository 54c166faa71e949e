"""How is a run made? Each round has every contestant in turn, so that whatever else the machine does, it does to all."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.compare import tools
from lab.compare.contestants import SUBJECT, Contestant
from lab.compare.machine import Machine, today
from lab.compare.processes import NotUp
from lab.compare.result import Result, Row, rows
from lab.compare.tools import NotInstalled
from lab.compare.works import Measured, Work, measure

Say = Callable[[str], None]


@dataclass(frozen=True)
class Asked:
    """What a run is to be."""

    contestants: Sequence[Contestant]
    works: Sequence[Work]
    rounds: int
    seconds: int
    engine_port: int


def run(asked: Asked, folder: Path, say: Say) -> Result:
    """All rounds of all works. Who is missing is left out, and said. Raises NotInstalled if nothing can be measured, OSError."""
    names, works = asked.contestants, asked.works
    tools.build(folder)
    present = [contestant for contestant in names if contestant.is_here]
    left_out = {each.name: f"not installed; {each.remedy}" for each in names if not each.is_here}
    if any(not work.streams for work in works) and shutil.which("wrk") is None:
        works = [work for work in works if work.streams]
        left_out["wrk"] = "not installed, so neither plain nor prompt was measured; apt-get install wrk"
    for name, why in left_out.items():
        say(f"{name}: {why}")
    if not works or all(contestant.name != SUBJECT for contestant in present):
        raise NotInstalled("nothing is left to be measured")
    versions = {contestant.name: contestant.version() for contestant in present}
    found = {}
    for work in works:
        with tools.engine(folder, asked.engine_port, work.gap_us, work.ttft_us):
            measured: dict[str, list[Measured | None]] = {contestant.name: [] for contestant in present}
            for _ in range(asked.rounds):
                for contestant in present:
                    measured[contestant.name].append(_one(contestant, work, asked.seconds, folder, say))
        found[work.name] = rows(measured)
        say(f"\n{work.name}: {asked.rounds} rounds of {asked.seconds} s, median")
        for name, row in found[work.name].items():
            say("  " + line(name, row, work))
    return Result(today(), Machine.here(), versions, asked.seconds, asked.rounds, found, left_out)


def _one(contestant: Contestant, work: Work, seconds: int, folder: Path, say: Say) -> Measured | None:
    try:
        return measure(contestant, work, seconds, folder)
    except NotUp as problem:
        say(str(problem))
        return None


def line(name: str, row: Row, work: Work) -> str:
    """One contestant's medians, for the terminal."""

    def figure(of: str) -> float:
        return row.figure(of) or 0.0

    if work.streams:
        extra = f"delay p50 {figure('delay_p50_us'):.0f} us p99 {figure('delay_p99_us'):.0f} us, "
        extra += f"ttft p99 {figure('ttft_p99_us') / 1000:.0f} ms, {figure('kib_per_stream'):.1f} KiB/stream"
    else:
        extra = f"p99 {figure('p99_us') / 1000:.2f} ms"
    ratio = f"   {SUBJECT}/{name} = {row.ratio:.2f}" if row.ratio is not None and name != SUBJECT else ""
    rate = f"{figure('us'):8.1f} us/{work.unit}  {figure('per_s'):9.0f}/s"
    return f"{name:14s} {rate}  rss {figure('rss_mib'):.0f} MiB  bad {row.bad}  {extra}{ratio}"
