"""Does the comparison say what it measured, and leave out who is not there? Figures by hand, and one small run of the real tools."""

from __future__ import annotations

import json
import os
import shutil
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from lab.compare import memory, page, tools
from lab.compare.bounds import verdicts
from lab.compare.contestants import FIRST_PORT, PEERS, contestants
from lab.compare.machine import Machine
from lab.compare.processes import require_free
from lab.compare.result import Result, rows
from lab.compare.rounds import Asked, run
from lab.compare.works import WORKS, Measured, lua, read_wrk

FIRST, LAST = page.markers(page.COMPARISON)
MACHINE = Machine(2, "a processor", "6.1", "CPython 3.11")
WRK = """Running 5s test @ http://127.0.0.1:9410/v1/chat/completions
  Latency Distribution
     50%    1.10ms
     99%    3.48ms
  78901 requests in 5.01s, 30.00MB read
"""


def request(us: float, bad: int = 0) -> Measured:
    return Measured(us, 1e6 / us, bad, 60.0, p99_us=3480.0)


def stream(us: float, delay_us: float, kib: float = 12.0) -> Measured:
    return Measured(us, 20_000.0, 0, 60.0, None, 100.0, delay_us, 101_000.0, kib)


def result(**more: object) -> Result:
    plain = rows({"fairlane": [request(30.0), request(44.0), request(31.0)], "nginx": [request(15.0), request(20.0), request(15.0)]})
    streamed = rows(
        {"fairlane": [stream(12.0, 900.0)], "nginx": [stream(10.0, 500.0)], "vllm-router": [stream(16.0, 800.0)], "sglang-router": [None]}
    )
    works = {"plain": plain, "stream": streamed}
    return Result("2026-01-02", MACHINE, {"fairlane": "0.1.0", "nginx": "1.22.1"}, 5, 3, works, {"envoy": "not installed; do so"})


def free_ports() -> int:
    """The first of the ports that a run of the subject needs: other runs go on beside the tests."""
    for first in range(20_000 + 60 * (os.getpid() % 200), 60_000, 60):
        try:
            for port in (first, first + 9, first + 59):
                require_free(port, "a test")
        except OSError:
            continue
        return first
    raise AssertionError("no free ports")


def test_a_ratio_is_paired_round_by_round() -> None:
    found = result().works["plain"]
    assert found["nginx"].ratio == pytest.approx(31.0 / 15.0)  # of 2.0, 2.2 and 2.07
    assert found["fairlane"].figure("us") == 31.0
    assert found["fairlane"].figure("kib_per_stream") is None


def test_a_round_that_failed_is_paired_with_none() -> None:
    found = rows(
        {"fairlane": [request(30.0), None, request(60.0)], "nginx": [request(10.0), request(1.0), request(30.0)], "envoy": [None] * 3}
    )
    assert found["nginx"].ratio == 2.5
    assert "envoy" not in found


def test_bad_answers_are_added_up_and_not_hidden_by_a_median() -> None:
    assert rows({"fairlane": [request(30.0), request(30.0, bad=4), request(30.0)]})["fairlane"].bad == 4


def test_promises_are_held_against_the_figures() -> None:
    said = {(verdict.work, verdict.figure): verdict.met for verdict in verdicts(result())}
    assert said == {
        ("plain", "processor time, fairlane / vllm-router"): None,
        ("plain", "processor time, fairlane / nginx"): True,
        ("stream", "processor time, fairlane / vllm-router"): True,
        ("stream", "processor time, fairlane / nginx"): True,
        ("prompt", "processor time, fairlane / vllm-router"): None,
        ("stream", "delay added to a chunk, p99, us"): False,
        ("wide", "KiB per stream"): None,
        ("any", "bad answers"): True,
    }


def test_a_result_is_kept_whole() -> None:
    assert Result.from_json(json.loads(json.dumps(result().as_json()))) == result()


