"""`fairlane demo`: what does the person at the terminal see, and when does it end?

Without --drive it stays, ready to be called, until Ctrl-C or SIGTERM. With it, the load runs, its report is printed, it ends.
"""

from __future__ import annotations

import asyncio
import json as json_text
import signal
import sys
from typing import NoReturn

from rich.console import Console

from lab.demo.children import DemoProblem
from lab.demo.drive import drive_lanes
from lab.demo.llama import MODEL_NAME, NotInstalled
from lab.demo.stage import STREAMS, Places, Stage, staged

INTERRUPTED = 130


def run(*, drive: bool, seconds: float, json: bool) -> int:
    """The exit code: 0 done, 1 a problem (said on stderr), 130 interrupted while driving."""
    console = Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else 100)
    try:
        return asyncio.run(_until_signal(console, drive=drive, seconds=seconds, json=json))
    except (DemoProblem, NotInstalled) as problem:
        print(f"fairlane demo: {problem}", file=sys.stderr)
        return 1


async def _until_signal(console: Console, *, drive: bool, seconds: float, json: bool) -> int:
    """Either signal cancels the demo where it is; leaving its blocks ends its children."""
    task = asyncio.ensure_future(_demo(console, drive=drive, seconds=seconds, json=json))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        return INTERRUPTED if drive else 0


async def _demo(console: Console, *, drive: bool, seconds: float, json: bool) -> int:
    console.print(f"Starting two llama.cpp servers ({MODEL_NAME}, {STREAMS} streams each) and Fairlane in front ...")
    async with staged(Places.from_environment()) as stage:
        if not drive:
            print(_how_to_call(stage), flush=True)
            await _watch(stage, console)
        report = await drive_lanes(stage, seconds, console)
        if json:
            print(json_text.dumps(report))
        return 0


async def _watch(stage: Stage, console: Console) -> NoReturn:
    """Says when an engine ends; raises DemoProblem when Fairlane does."""

    async def tell(name: str, process: asyncio.subprocess.Process) -> None:
        await process.wait()
        console.print(f"The {name} has ended; callers go on at the other one.")

    engines = [asyncio.ensure_future(tell(child.name, child.process)) for child in (stage.primary, stage.standby)]
    try:
        await stage.fairlane.process.wait()
        raise DemoProblem(f"fairlane ended with {stage.fairlane.process.returncode}; its last words:\n{stage.fairlane.last_words()}")
    finally:
        for engine in engines:
            engine.cancel()


def _how_to_call(stage: Stage) -> str:
    places = stage.places

    def curl(key: str) -> str:
        body = {
            "model": MODEL_NAME,
            "stream": True,
            "max_tokens": 60,
            "messages": [{"role": "user", "content": "What is a lighthouse for?"}],
        }
        return (
            f"curl -N {places.url}/v1/chat/completions -H 'Authorization: Bearer {key}' \\\n"
            f"  -H 'Content-Type: application/json' -d '{json_text.dumps(body)}'"
        )

    return f"""
Ready. A paying caller, fast lane:

{curl(places.paying_key)}

A free caller, slow lane:

{curl(places.free_key)}

With the openai SDK (pip install openai):

python3 -c 'import openai; c = openai.OpenAI(base_url="{places.url}/v1", api_key="{places.paying_key}"); \
print(c.chat.completions.create(model="{MODEL_NAME}", max_tokens=60, \
messages=[{{"role": "user", "content": "Hello!"}}]).choices[0].message.content)'

Live      {places.admin_url}/   (or: fairlane top --url {places.admin_url})
Metrics   {places.admin_url}/metrics
State     {places.admin_url}/debug/state
Failover  kill -9 {stage.primary.pid}   (the primary; call again: the standby answers)

Ctrl-C ends it all.
"""
