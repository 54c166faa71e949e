"""Does `server.trace` record what happened, and never text, and can the simulator use it?"""

from __future__ import annotations

import json
from pathlib import Path

from lab.engine.engine import Engine
from lab.simulator import trace
from lab.simulator.asked import Asked
from lab.simulator.run import simulate
from proxy.settings.loader import load
from tests.proxy.serving import TWO_LANES, serving
from tests.wire import ScriptedBackend, scripts

SERVER = 'server: {listen: "127.0.0.1:0", admin: "127.0.0.1:0", access_log: off, trace: trace.jsonl, drain: {grace: 0s, timeout: 5s}}\n'


def body(tokens: int) -> bytes:
    message = {"role": "user", "content": "my secret plan is to say hello"}
    return json.dumps(
        {"model": "m", "stream": True, "max_tokens": tokens, "stream_options": {"include_usage": True}, "messages": [message]}
    ).encode()


async def test_arrivals_sizes_lanes_and_outcomes_are_recorded_and_replayed(tmp_path: Path) -> None:
    async with Engine(slots=4, ttft_s=0.02, tpot_s=0.002).serving() as engine:
        text = (
            TWO_LANES
            + f'platforms: {{p: {{probe: none, max_streams: 4, backends: {{b: "{engine.url}"}}}}}}\npools: {{main: {{primary: p}}}}\n'
        )
        async with serving(text, server=SERVER) as proxy:
            for key, tokens in (("sk-A", 5), ("sk-B", 20), ("sk-A", 1)):
                assert (await proxy.ask(body(tokens), key=key)).status == 200
            await proxy.at_rest()
            file = proxy.file.with_name("trace.jsonl")
            await proxy.until(lambda: file.read_bytes().count(b"\n") == 3)
            recorded = file.read_bytes()
            settings = load(str(proxy.file), {}).settings
    assert b"secret" not in recorded
    assert b"hello" not in recorded
    lines = [json.loads(line) for line in recorded.splitlines()]
    assert [(line["lane"], line["key"], line["output_tokens"], line["max_tokens"]) for line in lines] == [
        ("fast", "A", 5, 5), ("slow", "B", 20, 20), ("fast", "A", 1, 1),
    ]  # fmt: skip
    assert {(line["outcome"], line["status"], line["pool"], line["backend"], line["attempts"]) for line in lines} == {
        ("ok", 200, "main", "b", 1)
    }
    assert all(0.02 <= line["ttft_s"] <= line["generation_s"] < 5.0 for line in lines)
    copy = tmp_path / "trace.jsonl"
    copy.write_bytes(recorded)
    assert [line.at for line in trace.read(copy, ["fast", "slow"])] == sorted(line["at"] for line in lines)
    found, _ = simulate("x", settings, Asked(trace=copy))
    assert (found["lanes"]["fast"]["answered"], found["lanes"]["slow"]["answered"]) == (2, 1)


async def test_who_was_refused_is_recorded_too_and_a_reload_turns_it_off() -> None:
    async with ScriptedBackend(scripts.ok()) as backend:
        text = (
            TWO_LANES
            + f'platforms: {{p: {{probe: none, max_streams: 1, backends: {{b: "{backend.url}"}}}}}}\npools: {{main: {{primary: p}}}}\n'
        )
        routed = text + "routes: [{when: {lane: fast}, pool: main}]\n"
        async with serving(routed, server=SERVER) as proxy:
            assert (await proxy.ask(key="sk-B")).status == 404
            file = proxy.file.with_name("trace.jsonl")
            await proxy.until(lambda: file.read_bytes().count(b"\n") == 1)
            line = json.loads(file.read_bytes())
            assert (line["outcome"], line["pool"], line["generation_s"]) == ("not_found", "", None)
            proxy.file.write_text(proxy.file.read_text().replace("trace: trace.jsonl, ", ""))
            assert (await proxy.fairlane.reload()).ok
            assert (await proxy.ask(key="sk-A")).status == 200
            await proxy.at_rest()
        assert file.parent.exists() is False or file.read_bytes().count(b"\n") == 1
