"""Which command was asked for? Reads arguments, brings in what the command needs, and ends with its exit code.

Data goes to stdout, progress and logs to stderr. 0 done, 1 a problem was found, 2 wrong usage, 3 target unreachable,
130 interrupted. Nothing but typer is imported until a command runs, so that `fairlane --help` is quick.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, overload

import typer

app = typer.Typer(
    name="fairlane",
    help="A reverse proxy for LLM backends: exact caps, a fast and a slow lane, failover.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
keys_app = typer.Typer(help="Keys of callers.", no_args_is_help=True)
dashboards_app = typer.Typer(help="Grafana dashboards, Prometheus rules and the runbook.", no_args_is_help=True)
alerts_app = typer.Typer(help="Prometheus rules and the runbook.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(metavar="FILE", help="the configuration, YAML")]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="where to write them; made if it is missing")]
RunbookUrl = Annotated[str, typer.Option(metavar="URL", help="where the runbook will be found; alerts add #name")]
Json = Annotated[bool, typer.Option("--json", help="print the result as JSON")]


def main() -> None:
    """The console script."""
    app.add_typer(keys_app, name="keys")
    app.add_typer(dashboards_app, name="dashboards")
    app.add_typer(alerts_app, name="alerts")
    app()


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(version("fairlane"))
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and end")] = False,
) -> None:
    pass


@app.command()
def serve(file: File) -> None:
    """Run the proxy until SIGTERM or SIGINT; both drain it."""
    from proxy.app import run

    raise typer.Exit(run(str(file)))


@app.command()
def check(file: File, json: Json = False) -> None:
    """Parse, validate and cross-reference the file; report every problem with its place. Starts nothing."""
    from proxy.settings.check import run

    raise typer.Exit(run(file, json))


@app.command()
def schema(json: Annotated[bool, typer.Option("--json", help="JSON is the only form there is")] = True) -> None:
    """Print the JSON Schema (draft-07) of the file, for editors."""
    from json import dumps

    from proxy.settings.check import schema as file_schema

    typer.echo(dumps(file_schema(), indent=2))


@app.command()
def smoke(
    file: File, platform: Annotated[str | None, typer.Argument(help="only this platform's backends")] = None, json: Json = False
) -> None:
    """Ask each backend for a few tokens, with the file's own keys and model names; 1 if one fails."""
    from proxy.smoke_command import run

    raise typer.Exit(run(str(file), platform, json))


@app.command()
def engine(
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free")],
    slots: Annotated[int, typer.Option(min=1, help="answers at once; the rest wait in arrival order")] = 8,
    ttft: Annotated[str, typer.Option(help="first token after this, and the reading of the prompt")] = "80ms",
    tpot: Annotated[str, typer.Option(help="then one token after each of these, alone")] = "20ms",
    prefill_rate: Annotated[float, typer.Option(min=1.0, help="prompt tokens read per second")] = 4000.0,
    load_factor: Annotated[float, typer.Option(min=1.0, help="tpot grows to this much of itself with all slots taken")] = 2.3,
    prefill_slowdown: Annotated[float, typer.Option(min=0.0, help="tpot grows by this share while a prompt is read")] = 0.5,
    startup: Annotated[str, typer.Option(help="/health is 503 until then")] = "0s",
    seed: Annotated[int, typer.Option(help="of sampled lengths and of faults by share")] = 0,
    model: Annotated[str, typer.Option(help="its name")] = "fake",
) -> None:
    """Run a fake inference engine: OpenAI's API, realistic latency under load, faults on request (POST /_fault)."""
    from lab.engine.engine import Engine
    from lab.engine.serve import run

    fake = Engine(
        port=port,
        slots=slots,
        ttft_s=_seconds("--ttft", ttft),
        tpot_s=_seconds("--tpot", tpot),
        prefill_rate=prefill_rate,
        load_factor=load_factor,
        prefill_slowdown=prefill_slowdown,
        startup_s=_seconds("--startup", startup),
        seed=seed,
        model=model,
    )
    raise typer.Exit(run(fake))


