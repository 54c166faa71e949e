"""Which metrics are there, with which labels, what does each mean, and what is to be done when it moves?

The one list: the exposition, docs/metrics.md, the dashboards and the checks of every query read it.
"""

from __future__ import annotations

from proxy.telemetry.metric import Metric
from proxy.telemetry.metric import counter as _counter
from proxy.telemetry.metric import gauge as _gauge
from proxy.telemetry.metric import histogram as _histogram

# Boundaries, in the metric's unit. Those of TTFT, TPOT and long durations are vLLM's and llm-d's, so that panels for both compare.
TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
TPOT_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
LONG_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 240.0, 480.0, 960.0)
CONNECT_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
OVERHEAD_S = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1)
LAG_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
PROMPT_TOKENS = (32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 65536.0, 131072.0)


# --- requests: what callers got ---

REQUESTS = _counter(
    "requests",
    "pool lane outcome code",
    "Requests that ended; pool and lane are empty if it never reached a pool.",
    "By outcome: queue_full and queue_timeout mean too little capacity, upstream_* a backend, malformed and unauthenticated a caller.",
)
REQUEST_S = _histogram(
    "request_seconds",
    "pool lane",
    LONG_S,
    "Time from the request received to its end, whatever its outcome.",
    "Refusals end at once and pull it down: for whole answers alone read fairlane_prompt_class_request_seconds.",
)
CLASS_REQUEST_S = _histogram(
    "prompt_class_request_seconds",
    "pool prompt",
    LONG_S,
    "E2E of whole answers, received to last byte, by prompt length in tokens.",
    "If every class rose, the backends are slower or queues longer; if only the mix of classes changed, it is the traffic.",
)
TTFT = _histogram(
    "ttft_seconds",
    "pool lane",
    TTFT_S,
    "Time from the request received to its first token handed to the caller.",
    "Compare with the queue's wait and the backend's TTFT: the larger of the two says whether to add capacity or to look at the engine.",
)
CLASS_TTFT = _histogram(
    "prompt_class_ttft_seconds",
    "pool prompt",
    TTFT_S,
    "TTFT by prompt length in tokens.",
    "Long prompts alone: reading them is the limit (prefill). Every class: queue or backend. No class, but the sum: the traffic shifted.",
)
TPOT = _histogram(
    "tpot_seconds",
    "pool lane",
    TPOT_S,
    "Per request: (last token - first token) / (output tokens - 1).",
    "Rises with the streams at a backend: above its target lower max_streams; with few streams look at the engine.",
)
PROMPT = _histogram(
    "prompt_tokens",
    "pool",
    PROMPT_TOKENS,
    "Input tokens per request, estimated where the backend did not tell.",
    "Longer prompts hold slots longer: check needed streams, and the routes that choose by prompt_tokens.",
)
DISCONNECTS = _counter(
    "disconnects",
    "phase",
    "Callers that left before their answer was whole, by what they were waiting for.",
    "queued: max_wait is longer than callers' patience; first_token: the backend is slow; streaming: usually their choice.",
)
CLIENT_RETRIES = _counter(
    "client_retries",
    "pool",
    "Requests that the caller's SDK says it had tried before.",
    "Rising together with refusals: callers ignore Retry-After, and the load is partly an echo.",
)

# --- the queue: who waits ---

QUEUE_WAIT = _histogram(
    "queue_wait_seconds",
    "pool lane outcome",
    LONG_S,
    "Each wait that ended, by how it ended.",
    "dispatched near the lane's max_wait: capacity is short. A low lane alone: the lanes above it take it all but its share.",
)
QUEUE_WAITING = _gauge(
    "queue_waiting",
    "pool lane",
    "Requests waiting.",
    "Bursts are what the queue is for; standing for minutes it means needed streams above the cap.",
)
QUEUE_OLDEST = _gauge(
    "queue_oldest_seconds",
    "pool lane",
    "How long the oldest waiting request has waited; 0 if none.",
    "Close to max_wait, the next refusals are timeouts. Rising while slots are free: no backend serves that model.",
)
QUEUE_MAX_WAIT = _gauge(
    "queue_max_wait_seconds",
    "pool lane",
    "The longest that a request of the lane may wait, out of the file.",
    "Moves with the file only.",
)
QUEUE_PLACES = _gauge(
    "queue_places",
    "pool",
    "Requests that may wait at once.",
    "Moves with the file and with the platform in service. More places do not add capacity, only waiting.",
)
QUEUE_BYTES = _gauge(
    "queue_bytes",
    "",
    "Bytes of the bodies that wait.",
    "At 256 MiB further requests are refused as queue_full, whatever places are free.",
)
LANE_RANK = _gauge("lane_rank", "lane", "Place of the lane in the file's order; 0 is served first.", "Moves with the file only.")
LANE_SHARE = _gauge(
    "lane_share_ratio", "lane", "Share of dispatches the lane is guaranteed while it waits; 0: none.", "Moves with the file only."
)

