"""What does the engine tell Prometheus? vLLM's metric names, so that what reads a real engine reads this one."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

# vLLM's own buckets (vllm/v1/metrics/loggers.py).
TTFT_BOUNDS_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
GAP_BOUNDS_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
TOTAL_BOUNDS_S = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0)


class Histogram:
    """Counts of seconds by bucket."""

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self._bounds_s = bounds_s
        self._counts = [0] * (len(bounds_s) + 1)
        self._sum_s = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        """Counts one value, or the same value several times."""
        self._counts[bisect_left(self._bounds_s, seconds)] += times
        self._sum_s += seconds * times

    def lines(self, name: str, labels: str) -> list[str]:
        """Its samples, buckets cumulative."""
        out: list[str] = []
        total = 0
        for bound, count in zip((*map(str, self._bounds_s), "+Inf"), self._counts, strict=True):
            total += count
            out.append(f'{name}_bucket{{{labels},le="{bound}"}} {total}')
        return [*out, f"{name}_count{{{labels}}} {total}", f"{name}_sum{{{labels}}} {self._sum_s}"]


@dataclass
class Tallies:
    """What an engine counts from its start."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: int = 0
    ttft_s: Histogram = field(default_factory=lambda: Histogram(TTFT_BOUNDS_S))
    gap_s: Histogram = field(default_factory=lambda: Histogram(GAP_BOUNDS_S))
    total_s: Histogram = field(default_factory=lambda: Histogram(TOTAL_BOUNDS_S))


def exposition(tallies: Tallies, *, model: str, running: int, waiting: int, usage_ratio: float) -> bytes:
    """The body of `/metrics`, Prometheus text format 0.0.4."""
    escaped = model.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    labels = f'engine="0",model_name="{escaped}"'
    single = [
        ("gauge", "vllm:num_requests_running", "Number of requests in model execution batches.", running),
        ("gauge", "vllm:num_requests_waiting", "Number of requests waiting to be processed.", waiting),
        ("gauge", "vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", usage_ratio),
        ("gauge", "vllm:gpu_cache_usage_perc", "The same by its name before vLLM 0.10.", usage_ratio),
        ("counter", "vllm:prompt_tokens_total", "Number of prefill tokens processed.", tallies.prompt_tokens),
        ("counter", "vllm:generation_tokens_total", "Number of generation tokens processed.", tallies.generation_tokens),
        ("counter", "vllm:request_success_total", "Count of successfully processed requests.", tallies.finished),
    ]
    histograms = [
        ("vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", tallies.ttft_s),
        ("vllm:time_per_output_token_seconds", "Histogram of time per output token in seconds.", tallies.gap_s),
        ("vllm:inter_token_latency_seconds", "The same by its name since vLLM 0.11.", tallies.gap_s),
        ("vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", tallies.total_s),
    ]
    lines: list[str] = []
    for kind, name, help_text, value in single:
        lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}", f"{name}{{{labels}}} {value}"]
    for name, help_text, histogram in histograms:
        lines += [f"# HELP {name} {help_text}", f"# TYPE {name} histogram", *histogram.lines(name, labels)]
    return ("\n".join(lines) + "\n").encode()