@app.command()
def plan(
    rps: Annotated[str, typer.Option(help="requests per second, at the peak")],
    generation_time: Annotated[str, typer.Option(help="how long one request holds its stream, such as 8s")],
    lanes: Annotated[str | None, typer.Option(help="how the requests divide: fast=3,slow=7; waits are told per lane")] = None,
    streams: Annotated[
        int | None, typer.Option(min=1, help="for the waits: how many there are; what 90 % load asks for if not given")
    ] = None,
    streams_per_instance: Annotated[int | None, typer.Option(min=1, help="adds instances")] = None,
    off_peak_rps: Annotated[str | None, typer.Option(help="the off-peak hours' peak: adds the warm minimum")] = None,
    output_tokens: Annotated[str | None, typer.Option(help="of a mean answer: with --tokens-per-second adds instances by tokens")] = None,
    tokens_per_second: Annotated[str | None, typer.Option(help="output of one instance under load")] = None,
    price_per_hour: Annotated[str | None, typer.Option(help="of one instance: adds cost")] = None,
    json: Json = False,
) -> None:
    """Capacity by Little's law: streams, places, instances, waits and cost, each with its formula."""
    from lab.planner.plan import Demand
    from lab.planner.run import run

    demand = Demand(
        rps=_positive("--rps", rps),
        generation_s=_positive("--generation-time", str(_seconds("--generation-time", generation_time))),
        lanes=_rates("--lanes", lanes),
        streams=streams,
        streams_per_instance=streams_per_instance,
        off_peak_rps=_positive("--off-peak-rps", off_peak_rps),
        output_tokens=_positive("--output-tokens", output_tokens),
        tokens_per_second=_positive("--tokens-per-second", tokens_per_second),
        price_per_hour=_positive("--price-per-hour", price_per_hour),
    )
    raise typer.Exit(run(demand, json))


@app.command()
def explain(
    file: File,
    request: Annotated[Path, typer.Argument(metavar="REQUEST.json", help="the request's body")],
    key: Annotated[str, typer.Option(help="the name of the caller's key; anonymous: none")],
    path: Annotated[str, typer.Option(help="the path it is sent to")] = "/v1/chat/completions",
    lane: Annotated[str | None, typer.Option(help="as header x-fairlane-lane would ask")] = None,
    traffic: Annotated[str | None, typer.Option(help="as header x-fairlane-traffic would say")] = None,
    task: Annotated[str | None, typer.Option(help="as header x-fairlane-task would say")] = None,
    json: Json = False,
) -> None:
    """Say what would happen to one request: lane, pool, the rule and why, backends in order, waits allowed."""
    import os

    from lab.planner.explain import Headers, run

    if traffic not in (None, "batch", "interactive"):
        raise typer.BadParameter("must be batch or interactive", param_hint="--traffic")
    raise typer.Exit(run(file, request, key, Headers(path=path, lane=lane, traffic=traffic, task=task), os.environ, json))


@app.command()
def simulate(
    file: File,
    arrivals: Annotated[
        str | None, typer.Option(help="requests per second by lane: fast=3,slow=6; gamma:cv=2,fast=3; fixed:fast=1")
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="arrivals that `server.trace` recorded, instead")] = None,
    generation_time: Annotated[
        str | None, typer.Option(help="how long a slot is held: exponential:8s, lognormal:8s,cv=2, fixed:8s, engine[:ttft=80ms,...]")
    ] = None,
    backend_ttft: Annotated[str | None, typer.Option(help="dispatch to first token, such as 200ms; at once if not given")] = None,
    prompt_tokens: Annotated[str | None, typer.Option(help="512; 128,2048 (each as often); lognormal:500,cv=1")] = None,
    output_tokens: Annotated[str | None, typer.Option(help="the same, of answers")] = None,
    patience: Annotated[str | None, typer.Option(help="to the first token; 5s,seen: the server sees callers leave")] = None,
    events: Annotated[Path | None, typer.Option(help="what happens to backends: dies, returns, slow, cap, ... (YAML)")] = None,
    jobs: Annotated[int, typer.Option(min=0, help="a batch handed in at the start")] = 0,
    deadline: Annotated[str | None, typer.Option(help="when the batch must be done; exit code 1 if it is not")] = None,
    replicas: Annotated[int, typer.Option(help="not available yet")] = 1,
    requests: Annotated[int | None, typer.Option(min=1, help="how many; 100,000 where nothing else says")] = None,
    duration: Annotated[str | None, typer.Option(help="how long, of virtual time")] = None,
    warm_up: Annotated[str | None, typer.Option(help="not counted: a share or a duration; 10% without events, trace or jobs")] = None,
    seed: Annotated[int, typer.Option(help="of all that is drawn")] = 0,
    runs: Annotated[int, typer.Option(min=1, help="under as many seeds, averaged")] = 1,
    compare: Annotated[Path | None, typer.Option(help="another file, under the same arrivals")] = None,
    html: Annotated[Path | None, typer.Option(help="also write a page with plots")] = None,
    json: Json = False,
) -> None:
    """Run the file's own decisions in virtual time against a modelled workload."""
    import os
    import sys

    from lab.simulator.asked import Asked
    from lab.simulator.run import run
    from proxy.clock import now

    asked = Asked(
        arrivals=arrivals,
        trace=trace,
        generation_time=generation_time,
        backend_ttft=backend_ttft,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        patience=patience,
        events=events,
        jobs=jobs,
        deadline=deadline,
        replicas=replicas,
        requests=requests,
        duration=duration,
        warm_up=warm_up,
        seed=seed,
        runs=runs,
    )
    command = " ".join(["fairlane", *sys.argv[1:]])
    raise typer.Exit(run(file, asked, os.environ, compare=compare, as_json=json, html=html, command=command, now=now))


