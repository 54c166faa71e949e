"""Group L: can a caller or a backend make us keep, wait or compute more than it is worth?"""

from __future__ import annotations

import asyncio
import gzip
import os
import time
from dataclasses import replace
from typing import Any

import pytest

from proxy.http1.exchange import Limits
from tests.reliability.files import one, two
from tests.reliability.memory import DoorInMemory
from tests.reliability.process import processed
from tests.reliability.watch import Watch, watched
from tests.wire import JS, A, J, RawClient, ScriptedBackend, ev, eventually, post, scripts

GET = b"GET /v1/models HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer sk-A\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"


def limit(proxy: Watch, **changed: Any) -> None:
    """Other limits for connections from now on."""
    proxy.fairlane.door.limits = replace(proxy.fairlane.door.limits, **changed)


async def test_l01_slow_heads_end_on_time_and_good_callers_do_not_notice() -> None:
    async with ScriptedBackend() as backend, watched(one(backend), backend) as proxy:
        limit(proxy, head_s=1.0)
        slow = [await proxy.connect() for _ in range(150)]
        began_at = time.monotonic()
        for caller in slow:
            await caller.send(b"GET /v1/models HTTP/1.1\r\nX: ")
        trickling = asyncio.ensure_future(asyncio.gather(*(_trickle(caller) for caller in slow)))
        good = 0
        while not trickling.done():
            assert (await proxy.ask()).status == 200
            good += 1
        statuses = await trickling
        assert set(statuses) == {408} and time.monotonic() - began_at < 10
        assert good >= 3 and len(backend.requests) == good
        assert proxy.state.in_flight == 0


async def _trickle(caller: RawClient) -> int:
    ended = asyncio.ensure_future(caller.response())
    while not ended.done():
        try:
            await caller.send(b"x")
        except OSError:
            break
        await asyncio.sleep(0.2)
    status = (await ended).status
    caller.close()
    return status


@pytest.mark.parametrize("limits", [{"body_idle_s": 0.4}, {"body_s": 0.6}], ids=["idle", "total"])
async def test_l02_a_slow_body_holds_neither_slot_nor_backend(limits: dict[str, float]) -> None:
    async with ScriptedBackend() as backend, watched(one(backend), backend) as proxy:
        limit(proxy, **limits)
        async with await proxy.connect() as caller:
            await caller.send(A + b"Content-Length: 1048576\r\n\r\n{")
            ended = asyncio.ensure_future(caller.response())
            while not ended.done() and "body_s" in limits:
                assert proxy.state.in_flight == 0 and backend.connections == []
                try:
                    await caller.send(b" ")
                except OSError:
                    break
                await asyncio.sleep(0.1)
            answer = await ended
            assert (answer.status, answer.header("x-fairlane-reason")) == (408, "client_timeout")
        assert backend.connections == []


@pytest.mark.parametrize("behind", [b"", b"\r\n", b"G"], ids=["nothing", "line-ends", "one-letter"])
async def test_l03_an_idle_connection_closes_whatever_trickles(behind: bytes) -> None:
    async with ScriptedBackend() as backend, watched(one(backend), backend) as proxy:
        limit(proxy, keep_alive_s=0.5, head_s=0.5)
        async with await proxy.connect(timeout_s=5) as caller:
            assert (await caller.ask(GET)).status == 200
            closed = asyncio.ensure_future(caller.until_closed())
            while not closed.done():
                try:
                    await caller.send(behind if behind == b"\r\n" else b"")
                except OSError:
                    break
                if behind == b"G":
                    await caller.send(behind)
                    behind = b""
                await asyncio.sleep(0.05)
            assert await closed in ("fin", "reset")


