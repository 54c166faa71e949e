"""What does `fairlane bench` get through Fairlane: at each endpoint, over TLS, and with a recorded day asked once more?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.bench.command import options
from lab.bench.run import measure
from lab.bench.target import Unreachable
from lab.engine.engine import Engine
from tests.lab.commands import fairlane
from tests.lab.test_bench_options import USUAL
from tests.proxy.serving import SERVER, TWO_LANES, Serving, serving
from tests.wire import in_one_of, post

FILES = Path(__file__).parents[1] / "settings" / "files"
TLS = SERVER.replace("server: {", f'server: {{tls: {{cert: "{FILES / "server.pem"}", key: "{FILES / "server.key"}"}}, ') % "off"
TRACED = SERVER.replace("server: {", "server: {trace: trace.jsonl, ") % "off"


def quick() -> Engine:
    return Engine(slots=8, ttft_s=0.01, tpot_s=0.002, load_factor=1.0, prefill_slowdown=0.0)


def file(engine: Engine) -> str:
    return (
        TWO_LANES
        + f'platforms: {{p: {{probe: none, max_streams: 8, backends: {{b: "{engine.url}"}}}}}}\n'
        + "pools: {main: {primary: p, queue: {places: 50, max_wait: 20s}}}\n"
    )


async def report_of(url: str, **more: Any) -> dict[str, Any]:
    run = options(
        **{**USUAL, "urls": [url], "models": ["m"], "keys": ["sk-A"], "prompt_tokens": "60", "output_tokens": "11", "floor": 2, **more}
    )
    report: dict[str, Any] = await measure(run)
    return report


async def recorded(proxy: Serving, count: int) -> list[dict[str, Any]]:
    """What the server wrote of so many requests, in order of arrival."""
    await proxy.at_rest()
    path = proxy.file.with_name("trace.jsonl")
    await proxy.until(lambda: path.exists() and path.read_bytes().count(b"\n") == count, 10.0)
    return sorted(map(json.loads, path.read_text().splitlines()), key=lambda line: float(line["at"]))


@pytest.mark.parametrize("endpoint", ["chat", "completions", "messages"])
async def test_each_endpoint_is_asked_in_its_own_form(endpoint: str) -> None:
    async def once() -> dict[str, Any]:
        async with quick().serving() as engine, serving(file(engine)) as proxy:
            report = await report_of(proxy.url, endpoint=endpoint, rate="20", arrivals="constant", duration="500ms")
            await proxy.at_rest()
        (platform,) = report["platforms"]
        step: dict[str, Any]
        (step,) = platform["steps"]
        assert step["requests"]["answered"] == step["requests"]["offered"] >= 9
        assert platform["prompts"]["calibrated"] and step["prompt_tokens_mean"] == pytest.approx(60, abs=2)
        assert step["output_tokens_mean"] == 11, "as many as were asked for, by the API's own usage"
        assert step["ttft_s"]["p50"] >= 0.01
        assert report["settings"]["endpoints"] == [endpoint]
        return step

    def verdict(step: dict[str, Any]) -> None:
        assert step["tpot_s"]["p50"] == pytest.approx(0.002, rel=0.8)

    await in_one_of(3, once, verdict)


async def test_over_tls_an_authority_is_named_or_anybody_is_believed() -> None:
    async with quick().serving() as engine, serving(file(engine), server=TLS) as proxy:
        url = f"https://localhost:{proxy.port}"
        usual: dict[str, Any] = {"rate": "20", "duration": "300ms", "arrivals": "constant"}
        with pytest.raises(Unreachable, match="--ca FILE"):
            await report_of(url, **usual)
        for trust in ({"ca": FILES / "server.pem"}, {"insecure": True}):
            report = await report_of(url, **usual, **trust)
            (platform,) = report["platforms"]
            assert platform["floor"]["tls_s"]["p50"] > 0.0, "what the handshake takes is told apart"
            assert platform["steps"][0]["requests"]["answered"] >= 5
        await proxy.at_rest()


async def test_a_recorded_day_is_asked_again(tmp_path: Path) -> None:
    """Lanes, endpoints, lengths, and the times between: what a second server records is what the first did."""
    day = [  # lane, path, streamed, output tokens
        ("sk-A", "/v1/chat/completions", True, 9),
        ("sk-B", "/v1/completions", True, 17),
        ("sk-B", "/v1/messages", True, 5),
        ("sk-A", "/v1/embeddings", False, 0),
        ("sk-A", "/v1/chat/completions", False, 12),
        ("sk-B", "/v1/messages", False, 3),
    ]
    text = "some words to make a prompt of which the length is to be kept, if nothing else of it " * 4
    async with quick().serving() as engine:
        async with serving(file(engine), server=TRACED) as proxy:
            for key, path, streamed, tokens in day:
                asked: dict[str, Any] = {"model": "m", "stream": streamed, "max_tokens": tokens or 1}
                if streamed and path != "/v1/messages":
                    asked["stream_options"] = {"include_usage": True}
                asked |= {"prompt": text, "input": text, "messages": [{"role": "user", "content": text}]}
                async with await proxy.connect() as caller:
                    assert (await caller.ask(post(json.dumps(asked).encode(), path=path, key=key))).status == 200
            first = await recorded(proxy, len(day))
        trace = tmp_path / "day.jsonl"
        trace.write_text("".join(json.dumps(line) + "\n" for line in first))
        kept = [line for line in first if line["path"] != "/v1/embeddings"]

        async def once() -> list[dict[str, Any]]:
            async with serving(file(engine), server=TRACED) as proxy:
                report = await report_of(proxy.url, trace=trace, keys=[], lanes=["fast=sk-A", "slow=sk-B"])
                (step,) = report["platforms"][0]["steps"]
                assert step["requests"]["answered"] == len(day) - 1
                calibrating = 4  # each lane's key once, and two lengths
                second = (await recorded(proxy, calibrating + len(day) - 1))[calibrating:]
            assert any("1 lines of the trace ask /v1/embeddings" in warning for warning in report["warnings"])
            for key in ("lane", "path", "streamed", "output_tokens"):
                assert [line[key] for line in second] == [line[key] for line in kept], key
            for one, other in zip(kept, second, strict=True):
                assert other["input_tokens"] == pytest.approx(one["input_tokens"], abs=3)
            return second

        def verdict(second: list[dict[str, Any]]) -> None:
            for one, other in zip(kept, second, strict=True):
                assert other["at"] - second[0]["at"] == pytest.approx(one["at"] - kept[0]["at"], abs=0.2)

        await in_one_of(3, once, verdict)


def test_the_command_line_knows_them() -> None:
    wrong = fairlane("bench", "--url", "https://127.0.0.1:9", "--endpoint", "chats")
    assert wrong.returncode == 2 and "chat, completions, messages" in " ".join(wrong.stderr.replace("│", " ").split())
    both = fairlane("bench", "--url", "https://127.0.0.1:9", "--insecure", "--ca", str(FILES / "server.pem"))
    assert both.returncode == 2 and "keep one of them" in " ".join(both.stderr.replace("│", " ").split())
    empty = fairlane("bench", "--url", "https://127.0.0.1:9", "--ca", str(FILES / "every_key.yaml"))
    assert empty.returncode == 2 and "holds no certificates" in " ".join(empty.stderr.replace("│", " ").split())
