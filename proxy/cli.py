"""Which command was asked for? Reads arguments, brings in what the command needs, and ends with its exit code.

Data goes to stdout, progress and logs to stderr. 0 done, 1 a problem was found, 2 wrong usage, 3 target unreachable,
130 interrupted. Nothing but typer is imported until a command runs, so that `fairlane --help` is quick.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="fairlane",
    help="A reverse proxy for LLM backends: exact caps, a fast and a slow lane, failover.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
keys_app = typer.Typer(help="Keys of callers.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(metavar="FILE", help="the configuration, YAML")]
Json = Annotated[bool, typer.Option("--json", help="print the result as JSON")]


def main() -> None:
    """The console script."""
    app.add_typer(keys_app, name="keys")
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
    file: File,
    platform: Annotated[str | None, typer.Argument(metavar="[PLATFORM]", help="only the backends of this platform")] = None,
    json: Json = False,
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


def _seconds(option: str, text: str) -> float:
    """A duration as the file writes it: 80ms, 10s, 1m30s. Anything else is wrong usage."""
    from proxy.settings.values import duration

    try:
        return float(duration(text))
    except ValueError as problem:
        raise typer.BadParameter(str(problem), param_hint=option) from None