async def test_l04_head_limits_hold_at_the_limit_and_one_beyond_byte_by_byte() -> None:
    door = DoorInMemory()
    head = b"GET %b HTTP/1.1\r\nHost: t\r\n%b\r\n"
    for raw, status in (
        (head % (b"/" + b"a" * 8191, b""), b"200"),
        (head % (b"/" + b"a" * 8192, b""), b"414"),
        (head % (b"/", b"x: " + b"a" * (8 * 1024 - 5) + b"\r\n"), b"200"),
        (head % (b"/", b"x: " + b"a" * (8 * 1024 - 4) + b"\r\n"), b"431"),
        (head % (b"/", b"x: 1\r\n" * 99), b"200"),
        (head % (b"/", b"x: 1\r\n" * 100), b"431"),
        (head % (b"/", (b"x: " + b"a" * 8000 + b"\r\n") * 5), b"431"),
    ):
        for pieces in ([raw], [raw[at : at + 1] for at in range(len(raw))]):
            assert door.verdict(pieces).statuses == (status,)


async def test_l05_the_body_limit_holds_for_both_framings_and_an_empty_body_is_no_json() -> None:
    fit, over = J + b" " * (1024 - len(J)), J + b" " * (1025 - len(J))
    async with ScriptedBackend() as backend:
        async with watched(one(backend), backend) as proxy:
            limit(proxy, body_bytes=1024)
            for raw, status in (
                (post(fit), 200),
                (A + b"Content-Length: 1025\r\n\r\n", 413),
                (A + CHUNKED + scripts.chunk(fit) + b"0\r\n\r\n", 200),
                (A + CHUNKED + scripts.chunk(over) + b"0\r\n\r\n", 413),
                (A + CHUNKED + b"1\r\n{\r\n" * 1 + b"fffffff\r\n" + b" " * 2000, 413),
                (A + b"\r\n", 400),
                (A + b"Content-Length: 0\r\n\r\n", 400),
            ):
                async with await proxy.connect() as caller:
                    assert (await caller.ask(raw)).status == status, raw[:200]
            assert [len(seen.body) for seen in backend.requests] == [1024, 1024]


async def test_l06_an_encoded_request_body_is_refused_unread() -> None:
    async with ScriptedBackend() as backend, watched(one(backend), backend) as proxy:
        bomb = gzip.compress(bytes(1 << 20))
        for coding in ("gzip", "deflate", "br", "zstd", "gzip, gzip"):
            assert (await proxy.ask(bomb, content_encoding=coding)).status == 415
        answers = await asyncio.gather(*(proxy.ask(bomb, content_encoding="gzip") for _ in range(100)))
        assert {answer.status for answer in answers} == {415}
        assert backend.requests == []


async def test_l07_s17_an_encoded_answer_passes_untouched() -> None:
    bomb = gzip.compress(bytes(4 << 20))
    stream = gzip.compress(b"".join(scripts.chat_events(3)))
    async with ScriptedBackend() as backend, watched(one(backend), backend) as proxy:
        backend.then(scripts.raw(scripts.answer(bomb, headers={"Content-Encoding": "gzip"})))
        answer = await proxy.ask()
        assert (answer.body, answer.header("content-encoding")) == (bomb, "gzip")
        coded = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
        backend.then(scripts.raw(coded + b"".join(scripts.chunk(stream[at : at + 9]) for at in range(0, len(stream), 9)) + b"0\r\n\r\n"))
        answer = await proxy.ask(JS)
        assert (answer.body, answer.whole, answer.header("content-encoding")) == (stream, True, "gzip")
        assert answer.head.raw.lower().count(b"content-encoding") == 1


COSTLY = {
    "nested": b"[" * 100_000,
    "nested-messages": b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "many-keys": b"{" + b",".join(b'"%08x":0' % n for n in range(100_000)) + b"}",
    "nan": b'{"messages":[],"temperature":NaN}',
    "bom": b"\xef\xbb\xbf" + J,
    "utf-16": J.decode().encode("utf-16"),
    "invalid-utf-8": J.replace(b"hi", b"\xff\xfe"),
    "trailing": J + b"x",
    "two": J + J,
    "empty": b"",
    "list": b"[]",
    "null-messages": b'{"model":"m","messages":null}',
    "text-messages": b'{"model":"m","messages":"hi"}',
    "model-list": b'{"model":["m"],"messages":[]}',
    "model-twice": b'{"model":"a","model":"b","messages":[]}',
    "model-escaped": b'{"model":"a","mod\\u0065l":"b","messages":[]}',
    "stream-text": b'{"stream":"true","messages":[]}',
}
ODD = {"long-integer": b'{"messages":[],"seed":' + b"9" * 5_000_000 + b"}", "half-a-pair": J.replace(b"hi", b"\\ud800")}


