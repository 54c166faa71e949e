"""Another client than `fairlane bench`: OpenAI's own SDK in threads. `python -m tests.lab.second_client URL STREAMS SECONDS WORDS TOKENS`.

It shares no line with the load generator. Prints, as JSON, the times to the first token and per output token of each answer.
"""

from __future__ import annotations

import json
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import openai

WORDS = ["able", "area", "army", "away", "baby", "back", "ball", "band", "bank", "base"]


def ask(client: openai.OpenAI, words: int, tokens: int) -> tuple[float, float]:
    """One answer: seconds to its first token, seconds per token after it."""
    text = " ".join(random.choices(WORDS, k=words))
    began_at = time.perf_counter()
    stream = client.chat.completions.create(
        model="fake", max_tokens=tokens, stream=True, messages=[{"role": "user", "content": text}], extra_body={"ignore_eos": True}
    )
    came_at = [time.perf_counter() for chunk in stream if chunk.choices and chunk.choices[0].delta.content]
    assert len(came_at) == tokens
    return came_at[0] - began_at, (came_at[-1] - came_at[0]) / (tokens - 1)


def main() -> None:
    url, (streams, seconds, words, tokens) = sys.argv[1], map(int, sys.argv[2:6])
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    for _ in range(2):
        ask(client, words, 2)  # connections, imports: not what is compared
    until_at = time.perf_counter() + seconds

    def stream(_: int) -> list[tuple[float, float]]:
        found = []
        while time.perf_counter() < until_at:
            found.append(ask(client, words, tokens))
        return found

    with ThreadPoolExecutor(streams) as pool:
        found = [pair for answers in pool.map(stream, range(streams)) for pair in answers]
    print(json.dumps({"ttft_s": [ttft for ttft, _ in found], "tpot_s": [tpot for _, tpot in found]}))


if __name__ == "__main__":
    main()
