"""What does `fairlane check` print, and with which exit code?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from proxy.settings.check import run
from tests.settings.directory import CANARY, ROOT, SMALLEST


def test_a_good_file(capsys: pytest.CaptureFixture[str]) -> None:
    path = ROOT / "config" / "smallest.yaml"
    assert run(path) == 0
    assert capsys.readouterr() == (f"{path}: ok\n", "")
    assert run(path, as_json=True) == 0
    assert json.loads(capsys.readouterr().out) == {"file": str(path), "ok": True, "problems": []}


def test_a_bad_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(SMALLEST + "serverr: {}\nlanes: {fast: {max_wait: 4}}\n")
    assert run(path) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.splitlines() == [
        f'{path}:5:1: serverr: is no key here; did you mean "server"?',
        f"{path}:6:26: lanes.fast.max_wait: must be a duration with its unit, such as 250ms, 10s, 1m30s or 2h",
    ]
    assert run(path, as_json=True) == 1
    said = json.loads(capsys.readouterr().out)
    assert not said["ok"]
    assert said["problems"][0] == {
        "file": str(path),
        "line": 5,
        "column": 1,
        "path": "serverr",
        "message": 'is no key here; did you mean "server"?',
        "warning": False,
    }


def test_a_doubtful_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", CANARY)
    path = tmp_path / "f.yaml"
    path.write_text(
        SMALLEST.replace("{primary: gpu}", "{primary: gpu, demand: {rps: 9, generation_time: 8s}}")
        + "keys: [{name: a, lane: fast, secret: $SECRET}]\n"
    )
    assert run(path) == 0
    out, err = capsys.readouterr()
    assert out == f"{path}: ok, 1 warning\n" and ": warning: needs 72 streams" in err


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Path("/nowhere.yaml")) == 1
    assert capsys.readouterr().err == "/nowhere.yaml:1:1: file: cannot be read: No such file or directory\n"