async def test_l08_costly_and_broken_json_is_refused_at_once_and_never_a_500() -> None:
    async with ScriptedBackend() as backend, watched(one(backend), backend) as proxy:
        for name, body in {**COSTLY, **ODD}.items():
            began = time.process_time()
            answer = await proxy.ask(body)
            assert answer.status == 400 or (name in ODD and answer.status == 200), (name, answer.status)
            assert time.process_time() - began < 0.5, f"{name} cost {time.process_time() - began:.3f} s"
        assert {seen.body for seen in backend.requests} <= set(ODD.values())


async def test_l09_with_all_descriptors_taken_good_traffic_goes_on_and_the_loop_rests() -> None:
    async with ScriptedBackend() as backend, processed(one(backend, keys="anonymous: {lane: fast}\n"), descriptors=160) as proxy:
        async with await proxy.connect() as good:
            assert (await good.ask(post(key=None))).status == 200
            idle = [await RawClient.connect(proxy.port) for _ in range(300)]
            for _ in range(20):
                assert (await good.ask(post(key=None))).status == 200
            before, began = proxy.cpu_s(), time.monotonic()
            await asyncio.sleep(1.0)
            assert proxy.cpu_s() - before < 0.5 * (time.monotonic() - began), "it spins on accept"
            assert proxy.descriptors() < 160
            closed = sum(1 for caller in idle if _is_closed(caller))
            assert closed >= 200, "the surplus is turned away"
            for caller in idle:
                caller.close()

            async def answered() -> bool:
                try:
                    async with await proxy.connect() as caller:
                        return (await caller.ask(post(key=None))).status == 200
                except (EOFError, ConnectionError):
                    return False

            await eventually(answered)


def _is_closed(caller: RawClient) -> bool:
    try:
        return caller.sock.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


async def test_l10_connections_from_one_address_are_limited_and_others_are_not() -> None:
    async with ScriptedBackend() as backend, watched(one(backend), backend) as proxy:
        limit(proxy, connections_per_address=3)
        callers = [await proxy.connect() for _ in range(3)]
        for caller in callers:
            assert (await caller.ask(GET)).status == 200
        async with await proxy.connect() as surplus:
            assert await surplus.until_closed() in ("fin", "reset")
        async with await RawClient.connect(proxy.port, timeout_s=5, from_host="127.0.0.2") as other:
            assert (await other.ask(GET)).status == 200, "another address is another's"
            await eventually(lambda: proxy.fairlane.door.addresses["127.0.0.2"] == 1)
        await eventually(lambda: "127.0.0.2" not in proxy.fairlane.door.addresses)
        callers.pop().close()
        await eventually(lambda: len(proxy.fairlane.door.connections) == 2)
        callers.append(await proxy.connect())
        assert (await callers[-1].ask(GET)).status == 200
        for caller in callers:
            caller.close()
        await eventually(lambda: not proxy.fairlane.door.addresses)


async def test_l11_a_pipelining_caller_who_never_reads_is_not_answered_without_end() -> None:
    async with ScriptedBackend() as backend, watched(one(backend), backend) as proxy:
        caller = await proxy.connect(rcvbuf_bytes=4096, timeout_s=0.5)
        sent = 0
        try:
            for _ in range(400):
                await caller.send(GET * 1000)
                sent += 1000
        except TimeoutError:
            pass
        (connection,) = proxy.fairlane.door.connections
        assert connection.transport.get_write_buffer_size() < 512 * 1024, "answers pile up"
        assert connection._held_bytes < 512 * 1024
        assert sent < 400_000, "reading stopped"
        caller.timeout_s = 10.0
        for _ in range(2000):  # and goes on in order when it reads
            assert (await caller.response()).status == 200
        caller.close()


