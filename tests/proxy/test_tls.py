"""Is TLS served to callers, and demanded of backends? One Fairlane with a certificate behind another that must trust it."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from tests.proxy.serving import SERVER, TWO_LANES, serving
from tests.wire import JS, ScriptedBackend, post, scripts

FILES = Path(__file__).parent.parent / "settings" / "files"
CERTIFICATE, KEY = FILES / "server.pem", FILES / "server.key"
SERVED = SERVER.replace("server: {", f'server: {{tls: {{cert: "{CERTIFICATE}", key: "{KEY}"}}, ') % "off"


def file(url: str, platform: str = "") -> str:
    return (
        TWO_LANES
        + f'platforms: {{p: {{probe: none, {platform} backends: {{b: {{url: "{url}", max_streams: 4}}}}}}}}\n'
        + "pools: {main: {primary: p}}\n"
    )


async def test_callers_are_served_over_tls_and_a_stream_passes_whole() -> None:
    async with ScriptedBackend() as backend, serving(file(backend.url), server=SERVED) as proxy:
        context = ssl.create_default_context(cafile=str(CERTIFICATE))
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port, ssl=context)
        assert writer.get_extra_info("ssl_object").version() in ("TLSv1.2", "TLSv1.3")
        for _ in range(2):
            writer.write(post(JS))
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            body = await reader.readuntil(b"0\r\n\r\n")
            assert scripts.DONE in body
        writer.close()
        await writer.wait_closed()
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection("127.0.0.1", proxy.port, ssl=ssl.create_default_context())


async def test_a_backends_certificate_is_verified() -> None:
    async with ScriptedBackend() as backend, serving(file(backend.url), server=SERVED) as behind:
        url = f"https://127.0.0.1:{behind.port}"
        trusted = f'api_key: sk-A, tls: {{ca: "{CERTIFICATE}"}},'
        async with serving(file(url, trusted)) as proxy:
            answer = await proxy.ask(JS)
            assert (answer.status, answer.whole) == (200, True)
            assert answer.body.endswith(scripts.DONE)
        async with serving(file(url, "api_key: sk-A,")) as proxy:
            answer = await proxy.ask(JS)
            assert (answer.status, answer.header("x-fairlane-reason")) == (502, "upstream_connect")
        assert len(backend.requests) == 1
