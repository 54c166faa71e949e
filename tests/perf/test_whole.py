"""What does the whole path take, without sockets? One request, one chunk; and what stands beside it: a log line, a file."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from policies.model import Outcome
from proxy.settings.loader import loads
from proxy.telemetry.access_log import line
from proxy.telemetry.record import Record
from tests.perf.conftest import Timed
from tests.proxy.path import PLAIN, STREAMED, path, stream_of
from tests.settings.directory import EXAMPLE

pytestmark = pytest.mark.perf
BATCH, CHUNKS = 50, 500


def test_a_short_request(timed: Timed) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        holding = path()
        one = runner.run(holding.__aenter__())

        async def ask() -> None:
            for _ in range(BATCH):
                await one.ask(PLAIN, b"}")

        timed(lambda: runner.run(ask()), per=BATCH)
        runner.run(holding.__aexit__(None, None, None))


def test_a_chunk_of_a_stream(timed: Timed) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        holding = path()
        one = runner.run(holding.__aenter__())
        one.answer = stream_of(CHUNKS)
        timed(lambda: runner.run(one.ask(STREAMED, b"0\r\n\r\n")), per=CHUNKS)
        runner.run(holding.__aexit__(None, None, None))


def test_a_line_of_the_access_log(timed: Timed) -> None:
    record = Record(
        received_at=10.0,
        time_unix=1_700_000_000.25,
        id="req-0123456789abcdef01234567",
        method="POST",
        path="/v1/chat/completions",
        tenant="acme",
        lane="fast",
        pool="main",
        rule="routes[0]",
        model="m",
        streamed=True,
        attempts=1,
        platform="own",
        backend="gpu-a",
        outcome=Outcome.OK,
        status=200,
        first_token_at=10.2,
        last_token_at=12.0,
        tokens_in=120,
        tokens_out=90,
        tokens_source="usage",
        bytes_in=700,
        bytes_out=17_000,
        peer="10.1.2.3",
        ended_at=12.0,
    )
    assert line(record).endswith(b"\n")
    timed(lambda: line(record), times=100)


def test_the_example_file_is_loaded(timed: Timed, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("file")
    (folder / "cron").write_text("sk-cron")
    environ = {"ACME_KEY": "sk-acme", "VLLM_KEY": "sk-vllm", "ADMIN_TOKEN": "admin"}
    data = EXAMPLE.encode()
    assert loads(data, environ, directory=folder).settings
    timed(lambda: loads(data, environ, directory=folder))