async def flood(exchange: Any) -> None:
    while True:
        exchange.write(scripts.chunk(ev("x" * 4000)))
        await exchange.drained()


async def test_l12_stalled_readers_cost_little_each_and_the_backend_is_held_back() -> None:
    count = 40
    text = "anonymous: {lane: fast}\n"
    async with ScriptedBackend(scripts.head(), flood, sndbuf_bytes=8192) as backend:
        async with processed(one(backend, cap=64, keys=text)) as proxy:
            warm = [await proxy.connect(rcvbuf_bytes=4096) for _ in range(4)]
            for caller in warm:
                await caller.send(post(JS, key=None))
                await caller.head()
                caller.close()
            await backend.all_closed(10)
            before = proxy.rss_bytes()
            stalled = [await proxy.connect(rcvbuf_bytes=4096) for _ in range(count)]
            for caller in stalled:
                await caller.send(post(JS, key=None))
            await backend.seen(4 + count)
            last = -1.0
            while last != (last := max(seen.last_byte_at or 0.0 for seen in backend.requests)):  # until all stand still
                await asyncio.sleep(0.3)
            grown = (proxy.rss_bytes() - before) / count
            assert grown < 256 * 1024, f"{grown / 1024:.0f} KiB for each"
            for caller in stalled:
                caller.close()
            await backend.all_closed(10)


@pytest.mark.parametrize("reads", [False, True], ids=["stalled", "slow"])
async def test_l12_who_does_not_read_is_given_up_and_both_sides_close(reads: bool) -> None:
    async with ScriptedBackend(scripts.head(), flood, sndbuf_bytes=8192) as backend, watched(one(backend), backend) as proxy:
        limit(proxy, write_stall_s=0.4, write_slow_bps=1_000_000, write_slow_s=0.8)
        caller = await proxy.connect(rcvbuf_bytes=4096)
        await caller.send(post(JS))
        await caller.head()
        reading = asyncio.ensure_future(_sip(caller)) if reads else None
        await backend.all_closed(10)
        (line,) = await proxy.logged(1)
        assert line["outcome"] == "write_timeout"
        if reading is not None:
            reading.cancel()
        caller.close()
        assert await proxy.metric("fairlane_backend_state", backend="b") == 0


async def _sip(caller: RawClient) -> None:
    loop = asyncio.get_running_loop()
    while await loop.sock_recv(caller.sock, 2048):
        await asyncio.sleep(0.05)


async def test_l12_a_slow_reader_above_the_bound_is_served_to_the_end() -> None:
    body = os.urandom(8_000_000)  # more than the kernel takes off our hands
    async with ScriptedBackend(scripts.raw(scripts.answer(body)), sndbuf_bytes=8192) as backend:
        backend.named["alive"] = (scripts.ok(),)
        async with watched(one(backend), backend) as proxy:
            limit(proxy, write_stall_s=0.5, write_slow_s=1.0)
            caller = await proxy.connect(rcvbuf_bytes=4096)
            await caller.send(post())
            await caller.head()
            (connection,) = proxy.fairlane.door.connections
            await eventually(lambda: connection._writing_paused, 20.0)  # the kernel takes no more off our hands
            got, slow_until = b"", time.monotonic() + 2.0
            while len(got) < len(body):
                got += await caller.body_piece()
                if time.monotonic() < slow_until:
                    await asyncio.sleep(0.2)
            assert got == body
            caller.close()


