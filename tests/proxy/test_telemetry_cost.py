"""What do metrics and log cost of a short request? Two processes under the same load, one of them deaf and dumb.

Processor time of the proxy alone, as the system counts it: the log's thread and what it writes included.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import sys
from pathlib import Path

import pytest

from tests.wire import post

SHARE_MAX = 0.15
ROUNDS, REQUESTS, CONNECTIONS = 60, 800, 8  # short rounds in turn: whatever else the machine does, it does to both

BACKEND = """
import asyncio
ANSWER = b'HTTP/1.1 200 OK\\r\\nContent-Type: application/json\\r\\nContent-Length: 72\\r\\n\\r\\n' + (
    b'{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7}}'.ljust(72))
class Backend(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport, self.got = transport, b''
    def data_received(self, data):
        self.got += data
        if self.got.endswith(b'}'):
            self.got = b''
            self.transport.write(ANSWER)
async def main():
    server = await asyncio.get_running_loop().create_server(Backend, '127.0.0.1', 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
import uvloop
uvloop.run(main())
"""

# The same proxy without metrics and log: the path calls what does nothing.
SILENT = """
import sys
from proxy.telemetry.telemetry import Telemetry
class Nothing:
    def observe(self, value): pass
def nothing(self, *_, **__): pass
for name in ('finish', 'waited', 'connected', 'first_token', 'attempt', 'retry_denied'):
    setattr(Telemetry, name, nothing)
for name in ('itl', 'overhead'):
    setattr(Telemetry, name, lambda self, _: Nothing())
"""
SERVE = """
from proxy.cli import main
import sys
sys.argv = ['fairlane', 'serve', sys.argv[1]]
main()
"""


def cpu_s(pid: int) -> float:
    """Processor time of a process: of all its threads, to the nanosecond."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


async def ask(port: int, requests: int) -> None:
    """Short requests, one after another on each of a few connections."""
    asked = post(key=None)

    async def caller() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(requests // CONNECTIONS):
            writer.write(asked)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            length = re.search(rb"(?i)content-length: (\d+)", head)
            assert length is not None
            await reader.readexactly(int(length[1]))
        writer.close()

    await asyncio.gather(*(caller() for _ in range(CONNECTIONS)))


async def started(program: str, *arguments: str, says: str, stream: str) -> tuple[asyncio.subprocess.Process, int]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    reader = process.stdout if stream == "stdout" else process.stderr
    assert reader is not None
    async with asyncio.timeout(20):
        while line := (await reader.readline()).decode():
            if match := re.search(says, line):
                return process, int(match[1])
    raise AssertionError(f"ended without saying {says}")


@pytest.mark.soak
async def test_metrics_and_log_cost_little_of_a_short_request(tmp_path: Path) -> None:
    backend, backend_port = await started(BACKEND, says=r"(\d+)", stream="stdout")
    running = [backend]
    try:
        ports, pids, spent = {}, {}, dict[str, list[float]](counting=[], silent=[])
        for name, program, log in (("counting", SERVE, f'"{tmp_path}/access.log"'), ("silent", SILENT + SERVE, "off")):
            file = tmp_path / f"{name}.yaml"
            file.write_text(
                f'server: {{listen: "127.0.0.1:0", admin: "127.0.0.1:0", access_log: {log}}}\nanonymous: {{lane: fast}}\n'
                f'platforms: {{p: {{probe: none, backends: {{b: {{url: "http://127.0.0.1:{backend_port}", max_streams: 64}}}}}}}}\n'
                "pools: {main: {primary: p, slo: {ttft: 1s, tpot: 150ms}}}\n"
            )
            process, ports[name] = await started(program, str(file), says=r'"listen":"127.0.0.1:(\d+)"', stream="stderr")
            running.append(process)
            pids[name] = process.pid
            await ask(ports[name], 4 * REQUESTS)
        for _ in range(ROUNDS):
            for name in spent:
                before = cpu_s(pids[name])
                await ask(ports[name], REQUESTS)
                spent[name].append((cpu_s(pids[name]) - before) / REQUESTS)
        assert len((tmp_path / "access.log").read_bytes().splitlines()) > ROUNDS * REQUESTS
    finally:
        for process in running:
            process.kill()
            await process.wait()
    counting, silent = (statistics.quantiles(spent[name])[0] for name in ("counting", "silent"))
    share = (counting - silent) / counting
    print(f"us per request: {counting * 1e6:.1f} with, {silent * 1e6:.1f} without: {share:.1%}")
    assert share <= SHARE_MAX
