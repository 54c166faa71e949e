"""What do tests of the whole proxy share? A real Fairlane in this process, on free ports, with the file they write."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp

from proxy.app import Fairlane
from proxy.settings.loader import load
from tests.wire import RawClient, eventually, post

SERVER = 'server: {listen: "127.0.0.1:0", admin: "127.0.0.1:0", access_log: %s, drain: {grace: 0s, timeout: 5s}}\n'
TWO_LANES = "keys: [{name: A, secret: sk-A, lane: fast}, {name: B, secret: sk-B, lane: slow}]\n"


class Serving:
    """A running Fairlane and how to look at it."""

    def __init__(self, fairlane: Fairlane, file: Path, log: Path) -> None:
        self.fairlane = fairlane
        self.file = file
        self.log = log
        self.port = fairlane.port
        self.url = f"http://127.0.0.1:{fairlane.port}"
        self.admin_url = f"http://127.0.0.1:{fairlane.admin_port}"

    async def connect(self, **options: Any) -> RawClient:
        """A caller on a raw socket."""
        return await RawClient.connect(self.port, **options)

    async def admin(self, path: str, method: str = "GET") -> tuple[int, str]:
        """Status and text of the admin port's answer."""
        async with aiohttp.ClientSession() as session, session.request(method, self.admin_url + path) as answer:
            return answer.status, await answer.text()

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of the series of this name that carry these labels."""
        _, text = await self.admin("/metrics")
        total, found = 0.0, False
        for line in text.splitlines():
            match = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
            if match is not None and match[1] == name:
                have = dict(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))
                if all(have.get(key) == value for key, value in labels.items()):
                    total, found = total + float(match[3]), True
        assert found, f"no series {name} {labels}"
        return total

    @property
    def state(self) -> Any:
        """The dispatcher's snapshot."""
        return self.fairlane._snapshot()

    async def until(self, condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
        """Wait until this holds."""
        await eventually(condition, timeout_s)

    async def at_rest(self) -> None:
        """Nothing in flight, nothing waiting."""
        await self.until(lambda: not self.fairlane.service.stories and self.state.in_flight == 0 and self.state.waiting == 0)

    async def ask(self, body: bytes | None = None, key: str = "sk-A", **headers: str) -> Any:
        """One request on a connection of its own, and its response."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with await self.connect() as caller:
            return await caller.ask(post(*([body] if body is not None else []), key=key, headers=named))


@asynccontextmanager
async def serving(text: str, *, access_log: str = "off", server: str | None = None) -> AsyncIterator[Serving]:
    """Fairlane with this file (without its `server`), until the block ends; nothing must be left in it then."""
    with TemporaryDirectory() as directory:
        file, log = Path(directory, "fairlane.yaml"), Path(directory, "access.log")
        file.write_text((server or SERVER % (access_log if access_log == "off" else f'"{log}"')) + text)
        async with Fairlane(str(file), load(str(file), {})) as fairlane:
            yield Serving(fairlane, file, log)
