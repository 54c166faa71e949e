"""What stands where in the demo? Two real engines, primary and standby, and Fairlane in front, each in its own process."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from lab.demo.children import Child, Children, DemoProblem, ready, require_free
from lab.demo.llama import model_file

ENGINE_READY_S = 120.0
FAIRLANE_READY_S = 30.0
STREAMS = 2  # of each engine; the cap in the file is the same
QUICKSTART = Path("config") / "quickstart.yaml"


@dataclass(frozen=True)
class Places:
    """Where everything listens, and the keys of the two callers; each from the variable that the file reads it from."""

    port: int
    admin_port: int
    primary_port: int
    standby_port: int
    paying_key: str
    free_key: str

    @classmethod
    def from_environment(cls) -> Places:
        """Raises DemoProblem for an address that is not of this machine."""
        return cls(
            port=_port("FAIRLANE_LISTEN", "127.0.0.1:8080"),
            admin_port=_port("FAIRLANE_ADMIN", "127.0.0.1:9090"),
            primary_port=_port("FAIRLANE_PRIMARY_URL", "http://127.0.0.1:8101"),
            standby_port=_port("FAIRLANE_STANDBY_URL", "http://127.0.0.1:8102"),
            paying_key=os.environ.get("FAIRLANE_PAYING_KEY", "sk-paying"),
            free_key=os.environ.get("FAIRLANE_FREE_KEY", "sk-free"),
        )

    def require_free(self) -> None:
        """Raises DemoProblem for the first port that is in use."""
        require_free(self.port, "callers", "FAIRLANE_LISTEN=127.0.0.1:8180 make run")
        require_free(self.admin_port, "metrics and state", "FAIRLANE_ADMIN=127.0.0.1:9190 make run")
        require_free(self.primary_port, "the primary engine", "FAIRLANE_PRIMARY_URL=http://127.0.0.1:8201 make run")
        require_free(self.standby_port, "the standby engine", "FAIRLANE_STANDBY_URL=http://127.0.0.1:8202 make run")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}"

    @property
    def primary_url(self) -> str:
        return f"http://127.0.0.1:{self.primary_port}"

    @property
    def standby_url(self) -> str:
        return f"http://127.0.0.1:{self.standby_port}"


def _port(variable: str, default: str) -> int:
    address = os.environ.get(variable, default)
    port = address.removeprefix(default.rpartition(":")[0] + ":")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise DemoProblem(f"{variable}={address!r}: the demo stays on this machine; write it as {default}")
    return int(port)


@dataclass(frozen=True)
class Stage:
    """The demo, up and ready to be called."""

    places: Places
    primary: Child
    standby: Child
    fairlane: Child


def quickstart_file() -> Path:
    """The file that the demo serves: of this folder, else of the source tree that this module lies in."""
    for folder in (Path.cwd(), Path(__file__).resolve().parents[2]):
        if (folder / QUICKSTART).is_file():
            return folder / QUICKSTART
    raise DemoProblem(f"{QUICKSTART} is not here; run the demo in a clone of Fairlane")


@asynccontextmanager
async def staged(places: Places) -> AsyncIterator[Stage]:
    """Starts everything and waits until it is ready; ends everything with the block. Raises DemoProblem, NotInstalled."""
    model_file()
    file = quickstart_file()
    places.require_free()
    with tempfile.TemporaryDirectory(prefix="fairlane-demo-") as logs:
        async with Children(Path(logs)) as children:

            async def engine(name: str, port: int) -> Child:
                return await children.start(name, ["-m", "lab.demo.llama", "--port", str(port), "--parallel", str(STREAMS)])

            primary, standby = await engine("primary", places.primary_port), await engine("standby", places.standby_port)
            await ready(primary, f"{places.primary_url}/health", ENGINE_READY_S)
            await ready(standby, f"{places.standby_url}/health", ENGINE_READY_S)
            fairlane = await children.start("fairlane", ["-m", "proxy", "serve", str(file)])
            await ready(fairlane, f"{places.admin_url}/readyz", FAIRLANE_READY_S)
            yield Stage(places, primary, standby, fairlane)