HEADS = {
    "one-mebibyte": [scripts.raw(b"HTTP/1.1 200 OK\r\nX: " + b"a" * (1 << 20) + b"\r\n\r\n")],
    "ten-thousand-fields": [scripts.raw(b"HTTP/1.1 200 OK\r\n" + b"X: 1\r\n" * 10_000 + b"\r\n")],
    "endless-102": [scripts.raw(b"HTTP/1.1 102 Processing\r\n\r\n" * 1000)],
}


@pytest.mark.parametrize("kind", HEADS)
async def test_l13_a_backends_endless_head_is_a_protocol_error(kind: str) -> None:
    async with ScriptedBackend(*HEADS[kind]) as bad, ScriptedBackend() as good, watched(two(bad, good), bad, good) as proxy:
        proxy.alive = False
        assert (await proxy.ask(JS)).header("x-fairlane-attempts") == "2"
        await bad.all_closed()


async def test_l13_a_head_that_trickles_ends_at_the_first_token_deadline() -> None:
    trickle = scripts.rate(b"HTTP/1.1 200 OK\r\nX: " + b"a" * 10_000, 200)
    async with ScriptedBackend(trickle) as backend, watched(one(backend, pool=", timeouts: {first_token: 500ms}"), backend) as proxy:
        assert (await proxy.ask(JS)).status == 504
        await backend.all_closed()


async def test_l14_tiny_chunks_cost_little_and_are_joined_for_the_backend() -> None:
    body = J + b" " * (128 * 1024)
    tiny = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    async with ScriptedBackend() as backend, watched(one(backend), backend) as proxy:
        began = time.process_time()
        async with await proxy.connect() as caller:
            assert (await caller.ask(A + CHUNKED + tiny)).status == 200
        seen = await backend.seen(1)
        assert seen.body == body and seen.header("content-length") == str(len(body))
        answer = scripts.answer("").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked") + tiny
        backend.then(scripts.raw(answer))
        got = await proxy.ask()
        assert (got.body, got.whole) == (body, True)
        assert time.process_time() - began < 5.0


async def test_l16_beyond_the_places_the_answer_is_429_at_once() -> None:
    async with ScriptedBackend(scripts.hang()) as backend:
        async with watched(one(backend, cap=1, pool=", queue: {places: 100, max_wait: 60s}"), backend) as proxy:
            held = [await proxy.connect() for _ in range(101)]
            for caller in held:
                await caller.send(post())
            await eventually(lambda: proxy.state.waiting == 100)
            answer = await proxy.ask()
            assert (answer.status, answer.header("x-fairlane-reason")) == (429, "queue_full")
            assert int(answer.header("retry-after")) >= 1
            for caller in held:
                caller.close()


async def test_l19_a_broken_form_is_relayed_or_refused_and_nothing_loops() -> None:
    head = b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer sk-A\r\n"
    head += b"Content-Type: multipart/form-data; boundary=%b\r\n"
    part = b'--b\r\nContent-Disposition: form-data; name="f%d"\r\n\r\nx\r\n'
    async with ScriptedBackend() as backend, watched(one(backend), backend) as proxy:
        began = time.process_time()
        for boundary, body in (
            (b"b", b"--b\r\nno end"),
            (b"b", b"".join(part % n for n in range(10_000)) + b"--b--\r\n"),
            (b"b", b"--b" * 50_000),
            (b"other", part % 1 + b"--b--\r\n"),
            (b"", b"x"),
            (b'"', b"--"),
        ):
            async with await proxy.connect() as caller:
                await caller.send(head % boundary + b"Content-Length: %d\r\n\r\n" % len(body) + body)
                assert (await caller.response()).status in (200, 400)
        assert {seen.target for seen in backend.requests} <= {"/v1/audio/transcriptions"}
        assert time.process_time() - began < 3.0


def test_the_defaults_are_those_of_the_catalogue() -> None:
    limits = Limits()
    assert (limits.head_s, limits.body_idle_s, limits.body_s, limits.keep_alive_s) == (10.0, 10.0, 120.0, 75.0)
    assert (limits.write_stall_s, limits.write_slow_bps, limits.write_slow_s) == (30.0, 64, 60.0)
