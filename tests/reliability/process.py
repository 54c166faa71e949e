"""How do the cases run against a Fairlane of its own process? For what only a process has: descriptors, memory, its stderr."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp

from tests.wire import RawClient

_SERVER = 'server: {{listen: "127.0.0.1:0", admin: "127.0.0.1:0", access_log: "{log}", drain: {{grace: 0s, timeout: 5s}}}}\n'
_PORTS = re.compile(r'"listen":"127.0.0.1:(\d+)","admin":"127.0.0.1:(\d+)"')
_REPORT = re.compile(r"Traceback|never retrieved|never awaited|Unclosed|Task was destroyed|story_failed")


class Processed:
    """A `fairlane serve`, and what /proc says of it."""

    def __init__(self, child: asyncio.subprocess.Process, log: Path) -> None:
        self.child, self.log = child, log
        self.said = ""
        self.port = self.admin_port = 0

    async def connect(self, **options: Any) -> RawClient:
        """A caller on a raw socket."""
        return await RawClient.connect(self.port, **options)

    async def metrics(self) -> str:
        """What the admin port exposes."""
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{self.admin_port}/metrics") as answer:
            return await answer.text()

    def cpu_s(self) -> float:
        """Processor time used so far."""
        fields = Path(f"/proc/{self.child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_bytes(self) -> int:
        """Memory in use."""
        return int(Path(f"/proc/{self.child.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def descriptors(self) -> int:
        """Open files and sockets."""
        return len(os.listdir(f"/proc/{self.child.pid}/fd"))

    async def listen(self) -> None:
        """Keep reading what it says, and learn its ports."""
        assert self.child.stderr is not None
        known = asyncio.Event()
        self._known = known

        async def read() -> None:
            while line := (await self.child.stderr.readline()).decode("utf-8", "replace"):  # type: ignore[union-attr]
                self.said += line
                if match := _PORTS.search(line):
                    self.port, self.admin_port = int(match[1]), int(match[2])
                    known.set()
            known.set()

        self._reading = asyncio.ensure_future(read())
        async with asyncio.timeout(30):
            await known.wait()
        assert self.port, self.said

    async def end(self) -> None:
        """SIGTERM, and its end; what it said must be clean (O-g)."""
        if self.child.returncode is None:
            self.child.terminate()
            try:
                async with asyncio.timeout(15):
                    await self.child.wait()
            except TimeoutError:
                self.child.kill()
                await self.child.wait()
        await self._reading


@asynccontextmanager
async def processed(
    text: str,
    *,
    descriptors: int | None = None,
    flags: Sequence[str] = (),
    environ: dict[str, str] | None = None,
    module: str = "proxy",
) -> AsyncIterator[Processed]:
    """Fairlane in a process of its own, with this file; `flags` are the interpreter's."""

    def limit() -> None:
        if descriptors is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

    with TemporaryDirectory() as directory:
        file, log = Path(directory, "fairlane.yaml"), Path(directory, "access.log")
        file.write_text(_SERVER.format(log=log) + text)
        child = await asyncio.create_subprocess_exec(
            sys.executable, *flags, "-m", module, "serve", str(file),
            stderr=asyncio.subprocess.PIPE, preexec_fn=limit, env={**os.environ, "MALLOC_ARENA_MAX": "2", **(environ or {})},
        )  # fmt: skip
        proxy = Processed(child, log)
        try:
            await proxy.listen()
            yield proxy
        finally:
            await proxy.end()
        assert _REPORT.search(proxy.said) is None, proxy.said
        assert child.returncode == 0, proxy.said
