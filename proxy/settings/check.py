"""Can this file be served? What `fairlane check` and `fairlane schema` print; nothing is ever started."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from proxy.settings.loader import load
from proxy.settings.problems import SettingsError
from proxy.settings.schema import schema

__all__ = ["run", "schema"]


def run(path: Path, as_json: bool = False) -> int:
    """Print what is wrong with a file, problems and warnings on stderr (as JSON: all on stdout). 0: it can be served, 1: it cannot."""
    served = True
    try:
        problems = load(path, os.environ).warnings
    except SettingsError as error:
        served, problems = False, error.problems
    if as_json:
        print(json.dumps({"file": str(path), "ok": served, "problems": [asdict(problem) for problem in problems]}))
        return 0 if served else 1
    for problem in problems:
        print(problem, file=sys.stderr)
    if served:
        print(f"{path}: ok" + (f", {len(problems)} warning{'s' if len(problems) > 1 else ''}" if problems else ""))
    return 0 if served else 1
