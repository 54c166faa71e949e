"""Do the options of one command line belong together? Composes them into a run, or says which of them contradict each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab.bench import options as spelt
from lab.bench.demand import Demand, Load
from lab.bench.forms import form as spelt_form
from lab.bench.options import Options
from lab.bench.target import Trust

ROUNDS = 3


def options(
    *,
    urls: Sequence[str],
    models: Sequence[str],
    keys: Sequence[str],
    rate: str | None,
    arrivals: str,
    concurrency: str | None,
    trace: Path | None,
    endpoint: str,
    rounds: int | None,
    duration: str,
    prompt_tokens: str,
    output_tokens: str,
    lanes: Sequence[str],
    slo: str | None,
    find_max: bool,
    per_hour: Sequence[str],
    per_million: Sequence[str],
    weights: str,
    floor: int,
    timeout: str,
    ca: Path | None,
    insecure: bool,
    seed: int,
    html: Path | None,
    baseline: Path | None,
    fail_if: Sequence[str],
    json: bool,
) -> Options:
    """The run that was asked for. Raises ValueError with what is wrong and the remedy."""
    if sum((bool(rate or concurrency), trace is not None, find_max)) > 1:
        raise ValueError("one of a ladder (--rate, --concurrency), --trace and --find-max at a time")
    if find_max and slo is None:
        raise ValueError("--find-max: the most that keeps which SLO? Add --slo ttft=1s,tpot=150ms")
    if html is not None and not html.parent.is_dir():
        raise ValueError(f"--html: there is no folder {html.parent}")
    outputs = spelt.lengths("--output-tokens", output_tokens)
    mix = spelt.lanes(lanes, with_shares=trace is None)
    form = spelt_form(endpoint)
    replayed, left_out = spelt.trace(trace, mix, outputs, form) if trace is not None else ((), {})
    if ca is not None and insecure:
        raise ValueError("--ca and --insecure: believe this authority, or anybody; keep one of them")
    trust = Trust(ca, insecure)
    trust.context()  # a file that cannot be read is said now
    demand = Demand(
        prompts=spelt.lengths("--prompt-tokens", prompt_tokens),
        outputs=outputs,
        arrivals=spelt.arrivals(arrivals),
        lanes=mix,
        trace=replayed,
        seed=seed,
        form=form,
    )
    earlier = spelt.baseline(baseline) if baseline is not None else None
    ladder = bool(concurrency) or not (rate or trace or find_max)
    return Options(
        platforms=spelt.platforms(urls, keys, models, per_hour, per_million),
        demand=demand,
        loads=(Load(),) if replayed else spelt.loads(rate, concurrency),
        rounds=rounds or (ROUNDS if ladder else 1),
        duration_s=(replayed[-1].at_s or 0.0) + 1.0 if replayed else spelt.seconds("--duration", duration),
        slo=spelt.slo(slo) if slo is not None else None,
        find_max=find_max,
        weights=spelt.weights(weights),
        weights_name=weights,
        floor=floor,
        timeout_s=spelt.seconds("--timeout", timeout),
        trust=trust,
        left_out=left_out,
        baseline=earlier,
        conditions=spelt.conditions(fail_if, earlier),
        html=html,
        json=json,
    )