def test_the_table_goes_between_its_markers_and_the_prose_stays(tmp_path: Path) -> None:
    file = tmp_path / "performance.md"
    first, last = page.markers(page.COMPARISON)
    file.write_text(f"# Before\n\n{first}\nold\n{last}\n\nafter\n")
    page.write(file, page.COMPARISON, page.table(result()))
    once = file.read_text()
    assert once.startswith(f"# Before\n\n{first}\n")
    assert once.endswith(f"{last}\n\nafter\n")
    assert "old" not in once
    assert "| plain | processor time, fairlane / nginx | 2.07 | 3 | 2 | yes |" in once
    assert "| stream | delay added to a chunk, p99, us | 900 | 800 |  | **no** |" in once
    assert "| nginx | 15.0 | 2.07 | 66,667 | 3.48 | 60.0 | 0 |" in once
    assert "2026-01-02, 2 cores of a processor, Linux 6.1, CPython 3.11. Medians of 3 rounds of 5 s." in once
    assert "envoy was left out: not installed; do so." in once
    page.write(file, page.COMPARISON, page.table(result()))
    assert file.read_text() == once


@pytest.mark.parametrize("text", ["no markers", f"{LAST}\n{FIRST}\n", f"{FIRST}\n{FIRST}\n{LAST}\n"])
def test_a_page_without_its_markers_is_left_alone(tmp_path: Path, text: str) -> None:
    file = tmp_path / "performance.md"
    file.write_text(text)
    with pytest.raises(ValueError, match="goes between"):
        page.write(file, page.COMPARISON, "a table")
    assert file.read_text() == text


def test_the_page_of_this_project_has_its_markers(tmp_path: Path) -> None:
    file = tmp_path / "performance.md"
    file.write_text((Path(__file__).resolve().parents[2] / "docs" / "performance.md").read_text())
    for part in (page.COMPARISON, page.MEMORY):
        page.write(file, part, "a table")


def test_what_wrk_prints_is_read() -> None:
    assert read_wrk(WRK) == (78901, 0, 3480.0)
    assert read_wrk(WRK + "  Non-2xx or 3xx responses: 12\n") == (78901, 12, 3480.0)
    with pytest.raises(ValueError, match="no figures"):
        read_wrk("unable to connect")


def test_the_engine_is_asked_in_the_spelling_that_it_reads() -> None:
    assert '"max_tokens":16' in lua(WORKS["prompt"])
    assert len(lua(WORKS["prompt"])) > 32_768


def test_every_contestant_has_a_command_and_an_unknown_one_is_named(tmp_path: Path) -> None:
    taking_part = contestants(["fairlane", *PEERS, "litellm"], tmp_path)
    assert [each.name for each in taking_part] == ["fairlane", *PEERS, "litellm"]
    assert len({each.port for each in taking_part}) == 7
    assert all(each.remedy for each in taking_part)
    with pytest.raises(ValueError, match="'caddy' is not one of nginx"):
        contestants(["fairlane", "caddy"], tmp_path)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (apt-get install gcc)")
def test_a_small_run_measures_the_subject_and_leaves_out_who_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLANE_PEERS", str(tmp_path / "nowhere"))
    said: list[str] = []
    small = replace(WORKS["stream"], streams=20, tokens=10, gap_us=10_000, ttft_us=10_000)
    port = free_ports()
    measured = run(Asked(contestants(["fairlane", "envoy"], tmp_path, port), [small], 1, 1, port), tmp_path, said.append)
    assert measured.left_out == {"envoy": "not installed; python -m lab.compare setup"}
    row = measured.works["stream"]["fairlane"]
    assert row.bad == 0
    (only,) = row.rounds
    assert only is not None
    assert only.us > 0
    assert only.per_s > 500
    assert only.delay_p50_us is not None
    assert "envoy: not installed" in "\n".join(said)


def test_without_a_compiler_nothing_is_measured_and_the_remedy_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(tools.NotInstalled, match="apt-get install gcc"):
        run(Asked(contestants(["fairlane"], tmp_path), [WORKS["stream"]], 1, 1, FIRST_PORT), tmp_path, lambda _: None)


def test_a_port_in_use_is_named_instead_of_measured(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(OSError, match=f"port {port}, for the engine"), tools.engine(tmp_path, port, 0, 0):
            pass


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (apt-get install gcc)")
def test_what_waits_and_what_streams_is_weighed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "SECONDS", 2)
    monkeypatch.setattr(memory, "LOOK_AFTER_S", 1.5)
    prompt = memory.Case("a waiting request", waits=True, prompt_bytes=32_768)
    (held,) = memory.measure([prompt], tmp_path, free_ports(), count=50, say=lambda _: None)
    assert 32 < held.allocated_kib < 64  # the prompt, once
    assert "| a waiting request | " in memory.table([held], 50)
