"""`fairlane bench`: in which order is everything asked, and with which code does it end?

Platforms are met first, so that a wrong key costs a second and not the night. Then round by round, rung by rung, platform by
platform: what drifts in an hour drifts for all of them.
"""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import uvloop

from lab.bench.demand import Load
from lab.bench.drift import drifted
from lab.bench.drive import Driver
from lab.bench.figures import median_of, spread, step_figures
from lab.bench.find_max import find_max
from lab.bench.meeting import floor_of, meet
from lab.bench.options import Options, Platform
from lab.bench.page import page
from lab.bench.progress import Progress
from lab.bench.prompts import Prompts
from lab.bench.ranking import best_step, by_cost, by_weights, knee
from lab.bench.target import Floor, Refused, Target, Unreachable
from lab.bench.terminal import show

JSON = dict[str, Any]
ENOUGH = 20  # answers, for a p95 that is not the slowest one
RATE_TRIAL_REQUESTS, RATE_TRIAL_TIMES = 100, 4  # with --find-max: so many arrivals, in at most so many times --duration
DONE, PROBLEM, UNREACHABLE, INTERRUPTED = 0, 1, 3, 130


def run(options: Options) -> int:
    """The exit code: 0 done, 1 SLO missed at every step or a condition failed, 3 target unreachable, 130 interrupted."""
    return uvloop.run(_until_signal(options))


async def _until_signal(options: Options) -> int:
    task = asyncio.ensure_future(_run(options))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        print("fairlane bench: interrupted, nothing is reported", file=sys.stderr)
        return INTERRUPTED
    except Unreachable as problem:
        print(f"fairlane bench: {problem}", file=sys.stderr)
        return UNREACHABLE
    except Refused as problem:
        print(f"fairlane bench: {problem}", file=sys.stderr)
        return PROBLEM


async def _run(options: Options) -> int:
    report = await measure(options)
    if options.conditions:
        report["drift"] = drifted(report, options.baseline, options.conditions)
        if options.baseline is not None and not report["drift"]:
            print("fairlane bench: the baseline has no step in common with this run; nothing was compared", file=sys.stderr)
            return PROBLEM
    written = options.html is None or _wrote(options.html, page(report))
    if options.json:
        print(json.dumps(report, indent=1))
    else:
        show(report)
    failed = any(row["failed"] for row in report.get("drift", ()))
    return PROBLEM if failed or not written or _slo_missed(report) else DONE


def _wrote(file: Path, text: str) -> bool:
    try:
        file.write_text(text)
    except OSError as problem:
        print(f"fairlane bench: cannot write {file}: {problem.strerror}", file=sys.stderr)
        return False
    return True


def _slo_missed(report: JSON) -> bool:
    """Was there an SLO, and no step of any platform that kept it?"""
    if report["settings"]["slo"] is None:
        return False
    return not any(step["slo_kept"] for platform in report["platforms"] for step in platform["steps"])


async def measure(options: Options) -> JSON:
    """The whole run, as the report. Raises Unreachable or Refused before anything is measured."""
    prompts = Prompts(options.demand.seed)
    steps = None if options.find_max else len(options.platforms) * len(options.loads) * options.rounds
    async with AsyncExitStack() as stack:
        progress = await stack.enter_async_context(Progress(steps))
        benches = [await _Bench.met(platform, options, prompts, progress) for platform in options.platforms]
        for bench in benches:
            stack.callback(bench.driver.target.close)
        gc.collect()
        gc.freeze()  # what exists now is kept: a collection in mid-step need not look at it
        if options.find_max:
            for bench in benches:
                bench.found = await find_max(bench.trial)
        else:
            for number in range(options.rounds):
                for load in options.loads:
                    for bench in benches:
                        await bench.step(load, number)
        gc.unfreeze()
    return _report(options, benches)


