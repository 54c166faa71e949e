"""Another client than `fairlane bench`: the standard library's HTTP, in threads.

`python -m tests.lab.second_client URL STREAMS SECONDS WORDS TOKENS`. It shares no line with the load generator. Prints, as JSON, the
times to the first token and per output token of each answer. (OpenAI's SDK was tried: it takes 7 ms of its own for each request, in
threads, which is 6 % of a first token after 112 ms.)
"""

from __future__ import annotations

import http.client
import json
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

WORDS = ["able", "area", "army", "away", "baby", "back", "ball", "band", "bank", "base"]


def ask(connection: http.client.HTTPConnection, words: int, tokens: int) -> tuple[float, float]:
    """One answer: seconds to its first token, seconds per token after it."""
    message = {"role": "user", "content": " ".join(random.choices(WORDS, k=words))}
    body = json.dumps({"model": "fake", "max_tokens": tokens, "stream": True, "ignore_eos": True, "messages": [message]})
    began_at = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    lines = [(time.perf_counter(), line) for line in answer]
    came_at = [
        at
        for at, line in lines
        if line.startswith(b"data: {") and any(choice["delta"].get("content") for choice in json.loads(line[6:])["choices"])
    ]
    assert answer.status == 200 and len(came_at) == tokens
    return came_at[0] - began_at, (came_at[-1] - came_at[0]) / (tokens - 1)


def main() -> None:
    url, (streams, seconds, words, tokens) = sys.argv[1], map(int, sys.argv[2:6])
    until_at = time.perf_counter() + seconds

    def stream(_: int) -> list[tuple[float, float]]:
        connection = http.client.HTTPConnection(urlsplit(url).netloc)
        connection.connect()
        found = []
        while time.perf_counter() < until_at:
            found.append(ask(connection, words, tokens))
        return found

    with ThreadPoolExecutor(streams) as pool:
        found = [pair for answers in pool.map(stream, range(streams)) for pair in answers]
    print(json.dumps({"ttft_s": [ttft for ttft, _ in found], "tpot_s": [tpot for _, tpot in found]}))


if __name__ == "__main__":
    main()
