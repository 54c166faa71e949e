"""What was promised, and is it kept? The bounds that Fairlane holds itself to, each beside what a run measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lab.compare.contestants import SUBJECT
from lab.compare.result import Result, Row

RUST_ROUTERS = ("vllm-router", "sglang-router")
KIB_PER_STREAM_MAX = 16.0


@dataclass(frozen=True)
class Verdict:
    """One promise. `met` None: it was not measured in this run."""

    work: str
    figure: str
    measured: float | int | None
    bound: float | None
    aim: float | None = None

    @property
    def met(self) -> bool | None:
        """Is it kept?"""
        return None if self.measured is None or self.bound is None else self.measured <= self.bound


RATIOS = (  # work, peer, bound, aim
    ("plain", "vllm-router", 0.90, 0.7),
    ("plain", "nginx", 3.0, 2.0),
    ("stream", "vllm-router", 0.90, None),
    ("stream", "nginx", 1.3, 1.0),
    ("prompt", "vllm-router", 0.90, None),
)


def verdicts(result: Result) -> Iterator[Verdict]:
    """Every promise, in the order of the table."""

    def value(work: str, name: str, read: Callable[[Row], float | None]) -> float | None:
        row = result.works.get(work, {}).get(name)
        return None if row is None else read(row)

    for work, peer, bound, aim in RATIOS:
        yield Verdict(work, f"processor time, {SUBJECT} / {peer}", value(work, peer, lambda row: row.ratio), bound, aim)
    delays = [delay for name in RUST_ROUTERS if (delay := value("stream", name, _delay)) is not None]
    yield Verdict("stream", "delay added to a chunk, p99, us", value("stream", SUBJECT, _delay), min(delays, default=None))
    yield Verdict("wide", "KiB per stream", value("wide", SUBJECT, lambda row: row.figure("kib_per_stream")), KIB_PER_STREAM_MAX)
    ours = [found[SUBJECT] for found in result.works.values() if SUBJECT in found]
    yield Verdict("any", "bad answers", sum(row.bad for row in ours) if ours else None, 0)


def _delay(row: Row) -> float | None:
    return row.figure("delay_p99_us")
