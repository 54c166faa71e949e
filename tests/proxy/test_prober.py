"""Are probes spread in time, and does each go on whatever the others meet?"""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from proxy.prober import Probe, Prober
from tests.wire import Blackhole, ScriptedBackend, eventually


async def test_ten_backends_are_not_asked_at_one_instant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.prober.EVERY_S", 1.0)
    async with AsyncExitStack() as stack:
        backends = [await stack.enter_async_context(ScriptedBackend()) for _ in range(10)]
        prober = Prober(lambda name, alive: None)
        prober.watch({f"b{number}": Probe(f"{backend.url}/health") for number, backend in enumerate(backends)})
        await eventually(lambda: all(len(backend.requests) >= 2 for backend in backends))
        await prober.close()
        firsts = [backend.requests[0].arrived_at for backend in backends]
        assert max(firsts) - min(firsts) > 0.5
        assert sorted(firsts) == firsts, "spread over one round, in their order"
        pauses = [backend.requests[1].arrived_at - backend.requests[0].arrived_at for backend in backends]
        assert max(pauses) - min(pauses) > 0.01, "and drifting apart"


async def test_a_backend_that_does_not_answer_keeps_no_other_from_being_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.prober.EVERY_S", 0.05)
    monkeypatch.setattr("proxy.prober.TIMEOUT_S", 0.2)
    async with ScriptedBackend() as good:
        with Blackhole() as hole:
            told: list[tuple[str, bool]] = []
            prober = Prober(lambda name, alive: told.append((name, alive)))
            prober.watch({"hole": Probe(f"{hole.url}/health"), "good": Probe(f"{good.url}/health")})
            await eventually(lambda: told.count(("hole", False)) >= 2)
            await prober.close()
            assert told.count(("good", True)) >= 4
