"""Who asked, when, as recorded? Reads what `server.trace` wrote, or anything of that form: one JSON object a line.

Needed is `at` (seconds, of any epoch) and `lane`; the rest is used where it is there. How long an answer took is `generation_s`; where a
request got none (it was refused), or the trace does not say, one is drawn from those of the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import TypeVar

import msgspec

from lab.simulator.workload import Caller, Sizes, size_draws
from policies.model import Request
from proxy.settings.problems import did_you_mean

N = TypeVar("N", int, float)


class Line(msgspec.Struct):
    """One arrival. Unknown keys are ignored."""

    at: float
    lane: str
    key: str = "anonymous"
    traffic: str = "interactive"
    path: str = "/v1/chat/completions"
    model: str | None = None
    prompt_tokens: int = 0
    max_tokens: int | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    turns: int = 0
    tools: bool = False
    json: bool = False
    images: bool = False
    task: str | None = None
    streamed: bool = True
    body_bytes: int = 0
    generation_s: float | None = None


class TraceError(ValueError):
    """The trace cannot be used; the message names the line."""


def read(path: Path, lanes: Sequence[str]) -> list[Line]:
    """The arrivals in order of time. TraceError: a line is no arrival, or names no lane of the file."""
    decode = msgspec.json.Decoder(Line).decode
    lines = []
    try:
        with path.open("rb") as file:
            for number, text in enumerate(file, 1):
                if not text.strip():
                    continue
                try:
                    line = decode(text)
                except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                    raise TraceError(f"{path}:{number}: {error}") from None
                if line.lane not in lanes:
                    raise TraceError(f'{path}:{number}: "{line.lane[:40]}" is no lane of the file{did_you_mean(line.lane, lanes)}')
                lines.append(line)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None
    if not lines:
        raise TraceError(f"{path}: holds no arrival")
    return sorted(lines, key=lambda line: line.at)


def callers(lines: Sequence[Line], lanes: Sequence[str], sizes: Sizes | None, seed: int) -> Iterator[Caller]:
    """The callers of a trace. `sizes`: instead of what was recorded."""
    began_at = lines[0].at
    known_s = [line.generation_s for line in lines if line.generation_s]
    known_tokens = [line.output_tokens for line in lines if line.output_tokens]
    generator = Random(f"{seed} trace")
    drawn_s = size_draws(sizes, f"{seed} trace")[0] if sizes is not None and sizes.service is not None else None
    lane_of = {name: index for index, name in enumerate(lanes)}
    for number, line in enumerate(lines):
        output_tokens = line.output_tokens or line.max_tokens or _one_of(known_tokens, generator, 1)
        prompt_tokens = line.input_tokens or line.prompt_tokens
        service_s = drawn_s() if drawn_s is not None else line.generation_s or _one_of(known_s, generator, 0.0)
        request = Request(
            f"trace-{number}", line.key, lane_of[line.lane], line.traffic, line.path, line.model, line.prompt_tokens, line.max_tokens,
            line.turns, line.tools, line.json, line.images, line.task, "", line.streamed, line.body_bytes,
        )  # fmt: skip
        yield Caller(line.at - began_at, request, service_s, prompt_tokens, output_tokens)


def says_how_long(lines: Sequence[Line]) -> bool:
    """Does some line say how long its answer took?"""
    return any(line.generation_s for line in lines)


def _one_of(known: Sequence[N], generator: Random, otherwise: N) -> N:
    return generator.choice(known) if known else otherwise
