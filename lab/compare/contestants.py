"""Who takes part, how is each started, and is it here? The subject and its peers, each one process on one port of its own."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from lab.compare import files

ROOT = Path(__file__).resolve().parents[2]
KEY = "sk-perf"
SUBJECT = "fairlane"
FIRST_PORT = 9401  # the engine's; the others follow
_PORTS_ON = {"fairlane": 9, "nginx": 10, "haproxy": 11, "envoy": 12, "vllm-router": 13, "sglang-router": 14, "litellm": 15}
_ADMIN_ON = 59
PEERS = ("nginx", "haproxy", "envoy", "vllm-router", "sglang-router")  # what a run asks for unless told otherwise
SETUP = "python -m lab.compare setup"
_TEXTS = {
    "fairlane": (files.FAIRLANE, "yaml"),
    "nginx": (files.NGINX, "conf"),
    "haproxy": (files.HAPROXY, "cfg"),
    "envoy": (files.ENVOY, "yaml"),
    "litellm": (files.LITELLM, "yaml"),
}
_ASKED = {"nginx": ("-v", r"nginx/(\S+)"), "haproxy": ("-v", r"version (\S+)"), "envoy": ("--version", r"/(\d+\.\d+\.\d+)/")}
_PACKAGES = {"vllm-router": "vllm-router", "sglang-router": "sglang-router", "litellm": "litellm"}


def home() -> Path:
    """Where peers that come by pip live: an environment of their own, kept between runs."""
    return Path(os.environ.get("FAIRLANE_PEERS") or Path.home() / ".cache" / "fairlane-peers")


@dataclass(frozen=True)
class Contestant:
    """One proxy, ready to be started."""

    name: str
    command: tuple[str, ...]
    port: int
    folder: Path | None = None  # where it is started; None: here

    @property
    def is_here(self) -> bool:
        """Is its program installed?"""
        return shutil.which(self.command[0]) is not None

    @property
    def remedy(self) -> str:
        """How to install it."""
        if self.name == "litellm":
            place = home() / "litellm"
            return f"{sys.executable} -m venv {place} && {place}/bin/pip install 'litellm[proxy]'"
        return SETUP

    def version(self) -> str:
        """As it says itself; empty if it does not."""
        if self.name == SUBJECT:
            return subject_version()
        if self.name in _ASKED:
            flag, pattern = _ASKED[self.name]
            done = subprocess.run([self.command[0], flag], capture_output=True, text=True, check=False)
            found = re.search(pattern, done.stdout + done.stderr)
            return found[1] if found else ""
        python = Path(self.command[0]).parent / "python"
        script = f"from importlib.metadata import version; print(version({_PACKAGES[self.name]!r}))"
        return subprocess.run([python, "-c", script], capture_output=True, text=True, check=False).stdout.strip()


def subject_version() -> str:
    """Fairlane's version, and the commit it is of where git knows it."""
    try:
        number = version("fairlane")
    except PackageNotFoundError:
        number = "from source"
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    done = subprocess.run(git, capture_output=True, text=True, check=False) if shutil.which("git") else None
    return f"{number} ({done.stdout.strip()})" if done is not None and done.stdout.strip() else number


def contestants(
    names: Sequence[str], folder: Path, engine_port: int = FIRST_PORT, subject: str | None = None, port: int | None = None
) -> list[Contestant]:
    """These, with their files written into `folder`. `subject`: another command for Fairlane, on `port`. ValueError: no such peer."""
    unknown = [name for name in names if name not in _PORTS_ON]
    if unknown:
        raise ValueError(f"--peers: {unknown[0]!r} is not one of {', '.join(name for name in _PORTS_ON if name != SUBJECT)}")
    commands = _commands(folder, engine_port)
    if subject is not None:
        commands[SUBJECT] = shlex.split(subject)
    return [
        Contestant(
            name,
            tuple(commands[name]),
            port if name == SUBJECT and port is not None else engine_port + _PORTS_ON[name],
            ROOT if name == SUBJECT and subject is None else None,
        )
        for name in names
    ]


def _commands(folder: Path, engine_port: int) -> dict[str, list[str]]:
    ports = {name: engine_port + on for name, on in _PORTS_ON.items()}

    def file(name: str) -> str:
        text, ending = _TEXTS[name]
        path = folder / f"{name}.{ending}"
        path.write_text(text.format(port=ports[name], engine=engine_port, dir=folder, key=KEY, admin=engine_port + _ADMIN_ON))
        return str(path)

    programs = home() / "venv" / "bin"
    router = ["--worker-urls", f"http://127.0.0.1:{engine_port}", "--host", "127.0.0.1", "--policy", "round_robin"]
    router += ["--health-check-endpoint", "/v1/models", "--log-level", "error"]
    vllm, sglang = str(programs / "vllm-router"), str(programs / "sglang-router")
    litellm = ["--config", file("litellm"), "--port", str(ports["litellm"]), "--host", "127.0.0.1"]
    return {
        SUBJECT: [sys.executable, "-m", "proxy", "serve", file(SUBJECT)],
        "nginx": ["nginx", "-c", file("nginx")],
        "haproxy": ["haproxy", "-db", "-f", file("haproxy")],
        "envoy": [str(programs / "envoy"), "-c", file("envoy"), "--concurrency", "1", "-l", "error"],
        "vllm-router": [vllm, "--port", str(ports["vllm-router"]), "--max-concurrent-requests", "8192", *router],
        "sglang-router": [sglang, "launch", "--port", str(ports["sglang-router"]), "--max-concurrent-requests", "-1", *router],
        "litellm": [str(home() / "litellm" / "bin" / "litellm"), *litellm],
    }
