"""How does `fairlane top` run? Live until Ctrl-C; once, or as JSON, for scripts."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import deque
from datetime import datetime
from typing import NoReturn

import aiohttp
from rich.console import Console
from rich.live import Live

from lab.top.picture import picture
from lab.top.reading import Look, Unreachable, document, take

RATE_LOOKS = 8  # rates are over that many looks


def run(url: str, *, once: bool, as_json: bool, every_s: float) -> int:
    """0: shown; 3: nobody answers there; 130: interrupted."""
    console = Console()
    try:
        if once or as_json or not console.is_terminal:
            return asyncio.run(_once(url.rstrip("/"), console, as_json=as_json, every_s=every_s))
        asyncio.run(_live(url.rstrip("/"), console, every_s=every_s))
    except Unreachable as problem:
        print(f"top: {problem}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        return 130


async def _once(url: str, console: Console, *, as_json: bool, every_s: float) -> int:
    """Two looks, so that there are rates."""
    async with aiohttp.ClientSession() as session:
        before = await take(session, url)
        await asyncio.sleep(every_s)
        after = await take(session, url)
    if as_json:
        print(json.dumps(document(before, after), indent=2))
    else:
        console.print(picture(before, after))
    return 0


async def _live(url: str, console: Console, *, every_s: float) -> NoReturn:
    """Raises Unreachable at the first look only: a proxy that restarts later is waited for."""
    async with aiohttp.ClientSession() as session:
        looks: deque[Look] = deque([await take(session, url)], maxlen=RATE_LOOKS)
        lost = ""
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(picture(looks[0] if len(looks) > 1 else None, looks[-1], lost), refresh=True)
                await asyncio.sleep(every_s)
                try:
                    look = await take(session, url)
                except Unreachable:
                    lost = lost or f"{datetime.now():%H:%M:%S}"
                    continue
                lost = ""
                if look.uptime_s < looks[-1].uptime_s:
                    looks.clear()  # it was restarted
                looks.append(look)
