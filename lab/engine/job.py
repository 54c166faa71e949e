"""What leaves the engine as one answer makes progress? Its events or its body, or what a fault makes of them."""

from __future__ import annotations

import enum

from lab.engine.answers import Embedding, Form
from lab.engine.faults import Fault
from lab.engine.model import Answer
from lab.engine.wire import LAST_CHUNK, STREAM_HEAD, Connection, chunk, whole

ENDLESS_TOKENS = 1 << 40  # of an answer that stalls: it never leaves its slot by itself


class Step(enum.Enum):
    """What has become of an answer."""

    GOES_ON = "goes on"
    FINISHED = "finished"  # whole
    BROKEN = "broken"  # ended by its fault
    STALLED = "stalled"  # by its fault, with its connection and its slot


class Job:
    """One request being answered."""

    __slots__ = ("answer", "arrived_at", "connection", "fault", "form", "last_at", "streamed", "tokens")

    def __init__(self, connection: Connection, form: Form, tokens: int, fault: Fault, arrived_at: float) -> None:
        self.connection = connection
        self.form = form
        self.tokens = tokens
        self.fault = fault
        self.arrived_at = arrived_at
        self.last_at = arrived_at  # of its latest token
        self.streamed = bool(form.ask.stream) and not isinstance(form, Embedding)
        self.answer = Answer(
            form.prompt_tokens,
            ENDLESS_TOKENS if fault.fault == "stall" else tokens,
            every=1 if self.streamed or fault.in_mid_answer else tokens,
            pace=fault.factor if fault.fault == "slow" else 1.0,
            host=self,
        )

    def progressed(self, produced: int) -> Step:
        """Sends what is due now that so many tokens are produced: called for every `answer.every`-th."""
        fault = self.fault
        fails = fault.in_mid_answer and produced >= min(fault.after + 1, self.tokens)
        if not self.streamed:
            if fails:
                return self._break_whole()
            if produced < self.tokens:
                return Step.GOES_ON
            self.connection.done(whole(200, self.form.whole(self.tokens)))
            return Step.FINISHED
        out = [STREAM_HEAD, *map(chunk, self.form.opening())] if produced == 1 else []
        if not fails or produced <= fault.after:
            out.append(chunk(self.form.token(produced - 1)))
        if fails:
            return self._break_stream(b"".join(out))
        if produced < self.tokens:
            self.connection.write(b"".join(out))
            return Step.GOES_ON
        out += map(chunk, self.form.closing(self.tokens))
        self.connection.done(b"".join(out) + LAST_CHUNK)
        return Step.FINISHED

    def _break_stream(self, out: bytes) -> Step:
        match self.fault.fault, self.fault.by:
            case "stall", _:
                self.connection.write(out)
                return Step.STALLED
            case "error_in_stream", _:
                self.connection.done(out + chunk(self.form.error_event("the engine failed on request")) + LAST_CHUNK)
            case _, "reset":
                self.connection.write(out)
                self.connection.reset()
            case _, "early_end":
                self.connection.end(out)
            case _:
                self.connection.done(out + LAST_CHUNK)
        return Step.BROKEN

    def _break_whole(self) -> Step:
        response = whole(200, self.form.whole(self.tokens))
        part = response[: -len(response) // 4]  # the head and some of the body
        match self.fault.fault, self.fault.by:
            case "stall", _:
                self.connection.write(part)
                return Step.STALLED
            case "error_in_stream", _:
                self.connection.done(whole(500, self.form.error_body("the engine failed on request", 500)))
            case _, "reset":
                self.connection.write(part)
                self.connection.reset()
            case _, "early_end":
                self.connection.end(part)
            case _:
                self.connection.done(whole(200, self.form.whole(self.tokens, finished=False)))
        return Step.BROKEN
