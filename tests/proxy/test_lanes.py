"""Do caps, places and lanes hold on the live proxy? Many callers at once, against engines that count."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter

from lab.engine.engine import Engine
from tests.proxy.serving import TWO_LANES, Serving, serving
from tests.wire import JS, ScriptedBackend, in_one_of, post, scripts


def file(url: str, cap: str, pool: str = "", lanes: str = "") -> str:
    return (
        TWO_LANES
        + lanes
        + f'platforms: {{p: {{probe: none, backends: {{b: {{url: "{url}", max_streams: {cap}}}}}}}}}\n'
        + f"pools: {{main: {{primary: p{pool}}}}}\n"
    )


def asking(tokens: int) -> bytes:
    return json.dumps({"model": "m", "stream": True, "max_tokens": tokens, "messages": [{"role": "user", "content": "hi"}]}).encode()


async def test_two_hundred_callers_never_exceed_a_cap_by_formula_and_all_are_answered() -> None:
    async with Engine(slots=16, ttft_s=0.01, tpot_s=0.002, load_factor=1.0).serving() as engine:
        text = file(engine.url, "{rps: 2, generation_time: 8s}", ", queue: {places: 184, max_wait: 60s}")
        async with serving(text) as proxy:
            answers = await asyncio.gather(*(proxy.ask(asking(10), key="sk-A" if n % 2 else "sk-B") for n in range(200)))
            assert Counter(answer.status for answer in answers) == {200: 200}
            assert all(answer.whole and answer.body.endswith(b"data: [DONE]\n\n") for answer in answers)
            log = engine.log
            assert (log.at_most_held, log.at_most_waiting) == (16, 0)
            await proxy.at_rest()


async def test_ten_streams_with_default_places_take_twelve_of_forty_and_refuse_the_rest_honestly() -> None:
    gate = asyncio.Event()
    async with ScriptedBackend(scripts.wait(gate), scripts.ok()) as backend, serving(file(backend.url, "10")) as proxy:
        asked = [asyncio.ensure_future(proxy.ask()) for _ in range(40)]
        await proxy.until(lambda: sum(task.done() for task in asked) == 28)
        refused = [task.result() for task in asked if task.done()]
        assert {(answer.status, answer.header("x-fairlane-reason")) for answer in refused} == {(429, "queue_full")}
        assert all(1 <= int(answer.header("retry-after")) <= 60 for answer in refused)
        assert all(int(answer.header("retry-after-ms")) == 1000 * int(answer.header("retry-after")) for answer in refused)
        await backend.until(lambda: backend.active == 10)
        gate.set()
        assert Counter([(await task).status for task in asked]) == {200: 12, 429: 28}
        assert backend.max_active == 10
        await proxy.at_rest()
        assert await proxy.metric("fairlane_requests_total", outcome="queue_full", code="429") == 28


async def test_fast_goes_first_slow_gets_its_tenth_and_order_holds_inside_a_lane() -> None:
    """40 slow wait on one slot, then 30 fast: of the next 33 dispatches 2 to 5 are slow, never more than 9 fast in a row."""
    async with ScriptedBackend() as backend:
        lanes = "lanes: {fast: {max_wait: 60s}, slow: {max_wait: 60s, share: 10%}}\n"
        async with serving(file(backend.url, "1", ", queue: {places: 100}", lanes)) as proxy:
            gates = [asyncio.Event() for _ in range(71)]
            for gate in gates:
                backend.then(scripts.wait(gate), scripts.ok())
            asked = [asyncio.ensure_future(proxy.ask(key="sk-B", x_mark="slow-first"))]
            await backend.seen(1)
            for count, (key, lane) in enumerate([("sk-B", "slow")] * 40 + [("sk-A", "fast")] * 30, 1):
                asked.append(asyncio.ensure_future(proxy.ask(key=key, x_mark=f"{lane}-{count:02d}")))
                await proxy.until(lambda count=count: proxy.state.waiting == count)  # type: ignore[misc]
            for number, gate in enumerate(gates, 1):
                await backend.seen(number)
                gate.set()
            assert Counter([(await task).status for task in asked]) == {200: 71}
            marks = [str(seen.header("x-mark")) for seen in backend.requests][1:]
            assert marks[0].startswith("fast")
            assert 2 <= sum(mark.startswith("slow") for mark in marks[:33]) <= 5
            runs = "".join(mark[0] for mark in marks[:33]).split("s")
            assert max(map(len, runs)) <= 9
            for lane in ("fast", "slow"):
                of_lane = [mark for mark in marks if mark.startswith(lane)]
                assert of_lane == sorted(of_lane)
            assert backend.max_active == 1


async def test_a_full_queue_pushes_out_the_newest_slow_for_a_fast() -> None:
    gate = asyncio.Event()
    async with (
        ScriptedBackend(scripts.wait(gate), scripts.ok()) as backend,
        serving(file(backend.url, "1", ", queue: {places: 2}")) as proxy,
    ):
        asked = [asyncio.ensure_future(proxy.ask())]
        await backend.seen(1)
        slow = [asyncio.ensure_future(proxy.ask(key="sk-B")) for _ in range(2)]
        await proxy.until(lambda: proxy.state.waiting == 2)
        asked.append(asyncio.ensure_future(proxy.ask()))
        await asyncio.wait(slow, return_when=asyncio.FIRST_COMPLETED)
        (displaced,) = [task.result() for task in slow if task.done()]
        assert (displaced.status, displaced.header("x-fairlane-reason")) == (429, "displaced")
        gate.set()
        assert [(await task).status for task in asked] == [200, 200]


async def test_who_waits_too_long_is_told_so_and_the_lane_can_only_be_lowered() -> None:
    gate = asyncio.Event()
    lanes = "lanes: {fast: {max_wait: 60s}, slow: {max_wait: 300ms}}\n"
    async with ScriptedBackend(scripts.wait(gate), scripts.ok()) as backend:
        async with serving(file(backend.url, "1", ", queue: {places: 5}", lanes)) as proxy:
            first = asyncio.ensure_future(proxy.ask())
            await backend.seen(1)
            for key, wish in (("sk-A", "slow"), ("sk-B", "fast"), ("sk-B", "slow")):
                answer = await proxy.ask(key=key, x_fairlane_lane=wish)
                assert (answer.status, answer.header("x-fairlane-reason")) == (429, "queue_timeout")
                assert answer.header("x-fairlane-lane") == "slow"
                assert int(answer.header("x-fairlane-queue-ms")) >= 290
                assert answer.header("x-fairlane-attempts") == "0"
            gate.set()
            assert (await first).status == 200


async def test_two_lanes_at_twice_the_capacity() -> None:
    """The mission in one test, twice as fast: fast is all answered and early, slow gets the rest, the engine never queues."""
    slots, tokens, tpot_s, offered, seconds = 16, 25, 0.02, {"sk-A": 10.0, "sk-B": 50.0}, 8.0
    lanes = "lanes: {fast: {max_wait: 900ms}, slow: {max_wait: 900ms, share: 10%}}\n"

    async def once() -> list[tuple[str, tuple[int, float]]]:
        async with Engine(slots=slots, ttft_s=0.01, tpot_s=tpot_s, load_factor=1.0).serving() as engine:
            async with serving(file(engine.url, str(slots), ", queue: {places: 32}", lanes)) as proxy:
                random_ = random.Random(1)
                asked: list[tuple[str, asyncio.Task[tuple[int, float]]]] = []
                began_at = at = time.monotonic()
                while at < began_at + seconds:
                    at += random_.expovariate(sum(offered.values()))
                    await asyncio.sleep(max(0.0, at - time.monotonic()))
                    key = random_.choices(list(offered), list(offered.values()))[0]
                    asked.append((key, asyncio.ensure_future(_first_token(proxy, key, tokens))))
                got = [(key, await task) for key, task in asked]
                assert (engine.log.at_most_waiting, engine.log.at_most_held <= slots) == (0, True)
                return got

    def verdict(got: list[tuple[str, tuple[int, float]]]) -> None:
        fast = [answer for key, answer in got if key == "sk-A"]
        slow = [answer for key, answer in got if key == "sk-B"]
        assert {status for status, _ in fast} == {200}, "every fast caller is answered"
        waits = [sorted(ttft_s for status, ttft_s in lane if status == 200) for lane in (fast, slow)]
        for part in (0.5, 0.95):
            begun = [lane[int(len(lane) * part)] for lane in waits]
            assert begun[0] < begun[1], "fast begin before slow, the late as well as the usual"
        answered = sum(status == 200 and ttft_s < 1.0 for _, (status, ttft_s) in got)
        capacity = seconds * slots / (0.01 + tokens * tpot_s)
        assert answered > 0.75 * capacity, "little of the capacity is lost"
        assert 0.05 * len(slow) < sum(status == 200 for status, _ in slow) < len(slow), "slow is not starved, and is what gives way"

    await in_one_of(2, once, verdict)


async def _first_token(proxy: Serving, key: str, tokens: int) -> tuple[int, float]:
    began_at = time.monotonic()
    async with await proxy.connect() as caller:
        await caller.send(post(asking(tokens), key=key))
        head = await caller.head()
        ttft_s = time.monotonic() - began_at
        await caller.body()
        return head.status, ttft_s


async def test_a_later_pool_and_an_earlier_one_share_the_caps_of_their_platform() -> None:
    async with Engine(slots=8, ttft_s=0.005, tpot_s=0.001).serving() as engine:
        text = (
            TWO_LANES
            + f'platforms: {{p: {{probe: none, backends: {{b: {{url: "{engine.url}", max_streams: 4}}}}}}}}\n'
            + "pools: {chat: {primary: p, queue: {places: 100}}, batch: {primary: p, queue: {places: 100, max_wait: 1h}}}\n"
            + "routes: [{when: {traffic: batch}, pool: batch}, {pool: chat}]\n"
        )
        async with serving(text) as proxy:
            both = [proxy.ask(JS, x_fairlane_traffic="batch" if n % 2 else "interactive") for n in range(60)]
            assert {answer.status for answer in await asyncio.gather(*both)} == {200}
            assert engine.log.at_most_held == 4
            await proxy.at_rest()