# --- backends and platforms: who answers ---

STREAMS = _gauge(
    "backend_streams",
    "backend platform",
    "Requests in flight.",
    "At the cap for long: see needed streams. At 0 while others work: see its state, and its weight.",
)
MAX_STREAMS = _gauge("backend_max_streams", "backend platform", "The cap: most requests in flight.", "Moves with the file only.")
USABLE_STREAMS = _gauge(
    "backend_usable_streams",
    "backend platform",
    "What of the cap may be used now: less of it in slow start.",
    "Below the cap for a minute after a recovery is the slow start.",
)
BACKEND_STATE = _gauge(
    "backend_state",
    "backend platform",
    "0 healthy, 1 probing, 2 ejected, 3 drained.",
    "2: why and until when stands in /debug/state; attempts by outcome say what it did. 3: someone pulled a lever.",
)
IN_SERVICE = _gauge(
    "platform_in_service",
    "pool platform",
    "1 while the platform receives new requests of the pool.",
    "No 1 in a pool: nobody serves it, callers get 503. Two: the primary is being ramped up again.",
)
STANDBY = _gauge(
    "platform_standby",
    "pool platform",
    "1 if the platform is a standby of the pool, 0 if it is a primary.",
    "Moves with the file only.",
)
FAILOVERS = _counter(
    "failovers",
    "pool from to reason",
    "Changes of the platform that serves a pool, failing over and coming back.",
    "One and back: look at the primary at leisure. Many: it flaps; drain it until it is mended.",
)
ATTEMPTS = _counter(
    "attempts",
    "backend outcome",
    "Tries of requests at a backend, by how each ended.",
    "upstream_connect: it is down. upstream_auth: it refuses our key or model. first_token_timeout: it hangs or is overloaded.",
)
RETRIES = _counter(
    "retries",
    "pool result",
    "Tries after the first: ok, failed; denied: due but never sent.",
    "ok: callers noticed nothing, and a backend needs a look. denied: no other backend was there, or no time.",
)
RETRIES_IN_FLIGHT = _gauge(
    "retries_in_flight",
    "",
    "Retries at backends, which the retry budget bounds.",
    "At a fifth of all in flight the budget holds further retries back.",
)
HEDGES = _counter(
    "hedges",
    "pool result",
    "Second attempts beside the first: won, lost, failed, cancelled; denied: due, but no idle backend or no budget.",
    "won is what they are for; mostly lost: the tail is not the backend's. denied: backends are busy, or 5 % are used up.",
)
CONTINUATIONS = _counter(
    "continuations",
    "pool result",
    "Broken streams that could be continued: ok, failed: the rest broke too; cancelled; denied: no other backend in time.",
    "ok: callers noticed a pause, and a backend needs a look. denied: they got an error event; add a backend, or free slots.",
)
BACKEND_TTFT = _histogram(
    "backend_ttft_seconds",
    "backend",
    TTFT_S,
    "Time from the request sent to the backend to its first token.",
    "One backend alone: look at that machine. All: longer prompts, or caps so high that the engine queues.",
)
ITL = _histogram(
    "itl_seconds",
    "backend",
    TPOT_S,
    "Each gap between two streamed pieces of an answer.",
    "A long tail with a good median: prompts being read between tokens (chunked prefill helps), or preemption.",
)
CONNECT = _histogram(
    "backend_connect_seconds",
    "backend",
    CONNECT_S,
    "Time to open a new connection to the backend, TLS included.",
    "Many or slow ones: the backend closes kept connections early, or the network is bad.",
)

# --- load: how much is needed ---

ARRIVAL_RATE = _gauge(
    "arrival_rate",
    "pool",
    "Lambda: requests per second, over the last 5 minutes.",
    "Compare with the file's demand; callers' retries count here as well.",
)
GENERATION_S = _gauge(
    "generation_seconds",
    "pool",
    "W: mean time a request holds its slot, over the last 5 minutes.",
    "Longer answers or slower tokens; either needs more streams for the same arrivals.",
)
NEEDED_STREAMS = _gauge(
    "needed_streams",
    "pool",
    "Lambda x W, Little's law: streams needed at 100 % load.",
    "Above 90 % of the caps for long: add a backend. A higher cap only moves the queue into the engine.",
)
LOAD = _gauge(
    "load_ratio",
    "pool",
    "Needed streams / streams of the platform in service; above 0.9 a queue hardly drains.",
    "As needed streams; it jumps when a smaller platform takes over.",
)

# --- promises: SLO ---

