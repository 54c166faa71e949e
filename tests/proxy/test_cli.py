"""Does the command line keep its promises: exit codes, stdout for data, and nothing imported before it is needed?"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def fairlane(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "proxy", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)


def test_a_fresh_key_comes_with_its_digest() -> None:
    first, second = (json.loads(fairlane("keys", "new", "--json").stdout) for _ in range(2))
    assert first["key"] != second["key"]
    assert first["secret_sha256"] == hashlib.sha256(first["key"].encode()).hexdigest()
    assert fairlane("keys", "new").stdout.startswith("key: sk-")


@pytest.mark.parametrize(
    "arguments",
    [
        ["bogus"],
        ["serve"],
        ["engine"],
        ["engine", "--port", "0", "--ttft", "80"],
        ["engine", "--port", "70000"],
        ["demo", "--seconds", "soon"],
    ],
)
def test_wrong_usage_is_2_and_says_so_on_stderr(arguments: list[str]) -> None:
    done = fairlane(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr


def test_every_command_is_offered() -> None:
    offered = fairlane("--help").stdout
    expected = ("serve", "check", "schema", "engine", "bench", "demo", "keys", "top", "plan", "explain", "simulate", "dashboards", "alerts")
    assert [name for name in expected if f" {name} " not in offered] == []


def test_check_and_schema() -> None:
    assert fairlane("check", "config/quickstart.yaml").returncode == 0
    assert fairlane("check", "no-such-file.yaml").returncode == 1
    assert json.loads(fairlane("schema").stdout)["$schema"].startswith("http://json-schema.org/draft-07/schema")


def test_help_needs_no_server() -> None:
    source = "import sys, proxy.cli; print([m for m in ('uvloop', 'aiohttp', 'pydantic', 'rich.live', 'lab') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip() == "[]"
