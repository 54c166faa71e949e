"""Do the scripted backend and the raw client do what they say? Everything else leans on them."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.wire import JS, Blackhole, J, RawClient, ScriptedBackend, ev, post, scripts


async def test_it_answers_whole_and_streamed_on_one_connection() -> None:
    async with ScriptedBackend(scripts.ok(tokens=2)) as backend, await RawClient.connect(backend.port) as client:
        whole = await client.ask(post(J))
        assert whole.status == 200 and json.loads(whole.body)["usage"]["completion_tokens"] == 2
        await client.send(post(JS))
        await client.head()
        events = [event async for event in client.events()]
        assert events == scripts.chat_events(2)
        assert len(backend.connections) == 1 and [seen.body for seen in backend.requests] == [J, JS]
        assert bytes(backend.connections[0].received) == post(J) + post(JS)


async def test_scripts_are_chosen_by_turn_and_by_name() -> None:
    async with ScriptedBackend(scripts.status(200), named={"teapot": [scripts.status(418)]}) as backend:
        backend.then(scripts.status(503, {"Retry-After": "2"}))
        async with await RawClient.connect(backend.port) as client:
            named = await client.ask(post(headers={"x-script": "teapot"}))
            first = await client.ask(post())
            second = await client.ask(post())
        assert [named.status, first.status, second.status] == [418, 503, 200]
        assert first.header("retry-after") == "2"


async def test_cuts_are_told_apart() -> None:
    stream = scripts.sse([ev("a"), ev("b")])
    async with ScriptedBackend() as backend:
        backend.then(scripts.rst_at(len(stream) - 5, stream))
        backend.then(scripts.fin_at(len(stream) - 5, stream))
        backend.then(scripts.rst())
        for ended in ("reset", "fin"):
            async with await RawClient.connect(backend.port) as client:
                response = await client.ask(post(JS))
                assert (response.whole, response.body, client.ended) == (False, ev("a") + ev("b"), ended)
        async with await RawClient.connect(backend.port) as client:
            await client.send(post(JS))
            with pytest.raises(EOFError):
                await client.head()
            assert client.ended == "reset"


@pytest.mark.parametrize("how", ["close", "reset", "half_close"])
async def test_the_backend_sees_a_client_leave(how: str) -> None:
    async with ScriptedBackend(scripts.hang()) as backend, await RawClient.connect(backend.port) as client:
        await client.send(post(JS))
        seen = await backend.seen(1)
        assert backend.active == backend.max_active == backend.open == 1
        getattr(client, how)()
        await backend.all_closed()
        assert backend.active == 0 and seen.close_seen_at is not None
        assert seen.connection.was_reset == (how == "reset")


async def test_a_backend_that_ignores_the_close_goes_on() -> None:
    gate = asyncio.Event()
    reached = asyncio.Event()
    script = (scripts.ignore_close(), scripts.wait(gate), scripts.call(lambda _: reached.set()))
    async with ScriptedBackend(*script) as backend:
        async with await RawClient.connect(backend.port) as client:
            await client.send(post(JS))
            await backend.seen(1)
        await backend.all_closed()
        gate.set()
        await asyncio.wait_for(reached.wait(), 5)


async def test_refusing_and_accepting_again_on_the_same_port() -> None:
    async with ScriptedBackend() as backend:
        await backend.refuse()
        with pytest.raises(ConnectionRefusedError):
            await RawClient.connect(backend.port)
        await backend.accept()
        async with await RawClient.connect(backend.port) as client:
            assert (await client.ask(post())).status == 200


async def test_connecting_to_a_blackhole_hangs() -> None:
    with Blackhole() as hole, pytest.raises(TimeoutError):
        await RawClient.connect(hole.port, timeout_s=0.3)


async def test_slices_and_chunked_requests_are_put_together() -> None:
    stream = scripts.sse(scripts.chat_events(2))
    async with ScriptedBackend(scripts.sliced(stream, 7)) as backend, await RawClient.connect(backend.port) as client:
        head = post(JS).split(b"\r\n\r\n")[0].replace(b"Content-Length: %d\r\n" % len(JS), b"")
        await client.send_sliced(head + b"\r\nTransfer-Encoding: chunked\r\n\r\n" + scripts.chunk(JS) + b"0\r\n\r\n", 5)
        response = await client.response()
        assert response.whole and response.body == b"".join(scripts.chat_events(2))
        assert backend.requests[0].body == JS


async def test_a_reader_that_stops_blocks_the_backend() -> None:
    step = scripts.raw(b"HTTP/1.1 200 OK\r\n\r\n" + bytes(4 << 20))
    async with ScriptedBackend(step, scripts.fin(), sndbuf_bytes=4096) as backend:
        async with await RawClient.connect(backend.port, rcvbuf_bytes=4096) as client:
            await client.send(post(JS))
            seen = await backend.seen(1)
            await backend.until(lambda: seen.first_byte_at is not None)
            assert backend.active == 1
            assert len((await client.response()).body) == 4 << 20
        await backend.at_rest()


async def test_a_script_that_fails_fails_the_test() -> None:
    def broken(_: object) -> None:
        raise RuntimeError("the script is wrong")

    with pytest.raises(RuntimeError, match="the script is wrong"):
        async with ScriptedBackend(scripts.call(broken)) as backend, await RawClient.connect(backend.port) as client:
            await client.send(post())
            assert await client.until_closed() == "reset"