SLO_REQUESTS = _counter(
    "slo_requests",
    "pool lane",
    "Streamed requests the SLO speaks of: all but those their caller spoiled or left in good time.",
    "The denominator of attainment; silent where a pool has no targets.",
)
SLO_MET = _counter(
    "slo_met",
    "pool lane",
    "Streamed requests answered whole, within every target of the SLO.",
    "Its rate is the goodput. Falling while requests do not: see which target is missed.",
)
SLO_MISSED = _counter(
    "slo_missed",
    "pool lane target",
    "Requests of the SLO that missed it: ttft (first token late), tpot (tokens slow), unanswered (refused or broken); each counted once.",
    "ttft: waiting or reading prompts; tpot: too many streams at a backend; unanswered: see requests by outcome.",
)
SLO_TARGET = _gauge(
    "slo_target_seconds",
    "pool target",
    "The pool's targets, out of the file; 0: no target.",
    "Moves with the file only.",
)

SMOKES = _counter(
    "smokes",
    "platform result",
    "Smoke tests of a backend that ended, on schedule or before requests go back.",
    "failed: the log says which backend, which model and why; fairlane smoke FILE PLATFORM asks again.",
)
SMOKE_OK = _gauge(
    "smoke_last_successful",
    "platform",
    "0 if the platform's latest smoke test failed; 1 before the first one too.",
    "0 on a standby: it would not take over. Look at its key, quota and model names before the primary fails.",
)
REFUSALS = _counter(
    "platform_refusals",
    "platform",
    "Times a platform began to refuse our own credential, or a model name of the file.",
    "The key has expired or was revoked, the account is out of money, or the model was renamed.",
)
REFUSES_US = _gauge(
    "platform_refusing",
    "platform",
    "1 while the platform is left alone for refusing our credential or a model name.",
    "It is asked again every minute; a new key takes a reload.",
)

# --- tokens and money ---

TOKENS = _counter(
    "tokens",
    "pool lane platform direction source",
    "Tokens read and written by backends; source tells who counted.",
    "A growing share of estimates: a backend has stopped sending usage, and cost by tokens becomes a guess.",
)
SLO_TOKENS = _counter(
    "slo_tokens",
    "pool platform",
    "Output tokens of requests that met the SLO.",
    "What the money is spent for; the denominator of cost under the SLO.",
)
STREAMED = _counter(
    "streamed_requests",
    "pool lane",
    "Requests that asked for a stream.",
    "Answers that are not streamed have neither TTFT nor TPOT: where their share grows, SLO figures speak of fewer requests.",
)
COST = _counter(
    "cost_dollars",
    "pool platform",
    "Spent: rented hours by the slot-seconds a pool used, idle time to the first pool, tokens by usage.",
    "A standby that costs: see who is in service. Steady cost with falling tokens: machines idle.",
)

# --- levers: what an operator holds by hand ---

LEVERS = _gauge(
    "levers",
    "lever",
    "Levers that an operator has pulled and not taken back; they last until the restart.",
    "Above 0 in the morning: take it back, or write it into the file; /debug/state says how.",
)
PINNED = _gauge(
    "platform_pinned",
    "pool platform",
    "1 while an operator has the pool pinned to the platform, available or not.",
    "While it is 1, failback and hold do not decide who serves.",
)
CAP_OVERRIDE = _gauge(
    "backend_cap_override",
    "backend platform",
    "The operator's cap in place of the file's; 0: none.",
    "If it proved right, write it into the file as max_streams.",
)

# --- Fairlane itself ---

OVERHEAD = _histogram(
    "overhead_seconds",
    "phase",
    OVERHEAD_S,
    "Fairlane's own work per request, without any waiting.",
    "Rising with traffic: the core is busy, start another replica. intake alone: very large bodies.",
)
LOOP_LAG = _histogram(
    "loop_lag_seconds",
    "",
    LAG_S,
    "How late the event loop comes to its timer, ten times a second: its delay for everybody.",
    "Above 50 ms: the core is full or taken by a neighbour; every stream stutters by as much.",
)
LOG_DROPPED = _counter(
    "log_lines_dropped",
    "",
    "Access log lines given up: log too slow or failing, or a flood of strangers.",
    "Disk full or slow, the reader of a pipe stuck, or someone without a key calls thousands of times.",
)
RELOAD_OK = _gauge(
    "config_last_reload_successful",
    "",
    "1 if the latest reading of the file was accepted.",
    "0: the file on disk is not what runs. fairlane check FILE says why.",
)
RELOADED_AT = _gauge(
    "config_last_reload_timestamp_seconds",
    "",
    "When the file was last accepted, seconds since 1970.",
    "To be compared with whatever else changed at that moment.",
)
BUILD = _gauge("build_info", "version python", "Always 1; says what runs.", "Two versions at once: a rollout is under way or stuck.")

METRICS = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
