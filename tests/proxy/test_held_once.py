"""How often is a long prompt held while its request waits? Once: what Python has allocated is looked through for anything that large."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc

import pytest

from tests.proxy.serving import TWO_LANES, serving
from tests.wire import JS, ScriptedBackend, post, scripts

MIB = 2**20
LARGE_BYTES = 64 * 1024  # buffers of the event loop and the like are smaller


def large() -> list[int]:
    """The sizes of everything large that was allocated since tracing began."""
    gc.collect()
    return sorted(trace.size for trace in tracemalloc.take_snapshot().traces if trace.size >= LARGE_BYTES)


@pytest.mark.parametrize("pieces", [1, 5])
async def test_a_prompt_of_a_mib_is_held_once_while_it_waits(pieces: int) -> None:
    text = b"a word " * (MIB // 7)
    whole = post(b'{"model":"m","stream":true,"messages":[{"role":"user","content":"' + text + b'"}]}')
    sent = [whole[at : at + len(whole) // pieces + 1] for at in range(0, len(whole), len(whole) // pieces + 1)]
    gate = asyncio.Event()
    async with ScriptedBackend() as backend:
        backend.then(
            scripts.head(), scripts.event("a"), scripts.wait(gate), scripts.chunked(scripts.finish() + scripts.DONE), scripts.end()
        )
        file = TWO_LANES + (
            f'platforms: {{p: {{probe: none, backends: {{b: {{url: "{backend.url}", max_streams: 1}}}}}}}}\n'
            "pools: {main: {primary: p}}\n"
        )
        async with serving(file) as proxy, await proxy.connect() as first, await proxy.connect() as second:
            await first.send(post(JS))
            await first.head()
            tracemalloc.start()
            try:
                for piece in sent:
                    await second.send(piece)
                    await asyncio.sleep(0.01)
                await proxy.until(lambda: proxy.state.waiting == 1)
                found = large()
            finally:
                tracemalloc.stop()
            gate.set()
            assert (await second.head()).status == 200
        assert len(found) == 1, found
        assert found[0] < 1.01 * MIB
