"""Which processes did the demo start, and are they gone when it ends? Each is known by its id and ended by it."""

from __future__ import annotations

import asyncio
import ctypes
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import aiohttp

from lab.ports import why_taken

END_WITHIN_S = 10.0  # from SIGTERM to SIGKILL
ASK_EVERY_S = 0.1
LOG_LINES = 15


class DemoProblem(Exception):
    """Something that the person at the terminal can mend; the text says how."""


@dataclass(frozen=True)
class Child:
    """A process that the demo started, and the file that its output goes to."""

    name: str
    process: asyncio.subprocess.Process
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def ended(self) -> bool:
        return self.process.returncode is not None

    def last_words(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_LINES:])


class Children:
    """Processes that end with this block, in reverse order of their start, however the block ends.

    A second interruption while they end kills them at once; the kernel ends them should the demo itself be killed.
    """

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._children: list[Child] = []

    async def __aenter__(self) -> Children:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            for child in reversed(self._children):
                await _end(child)
        finally:
            for child in self._children:
                if not child.ended:
                    child.process.kill()

    async def start(self, name: str, arguments: Sequence[str]) -> Child:
        """Starts `python ARGUMENTS`, out of reach of the terminal's Ctrl-C: the demo decides who ends when."""
        log = self._logs / f"{name}.log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )
        child = Child(name, process, log)
        self._children.append(child)
        return child


async def ready(child: Child, url: str, within_s: float) -> None:
    """Waits until `url` answers 200. Raises DemoProblem with the child's last words if it ended or took too long."""
    try:
        async with asyncio.timeout(within_s), aiohttp.ClientSession() as session:
            while not child.ended:
                try:
                    async with session.get(url) as response:
                        if response.status == 200:
                            return
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(ASK_EVERY_S)
    except TimeoutError:
        raise DemoProblem(f"{child.name} was not ready within {within_s:.0f} s; its last words:\n{child.last_words()}") from None
    raise DemoProblem(f"{child.name} ended with {child.process.returncode} before it was ready; its last words:\n{child.last_words()}")


def require_free(port: int, what: str, remedy: str) -> None:
    """Raises DemoProblem if something already listens on 127.0.0.1:`port`."""
    why = why_taken(port)
    if why is not None:
        raise DemoProblem(f"port {port}, for {what}: {why}. Stop what uses it, or choose another: {remedy}")


async def _end(child: Child) -> None:
    if child.ended:
        return
    child.process.terminate()
    try:
        async with asyncio.timeout(END_WITHIN_S):
            await child.process.wait()
    except TimeoutError:
        child.process.kill()
        await child.process.wait()


def _end_with_parent() -> None:
    set_parent_death_signal = 1  # prctl(2), PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)
