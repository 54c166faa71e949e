"""Does the latency model do its arithmetic? Against numbers worked out by hand, and against itself told in another way."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from lab.engine.model import Answer, Batch, Latency, Progress

PLAIN = Latency(slots=4, ttft_s=1.0, tpot_s=0.1, prefill_rate=100.0, load_factor=2.5, prefill_slowdown=0.5)


def run(batch: Batch) -> list[Progress]:
    """Everything that will come, woken exactly when the batch asks for it."""
    done: list[Progress] = []
    while (at := batch.next_at()) is not None:
        done += batch.advance(at)
    return done


def instants(progress: list[Progress], answer: Answer) -> list[float]:
    return [item.at for item in progress if item.answer is answer]


def test_alone_the_first_token_comes_after_reading_and_ttft_then_one_each_tpot() -> None:
    batch, answer = Batch(PLAIN, 0.0), Answer(50, 4)
    batch.arrive(answer, 0.0)
    assert instants(run(batch), answer) == pytest.approx([1.5, 1.6, 1.7, 1.8])
    assert batch.taken == 0


@pytest.mark.parametrize(("together", "gap_s"), [(1, 0.1), (2, 0.15), (3, 0.2), (4, 0.25)])
def test_the_gap_grows_linearly_with_the_slots_taken(together: int, gap_s: float) -> None:
    batch = Batch(PLAIN, 0.0)
    answers = [Answer(100, 3) for _ in range(together)]
    for answer in answers:
        batch.arrive(answer, 0.0)
    progress = run(batch)
    for answer in answers:
        first, second, _ = instants(progress, answer)
        assert (first, second - first) == pytest.approx((2.0, gap_s))


def test_decoding_is_slower_while_a_prompt_is_read_and_only_then() -> None:
    batch, first, second = Batch(PLAIN, 0.0), Answer(0, 40), Answer(75, 1)
    batch.arrive(first, 0.0)  # tokens from 1.0 on
    batch.arrive(second, 2.0)  # read from 2.0 to 2.75, in the batch until 3.75
    at = instants(run(batch), first)
    gaps = [round(after - before, 9) for before, after in pairwise(at)]
    assert gaps[:10] == [0.1] * 10 and gaps[-1] == 0.1
    assert gaps[11:13] == [0.225, 0.225]  # 0.15 for two in the batch, half as long again
    assert gaps[15:19] == [0.15] * 4


def test_those_above_the_slots_wait_in_order_of_arrival() -> None:
    batch = Batch(PLAIN, 0.0)
    answers = [Answer(100, 1) for _ in range(10)]
    for answer in answers:
        batch.arrive(answer, 0.0)
    assert (batch.taken, batch.waiting) == (4, 6)
    batch.leave(answers[5], 0.5)
    progress = run(batch)
    assert [item.answer for item in progress] == answers[:5] + answers[6:]
    assert [round(item.at, 6) for item in progress] == [2.0] * 4 + [4.0] * 4 + [6.0]


def test_one_that_leaves_gives_its_slot_on_at_once_and_only_once() -> None:
    batch = Batch(Latency(slots=1, ttft_s=1.0, tpot_s=1.0), 0.0)
    leaving, next_one, last = Answer(0, 10), Answer(0, 1), Answer(0, 1)
    for answer in (leaving, next_one, last):
        batch.arrive(answer, 0.0)
    batch.leave(leaving, 2.5)
    batch.leave(leaving, 2.5)
    assert (batch.taken, batch.waiting) == (1, 1)
    progress = run(batch)
    assert instants(progress, leaving) == [1.0, 2.0]
    assert (instants(progress, next_one), instants(progress, last)) == ([3.5], [4.5])


def test_one_that_leaves_while_its_prompt_is_read_slows_nobody_any_more() -> None:
    batch, first, second = Batch(PLAIN, 0.0), Answer(0, 40), Answer(1000, 1)
    batch.arrive(first, 0.0)
    batch.arrive(second, 2.0)
    batch.leave(second, 3.0)
    at = instants(run(batch), first)
    assert at[-1] - at[-2] == pytest.approx(0.1)


def test_one_that_is_held_keeps_its_slot_and_produces_nothing() -> None:
    batch = Batch(Latency(slots=1, ttft_s=1.0, tpot_s=1.0), 0.0)
    held, waiting = Answer(0, 10), Answer(0, 1)
    batch.arrive(held, 0.0)
    batch.arrive(waiting, 0.0)
    batch.hold(held, 1.5)
    assert instants(run(batch), held) == [1.0] and (batch.taken, batch.waiting) == (1, 1)
    batch.leave(held, 10.0)
    assert instants(run(batch), waiting) == [11.0]


def test_a_slow_answer_slows_nobody_else() -> None:
    batch = Batch(Latency(slots=8, ttft_s=1.0, tpot_s=0.1, load_factor=1.0), 0.0)
    slow, quick = Answer(0, 3, pace=3.0), Answer(0, 3)
    batch.arrive(slow, 0.0)
    batch.arrive(quick, 0.0)
    progress = run(batch)
    assert instants(progress, slow) == pytest.approx([3.0, 3.3, 3.6])
    assert instants(progress, quick) == pytest.approx([1.0, 1.1, 1.2])


@pytest.mark.parametrize("seed", range(20))
def test_ends_do_not_depend_on_how_often_anybody_looks(seed: int) -> None:
    """Told of each token, of the end only, or looking at odd moments: the same ends, and never more than the slots."""

    def ends(every: int, looks: bool) -> list[float]:
        rng, look = random.Random(seed), random.Random(seed + 1)
        batch, now, done = Batch(PLAIN, 0.0), 0.0, []
        answers = []
        for _ in range(60):
            now += rng.expovariate(2.0)
            answer = Answer(rng.randrange(200), rng.randrange(1, 40), every=every)
            answers.append(answer)
            batch.arrive(answer, now)
            if looks:
                done += batch.advance(now + look.random() * 0.001)
                now += 0.001
            else:
                now += 0.001
            assert batch.taken <= PLAIN.slots and (batch.waiting == 0 or batch.taken == PLAIN.slots)
        done += run(batch)
        assert [item.at for item in done] == sorted(item.at for item in done)
        end_at = {item.answer: item.at for item in done if item.produced == item.answer.output_tokens}
        return [end_at[answer] for answer in answers]

    each = ends(1, looks=True)
    assert ends(1000, looks=False) == pytest.approx(each)
    assert ends(7, looks=True) == pytest.approx(each)


def test_an_engine_without_latency_answers_at_once() -> None:
    batch, answer = Batch(Latency(slots=1, ttft_s=0.0, tpot_s=0.0), 5.0), Answer(0, 1000)
    batch.arrive(answer, 5.0)
    assert batch.next_at() == 5.0
    assert run(batch)[-1].at == pytest.approx(5.0, abs=1e-5)
