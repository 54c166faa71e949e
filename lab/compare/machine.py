"""On which machine, and when? Figures of two runs are compared only where this agrees."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path


@dataclass(frozen=True)
class Machine:
    """The class of machine that a run was made on."""

    cores: int
    cpu: str
    kernel: str
    python: str

    @classmethod
    def here(cls) -> Machine:
        """This one."""
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
        return cls(
            cores=len(os.sched_getaffinity(0)),
            cpu=found[1].strip() if found else platform.machine(),
            kernel=platform.release(),
            python=f"{platform.python_implementation()} {platform.python_version()}",
        )

    def __str__(self) -> str:
        return f"{self.cores} cores of {self.cpu}, Linux {self.kernel}, {self.python}"


def today() -> str:
    """The date of a run."""
    return datetime.now(UTC).date().isoformat()