class _Bench:
    """One platform while it is measured."""

    def __init__(self, platform: Platform, options: Options, driver: Driver, floor: Sequence[Floor], progress: Progress) -> None:
        self.platform = platform
        self.options = options
        self.driver = driver
        self.floor = floor
        self.progress = progress
        self.found: JSON | None = None
        self.rounds: dict[Load, list[JSON]] = {}

    @classmethod
    async def met(cls, platform: Platform, options: Options, prompts: Prompts, progress: Progress) -> _Bench:
        """Meets the target, and measures its floor."""
        first = options.demand.trace[0].form if options.demand.trace else options.demand.form
        target = Target(platform.name, platform.url, platform.key, platform.model, trust=options.trust, form=first)
        lanes = tuple(dict.fromkeys(options.demand.lanes))
        calibration = await meet(target, prompts, lanes)
        counted = f"{calibration.per_word:.2f} tokens a word" if calibration.measured else "no usage: a word is taken as a token"
        progress.say(f"{target.name}: model {target.model}, {counted}")
        try:
            floor = await floor_of(target, options.floor)
        except (OSError, TimeoutError) as problem:
            raise Unreachable(f"{target.url}: {problem or 'no answer in time'}, while the floor was measured") from None
        driver = Driver(target, prompts, calibration, options.timeout_s, progress.watch)
        return cls(platform, options, driver, floor, progress)

    async def trial(self, load: Load) -> JSON:
        """For the search: one step, once. Random arrivals take longer to show their worst than streams that never pause."""
        duration_s = self.options.duration_s
        if load.rate_rps is not None:
            duration_s = min(RATE_TRIAL_TIMES * duration_s, max(duration_s, RATE_TRIAL_REQUESTS / load.rate_rps))
        return await self.step(load, 0, duration_s)

    async def step(self, load: Load, number: int, duration_s: float | None = None) -> JSON:
        """One step, one round."""
        options = self.options
        duration_s = duration_s or options.duration_s
        self.progress.begin(f"{self.platform.name} at {load.label}" + (f", round {number + 1}" if options.rounds > 1 else ""))
        asked = options.demand.asked(load, duration_s, number)
        if load.concurrency is not None:
            done = await self.driver.streams(asked, load.concurrency, duration_s)
        else:
            done = await self.driver.open_loop(asked, duration_s)
        figures = step_figures(done, options.slo, self.platform.price)
        self.rounds.setdefault(load, []).append(figures)
        self.progress.done(figures)
        gc.collect()  # between steps, not within them
        return figures

    def report(self) -> JSON:
        """All that was found here."""
        steps = [
            {
                "label": load.label,
                "load": {"rate_rps": load.rate_rps, "concurrency": load.concurrency},
                "rounds": len(rounds),
                **median_of(rounds),
            }
            for load, rounds in self.rounds.items()
        ]
        if self.options.find_max:
            steps.sort(key=lambda step: (step["load"]["rate_rps"] is not None, step["load"]["concurrency"] or step["load"]["rate_rps"]))
        calibration = self.driver.calibration
        target = self.driver.target
        price = self.platform.price
        return {
            "name": self.platform.name,
            "url": self.platform.url,
            "model": target.model,
            "price": None if price is None else {"per_hour": price.per_hour, "per_million": price.per_million},
            "prompts": {"calibrated": calibration.measured, "tokens_per_word": calibration.per_word, "fixed_tokens": calibration.fixed},
            "ignore_eos": target.ignore_eos,
            "floor": {
                "connections": len(self.floor),
                "connect_s": spread(floor.connect_s for floor in self.floor),
                "tls_s": spread(floor.tls_s for floor in self.floor) if any(floor.tls_s for floor in self.floor) else None,
                "first_byte_s": spread(floor.first_byte_s for floor in self.floor),
            },
            "steps": steps,
            "knee": {
                "concurrency": knee([step for step in steps if step["load"]["concurrency"] is not None]),
                "rate_rps": knee([step for step in steps if step["load"]["rate_rps"] is not None]),
            },
            "find_max": self.found,
        }


def _report(options: Options, benches: Sequence[_Bench]) -> JSON:
    platforms = [bench.report() for bench in benches]
    with_slo = options.slo is not None
    best = {platform["name"]: best_step(platform["steps"], with_slo) for platform in platforms}
    for platform in platforms:
        at = best[platform["name"]]
        platform["best"] = at["label"] if at is not None else None
    demand = options.demand
    return {
        "fairlane": _version(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "settings": {
            "prompt_tokens": demand.prompts.spelt,
            "output_tokens": demand.outputs.spelt,
            "endpoints": sorted({asked.form.name for asked in demand.trace}) or [demand.form.name],
            "arrivals": "trace" if demand.trace else demand.arrivals.spelt,
            "lanes": {lane.name: lane.share for lane in demand.lanes},  # without their keys
            "duration_s": options.duration_s,
            "rounds": options.rounds,
            "seed": demand.seed,
            "slo": None if options.slo is None else {"ttft_s": options.slo.ttft_s, "tpot_s": options.slo.tpot_s},
        },
        "platforms": platforms,
        "ranking": {
            "by_cost": by_cost(best, with_slo),
            "weights": {"name": options.weights_name, **options.weights},
            "by_weights": by_weights(best, options.weights, with_slo),
        },
        "warnings": [*_left_out(options), *_warnings(platforms)],
    }


def _left_out(options: Options) -> list[str]:
    return [
        f"{count} lines of the trace ask {path}, which bench does not speak: they are left out" for path, count in options.left_out.items()
    ]


def _version() -> str:
    try:
        return version("fairlane")
    except PackageNotFoundError:
        return "unknown"  # run from its source


def _p99_ms(step: JSON, key: str) -> float:
    found = step["client"][key]
    return float(found["p99"]) * 1000 if found else 0.0


def _warnings(platforms: Sequence[JSON]) -> list[str]:
    """What one must know before believing the figures."""
    said = []
    for platform in platforms:
        name = platform["name"]
        lagged = [step for step in platform["steps"] if step["client"]["lagged"]]
        if lagged:
            worst = max(lagged, key=lambda step: max(_p99_ms(step, "late_s"), _p99_ms(step, "loop_late_s")))
            late, loop, core = _p99_ms(worst, "late_s"), _p99_ms(worst, "loop_late_s"), worst["client"]["core_share"]
            said.append(
                f"{name}: the client itself lagged at {len(lagged)} of {len(platform['steps'])} steps: at {worst['label']} requests "
                f"started {late:.0f} ms and timers ran {loop:.0f} ms late (p99; it used {core:.0%} of a core). "
                "These latencies are partly its own; run it on a machine with an idle core, or with fewer streams"
            )
        if not platform["prompts"]["calibrated"]:
            said.append(f"{name}: reports no usage: lengths of prompts are guessed, output tokens are counted events")
        if not platform["ignore_eos"]:
            said.append(f"{name}: refuses ignore_eos: answers may be shorter than asked; see output tokens")
        few = [step["label"] for step in platform["steps"] if step["requests"]["answered"] < ENOUGH]
        if few:
            said.append(
                f"{name}: fewer than {ENOUGH} answers at {', '.join(few)}: p95 and p99 are hardly more than the slowest; measure longer"
            )
        for step in platform["steps"]:
            asked, failed = step["requests"]["offered"], sum(step["requests"]["failed"].values())
            if failed:
                kinds = ", ".join(f"{count} {kind}" for kind, count in step["requests"]["failed"].items())
                said.append(f"{name} at {step['label']}: {failed} of {asked} requests failed ({kinds})")
    return said
