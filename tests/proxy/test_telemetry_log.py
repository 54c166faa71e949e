"""Is every line written that can be, none that must not be, and does nobody ever wait for it?"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lab.engine.engine import Engine
from policies.dispatcher.state import Ejected
from policies.failover import FailedOver
from policies.model import Outcome
from proxy.telemetry.access_log import STRANGERS_BURST, STRANGERS_PER_S, AccessLog, Line, line
from proxy.telemetry.events import ProcessLog
from proxy.telemetry.log_writer import LogWriter, Sink, open_sink
from proxy.telemetry.record import Record
from tests.proxy.serving import serving
from tests.wire import post


def record(number: int = 0, **fields: Any) -> Record:
    return Record(received_at=10.0, time_unix=1_700_000_000.25, id=f"id-{number}", tenant=fields.pop("tenant", "acme"), **fields)


def test_each_field_of_a_line_is_the_records_of_that_name() -> None:
    """Lines are made by position: no two of these values are alike."""
    texts = (
        "id",
        "tenant",
        "lane",
        "pool",
        "rule",
        "model",
        "platform",
        "backend",
        "why",
        "method",
        "path",
        "tokens_source",
        "trace_id",
        "peer",
    )
    numbers = ("attempts", "hedges", "continued", "status", "tokens_in", "tokens_out", "bytes_in", "bytes_out", "retry_count")
    known: dict[str, Any] = {name: f"its {name}" for name in texts} | {name: 100 + index for index, name in enumerate(numbers)}
    times: dict[str, Any] = {"queue_s": 0.5, "connect_s": 0.25, "first_token_at": 11.0, "ended_at": 12.0}
    said = json.loads(line(Record(10.0, 0.0, streamed=True, outcome=Outcome.TRUNCATED, **known, **times)))
    assert list(said) == [each.name for each in msgspec.structs.fields(Line)]
    assert said == known | {
        "time": "1970-01-01T00:00:00Z",
        "streamed": True,
        "outcome": "truncated",
        "queue_ms": 500.0,
        "connect_ms": 250.0,
        "first_token_ms": 1000.0,
        "total_ms": 2000.0,
    }


@contextmanager
def writing(writer: LogWriter[Record]) -> Iterator[LogWriter[Record]]:
    writer.start()
    try:
        yield writer
    finally:
        writer.close()


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_bytes().splitlines()]


def test_a_line_says_all_that_is_known() -> None:
    ended = record(
        method="POST",
        path="/v1/chat/completions",
        lane="fast",
        pool="chat",
        model="qwen",
        platform="own",
        backend="own-1",
        streamed=True,
        attempts=2,
        outcome=Outcome.OK,
        status=200,
        queue_s=0.25,
        connect_s=0.001,
        first_token_at=10.5,
        last_token_at=11.0,
        tokens_in=10,
        tokens_out=20,
        tokens_source="usage",
        bytes_in=150,
        bytes_out=4000,
        trace_id="4bf92f",
    )
    ended.ended_at = 11.25
    said = json.loads(line(ended))
    assert said.pop("time") == "2023-11-14T22:13:20.250000Z"
    assert {key: said[key] for key in ("id", "tenant", "lane", "pool", "model", "backend", "attempts", "outcome", "status")} == {
        "id": "id-0",
        "tenant": "acme",
        "lane": "fast",
        "pool": "chat",
        "model": "qwen",
        "backend": "own-1",
        "attempts": 2,
        "outcome": "ok",
        "status": 200,
    }
    assert (said["queue_ms"], said["connect_ms"], said["first_token_ms"], said["total_ms"]) == (250.0, 1.0, 500.0, 1250.0)
    assert (said["tokens_in"], said["tokens_out"], said["tokens_source"]) == (10, 20, "usage")
    assert (said["bytes_in"], said["bytes_out"], said["trace_id"]) == (150, 4000, "4bf92f")


@pytest.mark.parametrize("nasty", ["a\r\nb", "\x1b[31m", "\u2028", "\x7f", "\x85", "\u202e", "\ud800", '"}\n{"id":"forged"', "ｌarge"])
def test_whatever_a_caller_wrote_stays_one_printable_line(nasty: str) -> None:
    text = line(record(model=nasty, path=nasty, tenant=nasty))
    assert text.endswith(b"\n") and text.count(b"\n") == 1
    assert all(0x20 <= byte < 0x7F for byte in text[:-1])
    assert json.loads(text)["model"] == nasty


def test_long_values_are_cut() -> None:
    assert len(line(record(model="m" * 1_000_000, path="é" * 1_000_000, trace_id="t" * 10_000))) < 4_000


def test_lines_reach_the_file_in_order(tmp_path: Path) -> None:
    with writing(LogWriter(open_sink(str(tmp_path / "log")), line)) as writer:
        for number in range(1000):
            writer.put(record(number))
    assert [said["id"] for said in read(tmp_path / "log")] == [f"id-{number}" for number in range(1000)]
    assert writer.dropped == 0


def test_the_file_is_appended_to(tmp_path: Path) -> None:
    (tmp_path / "log").write_text('{"id":"before"}\n')
    with writing(LogWriter(open_sink(str(tmp_path / "log")), line)) as writer:
        writer.put(record())
    assert [said["id"] for said in read(tmp_path / "log")] == ["before", "id-0"]


def test_rotation_loses_and_repeats_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with writing(LogWriter(open_sink(str(path)), line)) as writer:
        for number in range(100):
            writer.put(record(number))
        path.rename(tmp_path / "log.1")
        writer.switch(open_sink(str(path)))
        for number in range(100, 200):
            writer.put(record(number))
    assert [said["id"] for said in read(tmp_path / "log.1")] == [f"id-{number}" for number in range(100)]
    assert [said["id"] for said in read(path)] == [f"id-{number}" for number in range(100, 200)]


def test_off_writes_nothing_and_drops_nothing(tmp_path: Path) -> None:
    with writing(LogWriter(open_sink("off"), line)) as writer:
        writer.put(record(1))
        writer.switch(open_sink(str(tmp_path / "log")))
        writer.put(record(2))
        writer.switch(None)
        writer.put(record(3))
    assert [said["id"] for said in read(tmp_path / "log")] == ["id-2"]
    assert writer.dropped == 0


def test_a_file_that_cannot_be_opened_is_said_before_anything_changes(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        open_sink(str(tmp_path / "nowhere" / "log"))


def test_a_reader_that_has_stopped_costs_lines_and_nothing_else() -> None:
    readable, writable = os.pipe()
    try:
        writer = LogWriter(Sink(writable), line, lines_max=100)
        writer.start()
        for number in range(5_000):  # the pipe holds some 150 of them
            writer.put(record(number))
        dropped = writer.dropped
        assert dropped > 4_000
        written = os.read(readable, 1 << 20)  # the reader is back: what was kept comes, whole
        while written.count(b"\n") < 5_000 - dropped:
            written += os.read(readable, 1 << 20)
        writer.close()
        ids = [json.loads(text)["id"] for text in written.splitlines()]
        assert ids == [f"id-{number}" for number in range(5_000 - dropped)]
    finally:
        os.close(readable)
        os.close(writable)


def test_closing_does_not_wait_for_a_reader_that_has_stopped() -> None:
    readable, writable = os.pipe()
    writer = LogWriter(Sink(writable), line)
    writer.start()
    for number in range(5_000):
        writer.put(record(number))
    writer.close(timeout_s=0.2)
    os.close(readable)  # frees the thread
    writer.close()
    os.close(writable)
    assert writer.dropped > 0


def test_a_reader_that_is_gone_is_counted() -> None:
    readable, writable = os.pipe()
    os.close(readable)
    with writing(LogWriter(Sink(writable), line)) as writer:
        for number in range(10):
            writer.put(record(number))
    assert writer.dropped == 10
    os.close(writable)


def test_a_pipe_that_does_not_block_is_waited_for() -> None:
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    writer = LogWriter(Sink(writable), line)
    writer.start()
    for number in range(2_000):
        writer.put(record(number))
    written = b""
    while written.count(b"\n") < 2_000:
        written += os.read(readable, 1 << 20)
    assert not writer._wake.is_set()  # nothing left to say: the thread sleeps
    writer.close()
    assert writer.dropped == 0
    for descriptor in (readable, writable):
        os.close(descriptor)


def test_a_flood_of_strangers_is_thinned_and_counted_and_callers_are_not() -> None:
    writer = LogWriter(open_sink("/dev/null"), line, lines_max=100_000)
    log = AccessLog(writer)
    for number in range(10_000):
        stranger = record(number, tenant="", outcome=Outcome.MALFORMED)
        stranger.ended_at = 100.0
        log.put(stranger)
    assert writer.dropped == 10_000 - STRANGERS_BURST
    for number in range(10_000):
        caller = record(number)
        caller.ended_at = 100.0
        log.put(caller)
    assert writer.dropped == 10_000 - STRANGERS_BURST
    later = record(tenant="", outcome=Outcome.MALFORMED)
    later.ended_at = 100.0 + 1.5 / STRANGERS_PER_S
    log.put(later)
    assert writer.dropped == 10_000 - STRANGERS_BURST


FILE = """
platforms: {{p: {{probe: none, max_streams: 4, backends: {{b: "{url}"}}}}}}
pools: {{main: {{primary: p}}}}
anonymous: {{lane: fast}}
"""


async def test_what_ended_just_before_the_end_has_its_line() -> None:
    async with Engine(slots=4, ttft_s=0.0, tpot_s=0.0).serving() as engine:
        async with serving(FILE.format(url=engine.url), access_log="file") as proxy:
            log = proxy.log.open("rb")
            proxy.fairlane._deadlines.stop()  # nobody comes by to count
            assert (await proxy.ask()).status == 200
            await proxy.at_rest()
        with log:
            assert [json.loads(text)["outcome"] for text in log] == ["ok"]


async def test_what_ended_before_a_reload_has_its_line_where_it_was_asked_for() -> None:
    async with (
        Engine(slots=4, ttft_s=0.0, tpot_s=0.0).serving() as engine,
        serving(FILE.format(url=engine.url), access_log="file") as proxy,
    ):
        proxy.fairlane._deadlines.stop()
        assert (await proxy.ask()).status == 200
        await proxy.at_rest()
        elsewhere = proxy.log.with_name("elsewhere.log")
        proxy.file.write_text(proxy.file.read_text().replace(str(proxy.log), str(elsewhere)))
        assert (await proxy.fairlane.reload()).ok
        assert (await proxy.ask()).status == 200
        await proxy.at_rest()
        proxy.fairlane.telemetry.settle()
        await proxy.until(lambda: elsewhere.read_bytes().count(b"\n") == 1)
        assert proxy.log.read_bytes().count(b"\n") == 1


async def test_requests_that_come_with_the_same_head_have_lines_of_their_own() -> None:
    async with (
        Engine(slots=4, ttft_s=0.0, tpot_s=0.0).serving() as engine,
        serving(FILE.format(url=engine.url), access_log="file") as proxy,
    ):
        bodies = [
            b'{"model":"%b","stream":%b,"max_tokens":1,"messages":[{"role":"user","content":"hi"}]}' % each
            for each in ((b"one", b"false"), (b"three", b"true"), (b"seven", b"false"))
        ]
        async with await proxy.connect() as caller:
            for body in (*bodies, b'{"model":7}'):
                await caller.ask(post(body, headers={"x-stainless-retry-count": "2"}))
        await proxy.until(lambda: proxy.log.read_bytes().count(b"\n") == 4)
        first, second, third, refused = read(proxy.log)
        assert [(said["model"], said["streamed"], said["bytes_in"]) for said in (first, second, third)] == [
            ("one", False, len(bodies[0])),
            ("three", True, len(bodies[1])),
            ("seven", False, len(bodies[2])),
        ]
        assert first["first_token_ms"] is third["first_token_ms"] is None
        assert second["first_token_ms"] is not None
        assert len({said["id"] for said in (first, second, third, refused)}) == 4
        for said in (first, second, third):
            assert (said["tenant"], said["lane"], said["path"], said["retry_count"]) == ("anonymous", "fast", "/v1/chat/completions", 2)
            assert (said["outcome"], said["attempts"]) == ("ok", 1)
        assert (refused["outcome"], refused["tenant"], refused["lane"], refused["model"]) == ("malformed", "anonymous", "", "")


def test_the_process_log_goes_its_own_way(tmp_path: Path) -> None:
    notices = open_sink(str(tmp_path / "notices"))
    with writing(LogWriter(open_sink(str(tmp_path / "log")), line, notices=notices)) as writer:
        log = ProcessLog(writer, lambda: 0.0, lambda: 1000.0)
        log.info("listening", port=8080)
        writer.put(record())
        log.events([FailedOver("chat", "own", "rented", "ejected"), Ejected("own", "own-1", 1015.5, "reset")])
        log.error("reload failed", problems=[ValueError("x:1:2")])
    first, second, third, fourth = read(tmp_path / "notices")
    assert first == {"time": "1970-01-01T00:00:00Z", "level": "info", "event": "listening", "port": 8080}
    assert {**second, "time": ""} == {
        "time": "",
        "level": "warning",
        "event": "failed_over",
        "pool": "chat",
        "from": "own",
        "to": "rented",
        "reason": "ejected",
    }
    assert (third["event"], third["backend"], third["until"], third["why"]) == ("ejected", "own-1", "1970-01-01T00:00:15.500000Z", "reset")
    assert (fourth["level"], fourth["problems"]) == ("error", ["x:1:2"])
    assert len(read(tmp_path / "log")) == 1


def test_notices_have_room_when_the_access_log_has_none(tmp_path: Path) -> None:
    writer = LogWriter(open_sink("/dev/null"), line, lines_max=10, notices=open_sink(str(tmp_path / "notices")))
    for number in range(20):
        writer.put(record(number))
    ProcessLog(writer, lambda: 0.0).warning("flooded")
    with writing(writer):
        pass
    assert writer.dropped == 10
    assert [said["event"] for said in read(tmp_path / "notices")] == ["flooded"]
