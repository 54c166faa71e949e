"""Which metrics are there, with which labels, and what does each mean? The one list: exposition and documentation read it."""

from __future__ import annotations

from dataclasses import dataclass

# Boundaries, in the metric's unit. Those of TTFT, TPOT and long durations are vLLM's and llm-d's, so that panels for both compare.
TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
TPOT_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
LONG_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 240.0, 480.0, 960.0)
CONNECT_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
OVERHEAD_S = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1)
PROMPT_TOKENS = (32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 65536.0, 131072.0)


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One metric family. `kind` is counter, gauge or histogram; `bounds` are a histogram's, before SLO targets are added."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str
    bounds: tuple[float, ...] = ()


def _counter(name: str, labels: str, text: str) -> Metric:
    return Metric(f"fairlane_{name}_total", "counter", tuple(labels.split()), text)


def _gauge(name: str, labels: str, text: str) -> Metric:
    return Metric(f"fairlane_{name}", "gauge", tuple(labels.split()), text)


def _histogram(name: str, labels: str, bounds: tuple[float, ...], text: str) -> Metric:
    return Metric(f"fairlane_{name}", "histogram", tuple(labels.split()), text, bounds)


REQUESTS = _counter("requests", "pool lane outcome code", "Requests that ended; pool and lane are empty if it never reached a pool.")
REQUEST_S = _histogram("request_seconds", "pool lane", LONG_S, "Time from the request received to its end, whatever its outcome.")
TTFT = _histogram("ttft_seconds", "pool lane", TTFT_S, "Time from the request received to its first token handed to the caller.")
TPOT = _histogram("tpot_seconds", "pool lane", TPOT_S, "Per request: (last token - first token) / (output tokens - 1).")
BACKEND_TTFT = _histogram("backend_ttft_seconds", "backend", TTFT_S, "Time from the request sent to the backend to its first token.")
ITL = _histogram("itl_seconds", "backend", TPOT_S, "Each gap between two streamed pieces of an answer.")
CONNECT = _histogram("backend_connect_seconds", "backend", CONNECT_S, "Time to open a new connection to the backend, TLS included.")
QUEUE_WAIT = _histogram("queue_wait_seconds", "pool lane outcome", LONG_S, "Each wait that ended, by how it ended.")
PROMPT = _histogram("prompt_tokens", "pool", PROMPT_TOKENS, "Input tokens per request, estimated where the backend did not tell.")
OVERHEAD = _histogram("overhead_seconds", "phase", OVERHEAD_S, "Fairlane's own work per request, without any waiting.")
FAILOVERS = _counter("failovers", "pool from to reason", "Changes of the platform that serves a pool, failing over and coming back.")
ATTEMPTS = _counter("attempts", "backend outcome", "Tries of requests at a backend, by how each ended.")
RETRIES = _counter("retries", "pool result", "Tries after the first: ok, failed; denied: due but never sent.")
TOKENS = _counter("tokens", "pool lane platform direction source", "Tokens read and written by backends; source tells who counted.")
SLO_TOKENS = _counter("slo_tokens", "pool platform", "Output tokens of requests that met the SLO.")
SLO_REQUESTS = _counter(
    "slo_requests", "pool lane", "Streamed requests the SLO speaks of: all but those their caller spoiled or left in good time."
)
SLO_MET = _counter("slo_met", "pool lane", "Streamed requests answered whole, within every target of the SLO.")
DISCONNECTS = _counter("disconnects", "phase", "Callers that left before their answer was whole, by what they were waiting for.")
CLIENT_RETRIES = _counter("client_retries", "pool", "Requests that the caller's SDK says it had tried before.")
COST = _counter(
    "cost_dollars", "pool platform", "Spent: rented hours by the slot-seconds a pool used, idle time to the first pool, tokens by usage."
)
LOG_DROPPED = _counter("log_lines_dropped", "", "Access log lines given up: log too slow or failing, or a flood of strangers.")

QUEUE_WAITING = _gauge("queue_waiting", "pool lane", "Requests waiting.")
QUEUE_OLDEST = _gauge("queue_oldest_seconds", "pool lane", "How long the oldest waiting request has waited; 0 if none.")
QUEUE_PLACES = _gauge("queue_places", "pool", "Requests that may wait at once.")
QUEUE_BYTES = _gauge("queue_bytes", "", "Bytes of the bodies that wait.")
RETRIES_IN_FLIGHT = _gauge("retries_in_flight", "", "Retries at backends, which the retry budget bounds.")
STREAMS = _gauge("backend_streams", "backend platform", "Requests in flight.")
MAX_STREAMS = _gauge("backend_max_streams", "backend platform", "The cap: most requests in flight.")
USABLE_STREAMS = _gauge("backend_usable_streams", "backend platform", "What of the cap may be used now: less of it in slow start.")
BACKEND_STATE = _gauge("backend_state", "backend platform", "0 healthy, 1 probing, 2 ejected, 3 drained.")
IN_SERVICE = _gauge("platform_in_service", "pool platform", "1 while the platform receives new requests of the pool.")
LEVERS = _gauge("levers", "lever", "Levers that an operator has pulled and not taken back; they last until the restart.")
PINNED = _gauge("platform_pinned", "pool platform", "1 while an operator has the pool pinned to the platform, available or not.")
CAP_OVERRIDE = _gauge("backend_cap_override", "backend platform", "The operator's cap in place of the file's; 0: none.")
ARRIVAL_RATE = _gauge("arrival_rate", "pool", "Lambda: requests per second, over the last 5 minutes.")
GENERATION_S = _gauge("generation_seconds", "pool", "W: mean time a request holds its slot, over the last 5 minutes.")
NEEDED_STREAMS = _gauge("needed_streams", "pool", "Lambda x W, Little's law: streams needed at 100 % load.")
LOAD = _gauge("load_ratio", "pool", "Needed streams / streams of the platform in service; above 0.9 a queue hardly drains.")
RELOAD_OK = _gauge("config_last_reload_successful", "", "1 if the latest reading of the file was accepted.")
RELOADED_AT = _gauge("config_last_reload_timestamp_seconds", "", "When the file was last accepted, seconds since 1970.")
BUILD = _gauge("build_info", "version python", "Always 1; says what runs.")
SMOKES = _counter("smokes", "platform result", "Smoke tests of a backend that ended, on schedule or before requests go back.")
SMOKE_OK = _gauge("smoke_last_successful", "platform", "0 if the platform's latest smoke test failed; 1 before the first one too.")
REFUSALS = _counter("platform_refusals", "platform", "Times a platform began to refuse our own credential, or a model name of the file.")
REFUSES_US = _gauge("platform_refuses_us", "platform", "1 while the platform is left alone for refusing our credential or a model name.")

METRICS = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
