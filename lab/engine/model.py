"""When does a continuous-batching engine produce which token? The latency arithmetic: no clock, no I/O.

Model. At most `slots` answers are in the batch; the rest wait in arrival order. An answer that enters has its prompt read for
prompt_tokens / prefill_rate, and its first token `ttft_s` after that. Every decoding step yields one token for every answer
that is past its first, so one gap between tokens holds for all of them at any instant, n being the answers in the batch:

    gap(n) = tpot_s x (1 + (load_factor - 1) x (n - 1) / (slots - 1)) x (1 + prefill_slowdown while a prompt is being read)

Alone an answer therefore runs at tpot_s, with all slots taken at tpot_s x load_factor. (Linear growth of the step with the batch:
Orca, OSDI 2022, figure 9; Sarathi-Serve, OSDI 2024, for decodes slowed by a prefill in the same batch.)

Method. Let steps(t) be the integral of dt / gap: the decoding steps made so far, a real number. An answer whose first token came
at steps s has its k-th at s + k - 1, whatever happens to the load in between. Deadlines counted in steps never move, so a heap
ordered by them stays ordered when the gap changes: a token costs O(log slots), and so does a whole answer to a host that only
wants to know its end (`every`).
"""

from __future__ import annotations

import enum
import heapq
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

GAP_MIN_S = 1e-9  # so that an engine without latency makes a finite number of steps


@dataclass(frozen=True, slots=True)
class Latency:
    """What an engine's hardware and model make of it. The defaults are those of the command line."""

    slots: int = 8
    ttft_s: float = 0.08
    tpot_s: float = 0.02
    prefill_rate: float = 4000.0  # prompt tokens per second
    load_factor: float = 2.3  # gap with all slots taken / gap alone
    prefill_slowdown: float = 0.5  # 0.5: gaps are half as long again

    def gap_s(self, taken: int, reading: bool) -> float:
        """How long between two tokens of one answer, with so many slots taken? Seconds, above 0."""
        load_ratio = (taken - 1) / (self.slots - 1) if self.slots > 1 and taken > 1 else 0.0
        gap_s = self.tpot_s * (1.0 + (self.load_factor - 1.0) * load_ratio)
        return max(GAP_MIN_S, gap_s * (1.0 + self.prefill_slowdown) if reading else gap_s)

    def reading_s(self, prompt_tokens: int) -> float:
        """How long is a prompt being read?"""
        return prompt_tokens / self.prefill_rate


class Phase(enum.Enum):
    """Where an answer is. WAITING -> READING -> STARTING -> DECODING -> ENDED; HELD from the middle three, ENDED from all."""

    WAITING = "waiting"  # for a slot
    READING = "reading"  # its prompt
    STARTING = "starting"  # first token to come
    DECODING = "decoding"
    HELD = "held"  # keeps its slot and produces nothing
    ENDED = "ended"


class Answer:
    """One answer to be produced. `every`: the host is told of the first token, then of every so many, and of the last."""

    __slots__ = ("every", "host", "output_tokens", "pace", "phase", "produced", "prompt_tokens")

    def __init__(self, prompt_tokens: int, output_tokens: int, *, every: int = 1, pace: float = 1.0, host: Any = None) -> None:
        self.prompt_tokens = prompt_tokens
        self.output_tokens = max(1, output_tokens)
        self.every = max(1, every)
        self.pace = pace  # 2: takes twice as long as others, at every point
        self.host = host
        self.produced = 0
        self.phase = Phase.WAITING


class Progress(NamedTuple):
    """At `at`, `answer` had `produced` tokens: its first, its `every`-th, or its last."""

    answer: Answer
    produced: int
    at: float


