"""`fairlane simulate`: one file, or two, under a modelled workload. Reads the file, runs, prints.

Several replicas are one more host over the same callers, each with a dispatcher of its own and its share of every cap; they come with
the shares (`policies/shares`). `simulate` is where they would be built.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from lab.simulator import incidents, trace
from lab.simulator.asked import Asked, UsageError
from lab.simulator.host import Host
from lab.simulator.page import page
from lab.simulator.report import Document, changes, document, merged
from lab.simulator.scenario import PoolFacts, Scenario
from lab.simulator.series import STEPS, Plot, plots
from lab.simulator.table import show, show_changes
from lab.simulator.tally import Tally
from lab.simulator.workload import Caller, Tenants, arrivals, batch, by_rate, until
from lab.simulator.workload import merged as merged_callers
from policies.model import Request
from proxy import translation
from proxy.settings.loader import load
from proxy.settings.problems import SettingsError
from proxy.settings.root import Settings

Result = tuple[Document, list[Plot]]


def run(
    file: Path,
    asked: Asked,
    environ: Mapping[str, str],
    *,
    compare: Path | None = None,
    as_json: bool = False,
    html: Path | None = None,
    command: str = "fairlane simulate",
    now: Callable[[], float] | None = None,
) -> int:
    """Simulates, and prints the result. 0: done; 1: a file is wrong, or a batch misses its deadline; 2: wrong usage."""
    files = [file] if compare is None else [file, compare]
    try:
        asked.check()
        settings = [load(each, environ).settings for each in files]
        began_at = now() if now is not None else 0.0
        results = [simulate(str(each), found, asked, plotted=html is not None) for each, found in zip(files, settings, strict=True)]
        if now is not None:
            _say_speed(results, now() - began_at)
        if html is not None:
            html.write_text(page(results, command))
    except SettingsError as error:
        for problem in error.problems:
            print(problem, file=sys.stderr)
        return 1
    except UsageError as error:
        print(f"simulate: {error}", file=sys.stderr)
        return 2
    except (trace.TraceError, OSError) as error:
        print(f"simulate: {error}", file=sys.stderr)
        return 1
    _print([found for found, _ in results], as_json)
    return 1 if any("batch" in found and not found["batch"]["in_time"] for found, _ in results) else 0


def simulate(name: str, settings: Settings, asked: Asked, *, plotted: bool = False) -> Result:
    """One file, as often as asked, under one seed after the other."""
    documents, tally = [], None
    for seed in range(asked.seed, asked.seed + asked.runs):
        scenario, callers = scene(settings, replace(asked, seed=seed), plotted=plotted)
        tally = host(scenario, callers)
        documents.append(document(tally, name, seed))
    assert tally is not None
    return merged(documents), plots(tally) if plotted else []


def host(scenario: Scenario, callers: Iterator[Caller]) -> Tally:
    """One run. It makes no cycles: what the collector would look at, a hundred thousand times a second, is all alive or gone."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        return Host(scenario, callers).run()
    finally:
        if was_on:
            gc.enable()


def scene(settings: Settings, asked: Asked, *, plotted: bool = False) -> tuple[Scenario, Iterator[Caller]]:
    """The world that the options describe, with this file in it, and its callers."""
    lanes = list(settings.lanes)
    sizes, latency, slots = asked.sizes()
    requests, duration_s = asked.length()
    warm_ratio, warm_s = asked.warming()
    patience_s, seen = asked.leaving()
    deadline_s = asked.deadline_s()
    tenants = _tenants(settings, lanes)
    streams: list[Iterator[Caller]] = []
    expected_s = duration_s or deadline_s or 3600.0
    counted = requests
    if asked.trace is not None:
        lines = trace.read(asked.trace, lanes)
        by_trace = None if asked.generation_time is None and (trace.says_how_long(lines) or latency is not None) else sizes
        streams.append(until(trace.callers(lines, lanes, by_trace, asked.seed), requests, duration_s))
        expected_s = duration_s or lines[-1].at - lines[0].at or 1.0
        counted = requests or len(lines)
    elif asked.arrivals is not None:
        try:
            given = arrivals(asked.arrivals, lanes)
        except ValueError as error:
            raise UsageError(f"--arrivals: {error}") from None
        streams.append(until(by_rate(given, sizes, lanes, tenants, asked.seed, told_apart=not _one_pool(settings)), requests, duration_s))
        expected_s = duration_s or (requests / given.rps if requests else expected_s)
    if asked.jobs:
        lane = next((lanes.index(key.lane) for key in settings.keys if key.traffic == "batch"), len(lanes) - 1)
        streams.append(batch(asked.jobs, sizes, lane, tenants, asked.seed))
    backends = {backend: name for name, platform in settings.platforms.items() for backend in platform.backends}
    scenario = Scenario(
        plan=translation.plan(settings),
        choose=_choose(settings),
        pools=_pools(settings),
        probed=[backend for backend, name in backends.items() if settings.platforms[name].probe != "none"] if asked.events else (),
        latency=latency,
        engine_slots=slots,
        backend_ttft=asked.backend_ttft_spread(),
        patience_s=patience_s,
        seen_leaving=seen,
        incidents=incidents.load(asked.events, backends) if asked.events is not None else (),
        seed=asked.seed,
        warm_up_s=warm_s or (warm_ratio * duration_s if duration_s is not None and counted is None else 0.0),
        warm_up_requests=int(warm_ratio * counted) if counted is not None else 0,
        sample_every_s=max(1e-3, expected_s / STEPS) if plotted else None,
        jobs=asked.jobs,
        deadline_s=deadline_s,
    )
    return scenario, streams[0] if len(streams) == 1 else merged_callers(*streams)


def _choose(settings: Settings) -> Callable[[Request], str | None]:
    """The file's own routes; where there is but one, and it asks for nothing, its pool."""
    pool = _one_pool(settings)
    if pool is not None:
        return lambda request: pool
    choose = translation.router(settings).choose

    def chosen(request: Request) -> str | None:
        choice = choose(request)
        return None if choice is None else choice.pool

    return chosen


def _one_pool(settings: Settings) -> str | None:
    """Where every request goes, whatever it is; None: it depends."""
    only = settings.routes[0]
    return only.pool if len(settings.routes) == 1 and not any(only.when.conditions) else None


def _pools(settings: Settings) -> dict[str, PoolFacts]:
    return {
        name: PoolFacts(pool.timeouts.first_token_s, pool.timeouts.idle_s, pool.timeouts.total_s, pool.slo.ttft_s, pool.slo.tpot_s)
        for name, pool in settings.pools.items()
    }


def _tenants(settings: Settings, lanes: Sequence[str]) -> Tenants:
    keys: dict[int, list[tuple[str, str]]] = {}
    for key in settings.keys:
        keys.setdefault(lanes.index(key.lane), []).append((key.name, key.traffic))
    return Tenants(keys)


def _say_speed(results: Sequence[Result], took_s: float) -> None:
    simulated = sum(found["requests"] * found.get("runs", 1) for found, _ in results)
    print(f"simulate: {simulated:,.0f} requests in {took_s:.1f} s: {simulated / max(took_s, 1e-9):,.0f} a second", file=sys.stderr)


def _print(found: Sequence[Document], as_json: bool) -> None:
    if as_json:
        told = found[0] if len(found) == 1 else {"first": found[0], "second": found[1], "changes": changes(found[0], found[1])}
        print(json.dumps(told))
        return
    console = Console(soft_wrap=True)
    for each in found:
        show(each, console)
        console.print()
    if len(found) == 2:
        show_changes(changes(found[0], found[1]), console)