@app.command()
def bench(
    url: Annotated[list[str], typer.Option(help="what to load, or NAME=URL; several are measured in turn and ranked")],
    model: Annotated[list[str] | None, typer.Option(help="default: the first that /v1/models lists")] = None,
    key: Annotated[list[str] | None, typer.Option(envvar="FAIRLANE_BENCH_KEY", help="sent as a bearer token")] = None,
    rate: Annotated[str | None, typer.Option(help="requests per second, open loop; 1,2,4 is a ladder")] = None,
    arrivals: Annotated[str, typer.Option(help="poisson, gamma:cv=2 (bursts) or constant")] = "poisson",
    concurrency: Annotated[str | None, typer.Option(help="streams at once; a ladder [default: 1,4,8,16,32,64]")] = None,
    trace: Annotated[Path | None, typer.Option(help="replay the arrivals that server.trace recorded")] = None,
    endpoint: Annotated[str, typer.Option(help="chat, completions or messages; a trace says it itself")] = "chat",
    rounds: Annotated[int | None, typer.Option(min=1, help="of the ladder; medians count [default: 3; 1 with --rate or --trace]")] = None,
    duration: Annotated[str, typer.Option(help="of each step")] = "30s",
    prompt_tokens: Annotated[str, typer.Option(help="256, or 128,2048 (alike often), 128:0.8,2048:0.2, lognormal:500,cv=1")] = "256",
    output_tokens: Annotated[str, typer.Option(help="likewise")] = "256",
    lane: Annotated[list[str] | None, typer.Option(help="NAME=KEY:SHARE, for each lane of a mix")] = None,
    slo: Annotated[str | None, typer.Option(help="ttft=1s,tpot=150ms, or voice, chat, code, writing")] = None,
    find_max: Annotated[bool, typer.Option("--find-max", help="search the highest streams and rate that keep --slo at p95")] = False,
    price_per_hour: Annotated[list[str] | None, typer.Option(help="dollars")] = None,
    price_per_million: Annotated[list[str] | None, typer.Option(help="dollars for tokens, INPUT,OUTPUT")] = None,
    weights: Annotated[str, typer.Option(help="realtime, batch, or latency=0.5,throughput=0.3,cost=0.2")] = "realtime",
    floor: Annotated[int, typer.Option(min=0, help="bare connections, to know what the network alone takes")] = 20,
    timeout: Annotated[str, typer.Option(help="of a request, from its intended start")] = "2m",
    ca: Annotated[Path | None, typer.Option(help="file of the authority that signed the target's certificate")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="believe any certificate")] = False,
    seed: Annotated[int, typer.Option(help="of arrivals, lanes and lengths")] = 0,
    html: Annotated[Path | None, typer.Option(help="write the report as one page with curves")] = None,
    baseline: Annotated[Path | None, typer.Option(help="an earlier --json, to compare with")] = None,
    fail_if: Annotated[list[str] | None, typer.Option(help="'ttft.p95 > 1.2x', 'goodput_rps < 3': exit code 1")] = None,
    json: Json = False,
) -> None:
    """Load a target with streams, open loop, and report what its callers would see. Ranks several; finds the cap to write."""
    from lab.bench.command import options
    from lab.bench.run import run

    try:
        asked = options(
            urls=url, models=model or [], keys=key or [], rate=rate, arrivals=arrivals, concurrency=concurrency, trace=trace,
            endpoint=endpoint, rounds=rounds, duration=duration, prompt_tokens=prompt_tokens, output_tokens=output_tokens,
            lanes=lane or [], slo=slo, find_max=find_max, per_hour=price_per_hour or [], per_million=price_per_million or [],
            weights=weights, floor=floor, timeout=timeout, ca=ca, insecure=insecure, seed=seed, html=html, baseline=baseline,
            fail_if=fail_if or [], json=json,
        )  # fmt: skip
    except ValueError as problem:
        raise typer.BadParameter(str(problem)) from None
    raise typer.Exit(run(asked))


