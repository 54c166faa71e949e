"""What has this process, with all it started, used so far? Read from /proc, so neither engine nor client counts."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lab.compare.contestants import KEY, Contestant
from lab.ports import why_taken

_UP_WITHIN_S = 20.0
_SLOW_STARTERS = {"litellm": 60.0}
_END_WITHIN_S = 3.0
_BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}).encode()
_LAST_WORDS = 800


class NotUp(Exception):
    """It did not answer in time; the text has the last of its log."""


def tree(pid: int) -> list[int]:
    """This process and all its descendants."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent = int(Path(f"/proc/{name}/stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError):
            continue
        children.setdefault(parent, []).append(int(name))
    found, to_do = [], [pid]
    while to_do:
        found.append(to_do.pop())
        to_do += children.get(found[-1], [])
    return found


def cpu_s(pids: Sequence[int]) -> float:
    """Processor time of these, user and system, in seconds."""
    ticks = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def rss_kib(pids: Sequence[int]) -> int:
    """Resident memory of these."""
    total = 0
    for pid in pids:
        try:
            found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
        except OSError:
            continue
        total += int(found[1]) if found else 0
    return total


def require_free(port: int, whose: str) -> None:
    """OSError: something listens there, and would be measured instead."""
    why = why_taken(port)
    if why is not None:
        raise OSError(f"port {port}, for {whose}: {why}; end what uses it, or choose another --first-port")


@contextmanager
def running(contestant: Contestant, logs: Path) -> Iterator[int]:
    """It runs and answers, until the block ends; its process id. Raises NotUp."""
    try:
        require_free(contestant.port, contestant.name)
    except OSError as problem:
        raise NotUp(str(problem)) from None
    log = logs / f"{contestant.name}.log"
    with log.open("a") as output:
        process = subprocess.Popen(
            contestant.command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, cwd=contestant.folder
        )
    try:
        if not _answers(contestant.port, _SLOW_STARTERS.get(contestant.name, _UP_WITHIN_S)):
            raise NotUp(f"{contestant.name}: did not come up; last of its log:\n{log.read_text(errors='replace')[-_LAST_WORDS:]}")
        yield process.pid
    finally:
        _stop(process)


def _answers(port: int, within_s: float) -> bool:
    headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", data=_BODY, headers=headers)
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                answer.read()
            return True
        except (OSError, ValueError, http.client.HTTPException):
            time.sleep(0.2)
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """The process and all of its session, by its own id."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(_END_WITHIN_S)
        except subprocess.TimeoutExpired:
            pass
    process.wait()
