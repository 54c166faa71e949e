"""What is counted for one pool and lane, for one platform in it, for one backend? Counters and histograms, bound once."""

from __future__ import annotations

from bisect import bisect_left

from policies.model import Outcome
from proxy.telemetry import catalogue, labels
from proxy.telemetry.exposition import Book
from proxy.telemetry.record import Record
from proxy.telemetry.tallies import Counter, Histogram

_OK = Outcome.OK  # looked up once: an enum's members are slow to reach


class Account:
    """Tokens and money of one pool and lane on one platform. Prices are per token."""

    __slots__ = ("cost", "estimated_in", "estimated_out", "price_in", "price_out", "slo_tokens", "usage_in", "usage_out")

    def __init__(self, book: Book, pool: str, lane: str, platform: str) -> None:
        self.usage_in = book.counter(catalogue.TOKENS, pool, lane, platform, "input", "usage")
        self.usage_out = book.counter(catalogue.TOKENS, pool, lane, platform, "output", "usage")
        self.estimated_in = book.counter(catalogue.TOKENS, pool, lane, platform, "input", "estimated")
        self.estimated_out = book.counter(catalogue.TOKENS, pool, lane, platform, "output", "estimated")
        self.slo_tokens = book.counter(catalogue.SLO_TOKENS, pool, platform)
        self.cost = book.counter(catalogue.COST, pool, platform)
        self.price_in = 0.0
        self.price_out = 0.0

    def charge(self, record: Record) -> None:
        """Counts the tokens of a request that was answered, in whole or in part, and what they cost."""
        if record.tokens_source == "usage":
            self.usage_in.n += record.tokens_in
            self.usage_out.n += record.tokens_out
        else:
            self.estimated_in.n += record.tokens_in
            self.estimated_out.n += record.tokens_out
        self.cost.n += record.tokens_in * self.price_in + record.tokens_out * self.price_out


class Cell:
    """The requests of one pool and lane; both names are empty for those that never reached a pool."""

    def __init__(self, book: Book, pool: str, lane: str) -> None:
        self._book = book
        self.pool = pool
        self.lane = lane
        self.slo_ttft_s: float | None = None
        self.slo_tpot_s: float | None = None
        self.seconds = book.histogram(catalogue.REQUEST_S, pool, lane)
        self.client_retries = book.counter(catalogue.CLIENT_RETRIES, pool)
        self._requests: dict[tuple[Outcome, int], Counter] = {}
        self._accounts: dict[str, Account] = {}
        for outcome, statuses in (labels.IN_POOL if pool else labels.WITHOUT_POOL).items():
            for status in statuses:
                self.ended(outcome, status)
        self.waits: dict[str, Histogram] = {}
        if pool:
            self.waits = {ending: book.histogram(catalogue.QUEUE_WAIT, pool, lane, ending) for ending in labels.WAIT_ENDINGS}
            self.ttft = book.histogram(catalogue.TTFT, pool, lane)
            self.tpot = book.histogram(catalogue.TPOT, pool, lane)
            self.prompt = book.histogram(catalogue.PROMPT, pool)
            self.slo_requests = book.counter(catalogue.SLO_REQUESTS, pool, lane)
            self.slo_met = book.counter(catalogue.SLO_MET, pool, lane)
            self.missed = {target: book.counter(catalogue.SLO_MISSED, pool, lane, target) for target in labels.SLO_MISSES}
            self.streamed = book.counter(catalogue.STREAMED, pool, lane)
            self.class_ttft = [book.histogram(catalogue.CLASS_TTFT, pool, prompt) for prompt in labels.PROMPT_CLASSES]
            self.class_seconds = [book.histogram(catalogue.CLASS_REQUEST_S, pool, prompt) for prompt in labels.PROMPT_CLASSES]
            self.retries = {result: book.counter(catalogue.RETRIES, pool, result) for result in labels.RETRY_RESULTS}

    def ended(self, outcome: Outcome, status: int) -> Counter:
        """The counter of an ending. One that was not foreseen joins a closed set all the same: outcomes by classes of status."""
        counter = self._requests.get((outcome, status))
        if counter is None:
            counter = self._book.counter(catalogue.REQUESTS, self.pool, self.lane, outcome.value, labels.code(status))
            self._requests[outcome, status] = counter
        return counter

    def account(self, platform: str) -> Account:
        """Tokens and money on that platform."""
        account = self._accounts.get(platform)
        if account is None:
            account = self._accounts[platform] = Account(self._book, self.pool, self.lane, platform)
        return account

    def measure(self, record: Record) -> None:
        """How long did prompts of this length take? To the first token, and to the end of a whole answer."""
        prompt = bisect_left(labels.PROMPT_EDGES_TOKENS, record.tokens_in)
        if record.first_token_at is not None:
            self.class_ttft[prompt].observe(record.first_token_at - record.received_at)
        if record.outcome is _OK:
            self.class_seconds[prompt].observe(record.ended_at - record.received_at)

    def judge(self, record: Record, tpot_s: float | None) -> bool:
        """Counts a request of the pool against its SLO. True: it met every target.

        The SLO speaks of streamed answers. A request that its caller left or spoiled is no miss, unless its first token was late by then.
        """
        if not record.streamed or (self.slo_ttft_s is None and self.slo_tpot_s is None):
            return False
        ttft_s = record.ttft_s if record.first_token_at is not None else record.ended_at - record.received_at
        late = self.slo_ttft_s is not None and ttft_s is not None and ttft_s > self.slo_ttft_s
        if record.outcome is not _OK:
            if not _callers_own(record) and (late or record.outcome not in (Outcome.CLIENT_GONE, Outcome.CANCELLED)):
                self.slo_requests.n += 1
                self.missed[labels.SLO_TTFT if record.outcome in (Outcome.CLIENT_GONE, Outcome.CANCELLED) else labels.SLO_UNANSWERED].n += 1
            return False
        self.slo_requests.n += 1
        slow = self.slo_tpot_s is not None and tpot_s is not None and tpot_s > self.slo_tpot_s
        if late or slow:
            self.missed[labels.SLO_TTFT if late else labels.SLO_TPOT].n += 1
            return False
        self.slo_met.n += 1
        return True


def _callers_own(record: Record) -> bool:
    """Did it end by the caller's own mistake? Then it says nothing about us."""
    if record.outcome is Outcome.UPSTREAM_STATUS:
        return record.status < 500 and record.status != 429
    return record.outcome in (Outcome.WRITE_TIMEOUT, Outcome.NOT_FOUND)


class BackendCell:
    """The attempts at one backend."""

    __slots__ = ("_attempts", "_book", "_name", "connect", "itl", "ttft")

    def __init__(self, book: Book, name: str) -> None:
        self._book = book
        self._name = name
        self.connect = book.histogram(catalogue.CONNECT, name)
        self.ttft = book.histogram(catalogue.BACKEND_TTFT, name)
        self.itl = book.histogram(catalogue.ITL, name)
        self._attempts = {outcome: book.counter(catalogue.ATTEMPTS, name, outcome.value) for outcome in labels.ATTEMPT}

    def attempted(self, outcome: Outcome) -> None:
        """Counts one attempt that has ended."""
        counter = self._attempts.get(outcome)
        if counter is None:
            counter = self._attempts[outcome] = self._book.counter(catalogue.ATTEMPTS, self._name, outcome.value)
        counter.n += 1
