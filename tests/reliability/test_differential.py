"""H30: do nginx and HAProxy judge the corpus as we do? What both refuse and we let through to a backend is a bug."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.reliability.corpora import Sent, corpus
from tests.reliability.files import one
from tests.reliability.watch import watched
from tests.wire import J, RawClient, ScriptedBackend, eventually, post, scripts

NGINX = """
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
  access_log off; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u;
  scgi_temp_path {folder}/s; keepalive_timeout 1s; client_header_timeout 1s; client_body_timeout 1s;
  server {{ listen 127.0.0.1:{port};
    location / {{ proxy_pass http://127.0.0.1:{backend}; proxy_http_version 1.1; proxy_read_timeout 2s; }} }}
}}
"""
HAPROXY = """
global
  maxconn 256
defaults
  mode http
  timeout connect 2s
  timeout client 1s
  timeout server 2s
  timeout http-request 1s
frontend f
  bind 127.0.0.1:{port}
  default_backend b
backend b
  server s 127.0.0.1:{backend}
"""
# Judged by what they are for, not by how they are framed: others have no idea of keys, types and paths.
BY_CONTENT = ("answered", "second", "last")


@asynccontextmanager
async def peer(kind: str, backend: int) -> AsyncIterator[int]:
    """nginx or HAProxy in front of this backend; its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "conf"
        file.write_text((NGINX if kind == "nginx" else HAPROXY).format(folder=folder, port=port, backend=backend))
        os.chmod(folder, 0o777)
        program = shutil.which(kind) or f"/usr/sbin/{kind}"
        arguments = ["-c", str(file), "-p", str(folder), "-e", str(folder / "error.log")] if kind == "nginx" else ["-db", "-f", str(file)]
        child = await asyncio.create_subprocess_exec(
            program, *arguments, stderr=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL
        )
        try:

            async def up() -> bool:
                try:
                    async with await RawClient.connect(port) as caller:
                        return (await caller.ask(post(J))).status == 200
                except (OSError, EOFError):
                    return False

            await eventually(up, 15.0)
            yield port
        finally:
            child.terminate()
            await child.wait()


async def let_through(port: int, entry: Sent) -> bool:
    """Is the first request of this entry answered by the backend?"""
    async with await RawClient.connect(port, timeout_s=4.0) as caller:
        try:
            await caller.send(entry.raw)
            return (await caller.response()).status == 200
        except (EOFError, OSError, TimeoutError):
            return False


def installed(kind: str) -> bool:
    return shutil.which(kind) is not None or Path(f"/usr/sbin/{kind}").exists()


@pytest.mark.skipif(not (installed("nginx") and installed("haproxy")), reason="needs nginx and haproxy")
async def test_h30_nothing_that_nginx_and_haproxy_both_refuse_gets_through_here() -> None:
    entries = [entry for entry in corpus("requests") if entry.verdict not in BY_CONTENT]
    async with ScriptedBackend(scripts.ok()) as theirs, ScriptedBackend() as ours:
        async with peer("nginx", theirs.port) as nginx, peer("haproxy", theirs.port) as haproxy, watched(one(ours), ours) as proxy:
            verdicts = []
            for entry in entries:
                mine, *others = await asyncio.gather(*(let_through(port, entry) for port in (proxy.port, nginx, haproxy)))
                verdicts.append((entry.id, mine, *others))
            worse = [name for name, mine, *others in verdicts if mine and not any(others)]
            assert worse == [], f"both refuse, we do not: {worse}"
            stricter = [name for name, mine, *others in verdicts if not mine and any(others)]
            assert len(stricter) > 10, "the peers were asked indeed"
