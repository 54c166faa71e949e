"""What is counted for one pool and lane, for one platform in it, for one backend? Counters and histograms, bound once.

Requests that have ended are counted many at a time, those of one kind together: what follows from the kind is looked up once for all of
them, and a step of the interpreter is paid per kind wherever it need not be paid per request.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from policies.model import Outcome
from proxy.telemetry import catalogue, labels
from proxy.telemetry.exposition import Book
from proxy.telemetry.record import Record
from proxy.telemetry.tallies import Counter, Histogram, Made

_OK = Outcome.OK  # looked up once: an enum's members are slow to reach
_TAKEN_BACK = (Outcome.CLIENT_GONE, Outcome.CANCELLED)
_MET = "met"  # beside `labels.SLO_MISSES`
_EDGES = labels.PROMPT_EDGES_TOKENS

Kind = tuple[str, str, Outcome, int, str, str, bool, int, int]
"""Pool, lane, outcome, status, platform, tokens_source, streamed, attempts, retry_count of a `Record`."""


def by_kind(records: Iterable[Record]) -> Mapping[Kind, list[Record]]:
    """Those together that are counted alike."""
    kinds: defaultdict[Kind, list[Record]] = defaultdict(list)
    for each in records:
        kinds[
            each.pool,
            each.lane,
            each.outcome,
            each.status,
            each.platform,
            each.tokens_source,
            each.streamed,
            each.attempts,
            each.retry_count,
        ].append(each)
    return kinds


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

    def price(self, tokens_in: int, tokens_out: int) -> float:
        """What so many tokens cost."""
        return tokens_in * self.price_in + tokens_out * self.price_out

    def charge(self, source: str, tokens_in: int, tokens_out: int, cost: float) -> None:
        """Counts the tokens of requests that were answered, in whole or in part, and what they cost."""
        if source == "usage":
            self.usage_in.n += tokens_in
            self.usage_out.n += tokens_out
        else:
            self.estimated_in.n += tokens_in
            self.estimated_out.n += tokens_out
        self.cost.n += cost


class Cell:
    """The requests of one pool and lane; both names are empty for those that never reached a pool."""

    def __init__(self, book: Book, pool: str, lane: str) -> None:
        self.pool = pool
        self.slo_ttft_s: float | None = None
        self.slo_tpot_s: float | None = None
        self.seconds = book.histogram(catalogue.REQUEST_S, pool, lane)
        self.client_retries = book.counter(catalogue.CLIENT_RETRIES, pool)
        # An ending that was not foreseen joins a closed set all the same: outcomes by classes of status.
        self.requests: Made[tuple[Outcome, int], Counter] = Made(
            lambda ending: book.counter(catalogue.REQUESTS, pool, lane, ending[0].value, labels.code(ending[1]))
        )
        for outcome, statuses in (labels.IN_POOL if pool else labels.WITHOUT_POOL).items():
            for status in statuses:
                self.requests[outcome, status]
        self.accounts: Made[str, Account] = Made(lambda platform: Account(book, pool, lane, platform))
        self._waits: dict[str, Histogram] = {}
        if pool:
            self._waits = {ending: book.histogram(catalogue.QUEUE_WAIT, pool, lane, ending) for ending in labels.WAIT_ENDINGS}
            self.ttft = book.histogram(catalogue.TTFT, pool, lane)
            self.tpot = book.histogram(catalogue.TPOT, pool, lane)
            self.prompt = book.histogram(catalogue.PROMPT, pool)
            self.slo_requests = book.counter(catalogue.SLO_REQUESTS, pool, lane)
            self.verdicts = {_MET: book.counter(catalogue.SLO_MET, pool, lane)}
            self.verdicts |= {target: book.counter(catalogue.SLO_MISSED, pool, lane, target) for target in labels.SLO_MISSES}
            self.streamed = book.counter(catalogue.STREAMED, pool, lane)
            self.class_ttft = [book.histogram(catalogue.CLASS_TTFT, pool, prompt) for prompt in labels.PROMPT_CLASSES]
            self.class_seconds = [book.histogram(catalogue.CLASS_REQUEST_S, pool, prompt) for prompt in labels.PROMPT_CLASSES]
            self.retries = {result: book.counter(catalogue.RETRIES, pool, result) for result in labels.RETRY_RESULTS}

    def observe_wait(self, ending: str) -> Callable[[float], None]:
        """Where waits go that ended so; nowhere, if no wait ends so."""
        waits = self._waits.get(ending)
        return waits.observe if waits is not None else _nowhere

    def count(self, kind: Kind, records: list[Record]) -> None:
        """Counts requests of one kind that have ended. Whatever may fail is worked out before anything is counted: by halves nothing is."""
        _, _, outcome, status, platform, source, streamed, attempts, retry_count = kind
        ended = self.requests[outcome, status]
        seconds = [record.ended_at - record.received_at for record in records]
        if self.pool:
            tokens_in = [record.tokens_in for record in records]
            sum_in, sum_out = sum(tokens_in), sum([record.tokens_out for record in records])
            retries = [attempts - 1 - record.hedges - record.continued for record in records] if attempts > 1 else []
            account = self.accounts[platform] if source else None
            cost = account.price(sum_in, sum_out) if account is not None else 0.0
            met_tokens = self._count_streams(outcome, records) if streamed else 0
            self.prompt.observe_all(tokens_in)
            if outcome is _OK:
                classes = self.class_seconds
                for tokens, taken_s in zip(tokens_in, seconds, strict=True):
                    classes[bisect_left(_EDGES, tokens)].observe(taken_s)
            if account is not None:
                account.charge(source, sum_in, sum_out, cost)
                account.slo_tokens.n += met_tokens
            if retries:
                worked = sum(each > 0 for each in retries) if outcome is _OK else 0
                self.retries[labels.RETRY_OK].n += worked
                self.retries[labels.RETRY_FAILED].n += sum(retries) - worked
        ended.n += len(records)
        self.seconds.observe_all(seconds)
        if retry_count:
            self.client_retries.n += len(records)

    def _count_streams(self, outcome: Outcome, records: list[Record]) -> int:
        """What streams have beside: gaps, first tokens by the prompt's length, a promise. How many tokens came as promised?"""
        tpots = [record.tpot_s for record in records]
        verdicts = [self._judge(outcome, record, tpot_s) for record, tpot_s in zip(records, tpots, strict=True)]
        ttfts = [
            (bisect_left(_EDGES, record.tokens_in), record.first_token_at - record.received_at)
            for record in records
            if record.first_token_at is not None
        ]
        met_tokens = sum([record.tokens_out for record, verdict in zip(records, verdicts, strict=True) if verdict is _MET])
        self.streamed.n += len(records)
        self.tpot.observe_all([tpot_s for tpot_s in tpots if tpot_s is not None])
        for prompt, ttft_s in ttfts:
            self.class_ttft[prompt].observe(ttft_s)
        for verdict in verdicts:
            if verdict is not None:
                self.slo_requests.n += 1
                self.verdicts[verdict].n += 1
        return met_tokens

    def _judge(self, outcome: Outcome, record: Record, tpot_s: float | None) -> str | None:
        """What does a streamed answer say of the pool's SLO? That it was met, or which target was missed. None: nothing.

        A request that its caller left or spoiled is no miss, unless its first token was late by then.
        """
        slo_ttft_s, slo_tpot_s = self.slo_ttft_s, self.slo_tpot_s
        if slo_ttft_s is None and slo_tpot_s is None:
            return None
        first_token_at = record.first_token_at
        ttft_s = (first_token_at if first_token_at is not None else record.ended_at) - record.received_at
        late = slo_ttft_s is not None and ttft_s > slo_ttft_s
        if outcome is _OK:
            if late:
                return labels.SLO_TTFT
            return labels.SLO_TPOT if slo_tpot_s is not None and tpot_s is not None and tpot_s > slo_tpot_s else _MET
        if outcome in _TAKEN_BACK:
            return labels.SLO_TTFT if late else None
        return None if _callers_own(record) else labels.SLO_UNANSWERED


def _callers_own(record: Record) -> bool:
    """Did it end by the caller's own mistake? Then it says nothing about us."""
    if record.outcome is Outcome.UPSTREAM_STATUS:
        return record.status < 500 and record.status != 429
    return record.outcome in (Outcome.WRITE_TIMEOUT, Outcome.NOT_FOUND)


def _nowhere(_: float) -> None: ...


class BackendCell:
    """The attempts at one backend."""

    __slots__ = ("attempts", "connect", "itl", "ttft")

    def __init__(self, book: Book, name: str) -> None:
        self.connect = book.histogram(catalogue.CONNECT, name)
        self.ttft = book.histogram(catalogue.BACKEND_TTFT, name)
        self.itl = book.histogram(catalogue.ITL, name)
        self.attempts: Made[Outcome, Counter] = Made(lambda outcome: book.counter(catalogue.ATTEMPTS, name, outcome.value))
        for outcome in labels.ATTEMPT:
            self.attempts[outcome]