@app.command()
def demo(
    drive: Annotated[bool, typer.Option("--drive", help="load both lanes, then kill the primary, then end")] = False,
    seconds: Annotated[float, typer.Option(min=5.0, help="with --drive: how long the load lasts")] = 60.0,
    json: Annotated[bool, typer.Option("--json", help="with --drive: print what each lane got as JSON")] = False,
) -> None:
    """Put a real small model behind Fairlane on this machine, ready to be called, until Ctrl-C."""
    from lab.demo.run import run

    raise typer.Exit(run(drive=drive, seconds=seconds, json=json))


@app.command()
def top(
    url: Annotated[str, typer.Option(help="the admin port of a running Fairlane")] = "http://127.0.0.1:9090",
    once: Annotated[bool, typer.Option("--once", help="show it once and end")] = False,
    json: Json = False,
    every: Annotated[str, typer.Option(help="look again after this; rates of --once and --json are over it")] = "1s",
) -> None:
    """Show lanes, pools and backends of a running Fairlane, live, until Ctrl-C."""
    from lab.top.run import run

    raise typer.Exit(run(url, once=once, as_json=json, every_s=max(0.1, _seconds("--every", every))))


@keys_app.command()
def new(json: Json = False) -> None:
    """Print a fresh key, for the caller, and its SHA-256, for the file."""
    from hashlib import sha256
    from json import dumps
    from secrets import token_urlsafe

    key = f"sk-{token_urlsafe(32)}"
    digest = sha256(key.encode()).hexdigest()
    typer.echo(dumps({"key": key, "secret_sha256": digest}) if json else f"key: {key}\nsecret_sha256: {digest}")


@overload
def _positive(option: str, text: str) -> Decimal: ...
@overload
def _positive(option: str, text: None) -> None: ...
@overload
def _positive(option: str, text: str | None) -> Decimal | None: ...
def _positive(option: str, text: str | None) -> Decimal | None:
    """A number above zero, exactly as it was typed."""
    if text is None:
        return None
    try:
        number = Decimal(text)
    except InvalidOperation:
        number = Decimal(0)
    if not (number.is_finite() and 0 < number < 10**12):
        raise typer.BadParameter("must be a number above 0", param_hint=option)
    return number


def _rates(option: str, text: str | None) -> dict[str, float] | None:
    """Requests per second by lane: fast=3,slow=7."""
    if text is None:
        return None
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(name and equals for name, equals, _ in pairs):
        raise typer.BadParameter("must be LANE=RATE, such as fast=3,slow=7", param_hint=option)
    return {name.strip(): float(_positive(option, rate)) for name, _, rate in pairs}


@dashboards_app.command()
def export(folder: Folder, runbook_url: RunbookUrl = "runbook.md", json: Json = False) -> None:
    """Write the Grafana dashboards with their provisioning, the Prometheus rules and the runbook into DIR."""
    from proxy.shipped.export import DASHBOARDS

    _export(folder, DASHBOARDS, runbook_url, json)


@alerts_app.command("export")
def export_alerts(folder: Folder, runbook_url: RunbookUrl = "runbook.md", json: Json = False) -> None:
    """Write the Prometheus rules and the runbook into DIR."""
    from proxy.shipped.export import ALERTS

    _export(folder, ALERTS, runbook_url, json)


def _export(folder: Path, parts: Sequence[str], runbook_url: str, json: bool) -> None:
    from json import dumps

    from proxy.shipped.export import export as write

    try:
        written = [str(path) for path in write(folder, parts, runbook_url)]
    except OSError as error:
        typer.echo(f"{error.filename}: cannot write: {error.strerror}; name a folder that may be written", err=True)
        raise typer.Exit(1) from None
    typer.echo(dumps({"written": written}) if json else "\n".join(written))


def _seconds(option: str, text: str) -> float:
    """A duration as the file writes it: 80ms, 10s, 1m30s. Anything else is wrong usage."""
    from proxy.settings.values import duration

    try:
        return float(duration(text))
    except ValueError as problem:
        raise typer.BadParameter(str(problem), param_hint=option) from None
