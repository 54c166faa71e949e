"""Is a regression seen, whatever the machine? Figures by hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.perf import ratios
from tests.perf.calibration import calibrate, loop


def document(speed: float, **times_us: float) -> dict[str, Any]:
    """What pytest-benchmark would have written on a machine so many times as fast."""
    return {
        "benchmarks": [
            {
                "name": f"test_{name}",
                "stats": {"min": us * 10e-6 / speed, "median": us * 11e-6 / speed},
                "extra_info": {"per": 10, "calibration_s": 20e-6 / speed},
            }
            for name, us in times_us.items()
        ]
    }


def run(monkeypatch: pytest.MonkeyPatch, file: Path, written: dict[str, Any], *options: str) -> int:
    file.write_text(json.dumps(written))
    monkeypatch.setattr(sys, "argv", ["ratios", str(file), *options])
    return ratios.main()


def test_a_regression_is_told_as_a_ratio_on_any_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    monkeypatch.setattr(ratios, "BASELINE", tmp_path / "baseline.json")
    assert run(monkeypatch, file, document(1.0, a_chunk=4.0, a_request=40.0), "--renew") == 0
    assert run(monkeypatch, file, document(0.3, a_chunk=4.0, a_request=40.0, something_new=1.0)) == 0
    capsys.readouterr()
    assert run(monkeypatch, file, document(0.3, a_chunk=6.0, a_request=44.0)) == 1
    said = capsys.readouterr()
    assert said.err == "a chunk: 1.50 x its baseline\n"
    assert "a request" in said.out
    assert "1.10" in said.out


def test_a_baseline_of_another_interpreter_is_not_held_against_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    baseline = tmp_path / "baseline.json"
    monkeypatch.setattr(ratios, "BASELINE", baseline)
    baseline.write_text(json.dumps({"python": "PyPy 7.3", "ratios": {"a chunk": 0.001}}))
    assert run(monkeypatch, tmp_path / "figures.json", document(1.0, a_chunk=4.0)) == 0


def test_the_loop_does_the_same_each_time_and_takes_some_time() -> None:
    assert loop() == loop() == 116
    assert 1e-6 < calibrate() < 0.05


def test_each_benchmark_has_its_baseline() -> None:
    kept = json.loads(ratios.BASELINE.read_text())
    assert len(kept["ratios"]) >= 18
    assert all(ratio > 0 for ratio in kept["ratios"].values())