class Batch:
    """One engine's slots, and the line before them. Time is an argument, in seconds, and never runs backwards.

    `arrive`, `leave` and `hold` may be called at any time; what became due is handed out by the next `advance`.
    """

    def __init__(self, latency: Latency, now: float) -> None:
        self.latency = latency
        self.taken = 0  # slots
        self._line: OrderedDict[Answer, None] = OrderedDict()
        self._reading = 0
        self._now = now
        self._steps = 0.0  # decoding steps made until _now
        self._gap_s = latency.gap_s(0, False)
        self._instants: list[tuple[float, int, Answer]] = []  # ends of READING and STARTING
        self._tokens: list[tuple[float, int, Answer]] = []  # next token, in steps
        self._order = 0
        self._due: list[Progress] = []

    @property
    def waiting(self) -> int:
        """How many answers wait for a slot?"""
        return len(self._line)

    def arrive(self, answer: Answer, now: float) -> None:
        """Takes a slot, or the last place of the line."""
        self._run(now)
        if self.taken < self.latency.slots:
            self._enter(answer)
            self._load_changed()
        else:
            self._line[answer] = None

    def leave(self, answer: Answer, now: float) -> None:
        """The answer ends here, wherever it is; its slot goes to the next in line. Nothing if it has ended."""
        self._run(now)
        if answer.phase is Phase.WAITING:
            self._line.pop(answer, None)
            answer.phase = Phase.ENDED
        elif answer.phase is not Phase.ENDED:
            self._end(answer)

    def hold(self, answer: Answer, now: float) -> None:
        """The answer keeps its slot and produces nothing more until it leaves."""
        self._run(now)
        if answer.phase in (Phase.READING, Phase.STARTING, Phase.DECODING):
            self._reading -= answer.phase is Phase.READING
            answer.phase = Phase.HELD
            self._load_changed()

    def advance(self, now: float) -> list[Progress]:
        """What has been produced since the last call, in order of time?"""
        self._run(now)
        due, self._due = self._due, []
        return due

    def next_at(self) -> float | None:
        """When must `advance` be called at the latest? None: when nothing is being produced."""
        if self._due:
            return self._now
        instant_at, token_at = self._next_instant(), self._next_token()
        return None if instant_at == token_at == float("inf") else min(instant_at, token_at)

    def _run(self, now: float) -> None:
        while True:
            instant_at, token_at = self._next_instant(), self._next_token()
            if min(instant_at, token_at) > now:
                break
            if instant_at <= token_at:
                self._move(instant_at)
                self._instant(heapq.heappop(self._instants)[2])
            else:
                self._move(token_at)
                steps, _, answer = heapq.heappop(self._tokens)
                self._steps = steps  # what _move came to, without its rounding
                self._token(answer)
        self._move(now)

    def _move(self, at: float) -> None:
        if at > self._now:
            self._steps += (at - self._now) / self._gap_s
            self._now = at

    def _next_instant(self) -> float:
        heap = self._instants
        while heap and heap[0][2].phase not in (Phase.READING, Phase.STARTING):
            heapq.heappop(heap)  # left or held since
        return heap[0][0] if heap else float("inf")

    def _next_token(self) -> float:
        heap = self._tokens
        while heap and heap[0][2].phase is not Phase.DECODING:
            heapq.heappop(heap)
        return max(self._now, self._now + (heap[0][0] - self._steps) * self._gap_s) if heap else float("inf")

    def _enter(self, answer: Answer) -> None:
        self.taken += 1
        self._reading += 1
        answer.phase = Phase.READING
        self._at_instant(answer, self.latency.reading_s(answer.prompt_tokens))

    def _instant(self, answer: Answer) -> None:
        if answer.phase is Phase.READING:
            self._reading -= 1
            self._load_changed()
            answer.phase = Phase.STARTING
            self._at_instant(answer, self.latency.ttft_s)
        else:
            answer.phase = Phase.DECODING
            self._produce(answer, 1)

    def _token(self, answer: Answer) -> None:
        self._produce(answer, min(answer.every, answer.output_tokens - answer.produced))

    def _produce(self, answer: Answer, tokens: int) -> None:
        answer.produced += tokens
        self._due.append(Progress(answer, answer.produced, self._now))
        left = answer.output_tokens - answer.produced
        if left == 0:
            self._end(answer)
            return
        self._order += 1
        heapq.heappush(self._tokens, (self._steps + min(answer.every, left) * answer.pace, self._order, answer))

    def _end(self, answer: Answer) -> None:
        self._reading -= answer.phase is Phase.READING
        answer.phase = Phase.ENDED
        self.taken -= 1
        if self._line:
            self._enter(self._line.popitem(last=False)[0])
        self._load_changed()

    def _at_instant(self, answer: Answer, delay_s: float) -> None:
        self._order += 1
        heapq.heappush(self._instants, (self._now + delay_s * answer.pace, self._order, answer))

    def _load_changed(self) -> None:
        self._gap_s = self.latency.gap_s(self.taken, self._reading > 0)
