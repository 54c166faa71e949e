"""What does each event of a request change in the numbers? The one object that the path of a request tells what happened.

Everything is bound when the file is read: an event costs a look-up by the names of its pool, lane and backend and a few
additions. One call, `finish`, ends each request. Its counters, its tokens, its cost and its line in the log follow in `settle`, many
requests at a time: a tenth of a second later, and always before anything is read.
"""

from __future__ import annotations

import platform
import traceback
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from policies.dispatcher.state import Event, PlatformRefuses, State
from policies.failover import FailedBack, FailedOver
from policies.model import Lease, Outcome, PoolPlan
from proxy.telemetry import catalogue, labels
from proxy.telemetry.access_log import AccessLog
from proxy.telemetry.cells import BackendCell, Cell, Kind, by_kind
from proxy.telemetry.events import ProcessLog
from proxy.telemetry.exposition import Book, header, sample
from proxy.telemetry.inventory import Inventory, file_gauges
from proxy.telemetry.log_writer import LogWriter
from proxy.telemetry.recent import Recent
from proxy.telemetry.record import Record
from proxy.telemetry.spend import Price, Rent
from proxy.telemetry.tallies import Counter, Histogram, Made
from proxy.telemetry.view import gauges

FOLD_SWEEPS = 10
ENDED_MAX = 64  # requests counted together: a tenth of a millisecond of the loop, and what they share is already spread thin
_OK, _LEFT = Outcome.OK, Outcome.CLIENT_GONE  # looked up once: an enum's members are slow to reach


class Telemetry:
    """All metrics of one process. Not thread-safe: to be called on the event loop's thread. No call waits for anything."""

    def __init__(
        self,
        inventory: Inventory,
        log: LogWriter[Record],
        *,
        now: float,
        wall: float,
        version: str,
        recent: Recent | None = None,
        process_log: ProcessLog | None = None,
    ) -> None:
        self._book = book = Book()
        self._log = log
        self._process_log = process_log
        self._recent = recent
        self._access_log = AccessLog(log)
        self._ended: list[Record] = []  # and not counted yet
        # Made where missing: what left the file may still be in flight.
        self._cells: Made[tuple[str, str], Cell] = Made(lambda pool_and_lane: Cell(book, *pool_and_lane))
        self._backends: Made[str, BackendCell] = Made(lambda name: BackendCell(book, name))
        self._waits: Made[tuple[str, str, str], Callable[[float], None]] = Made(lambda ended: self._cells[ended[:2]].observe_wait(ended[2]))
        self._rents: dict[str, Rent] = {}
        self._nowhere = self._cells["", ""]
        self._disconnects = {phase: self._book.counter(catalogue.DISCONNECTS, phase) for phase in labels.DISCONNECT_PHASES}
        self._overheads = {phase: self._book.histogram(catalogue.OVERHEAD, phase) for phase in labels.OVERHEAD_PHASES}
        self._loop_lag = self._book.histogram(catalogue.LOOP_LAG)
        self._sweeps = 0
        self._dropped = self._book.counter(catalogue.LOG_DROPPED)
        self._smoke_ok: dict[str, bool] = {}  # by platform
        self._reload_ok = True
        self._reloaded_at = wall
        self._build = (version, platform.python_version())
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        self.reconfigure(inventory, now)

    # --- the path of a request ---

    def finish(self, record: Record, now: float) -> None:
        """The request has ended, in `record.outcome`: once per request, last of all."""
        record.ended_at = now
        if record.outcome is not _OK and self._recent is not None:
            self._recent.ended(record)
        ended = self._ended
        ended.append(record)
        if len(ended) >= ENDED_MAX:
            self.settle()

    def settle(self) -> None:
        """Counts the requests that have ended, and hands their lines to the log. Never raises; nobody need call it before reading."""
        ended, self._ended = self._ended, []
        self._access_log.put(*ended)
        for kind, records in by_kind(ended).items():
            self._count(kind, records)

    def _count(self, kind: Kind, records: list[Record]) -> None:
        pool, lane, outcome, *_ = kind
        try:
            (self._cells[pool, lane] if pool else self._nowhere).count(kind, records)
        except Exception as error:  # nothing of it was counted
            if len(records) > 1:
                for record in records:
                    self._count(kind, [record])
            elif self._process_log is not None:
                self._process_log.error("not_counted", id=records[0].id, traceback="".join(traceback.format_exception(error)))
            return
        if outcome is _LEFT:
            for record in records:
                self._disconnects.get(record.phase, self._disconnects["intake"]).n += 1

    def waited(self, pool: str, lane: str, ending: str, wait_s: float) -> None:
        """A wait is over, however short: `dispatched` (each dispatch, a retry's too), or the outcome that ended it in the queue.

        Endings that end no wait (queue_full, no_backend) are passed over, so that any refusal may be told.
        """
        self._waits[pool, lane, ending](wait_s)

    def connected(self, backend: str, seconds: float) -> None:
        """A new connection to the backend is open."""
        self._backends[backend].connect.observe(seconds)

    def first_token(self, record: Record, backend_ttft_s: float) -> None:
        """The first token of a streamed answer was handed over: `record.first_token_at` is set."""
        self._backends[record.backend].ttft.observe(backend_ttft_s)
        if record.first_token_at is not None:
            self._cells[record.pool, record.lane].ttft.observe(record.first_token_at - record.received_at)

    def itl(self, backend: str) -> Histogram:
        """The backend's gaps between pieces, for the relay to observe directly; the same object for the life of the process."""
        return self._backends[backend].itl

    def overhead(self, phase: str) -> Histogram:
        """Fairlane's own seconds in a phase of `labels.OVERHEAD_PHASES`; to be bound once. KeyError for another phase."""
        return self._overheads[phase]

    def attempt(self, lease: Lease, outcome: Outcome, now: float) -> None:
        """An attempt has ended and its lease goes back: once per lease."""
        self._backends[lease.backend].attempts[outcome].n += 1
        if self._rents and not lease.slotless:
            rent = self._rents.get(lease.platform)
            if rent is not None:
                rent.held(lease.pool, lease.backend, now - lease.granted_at)

    def retry_denied(self, pool: str) -> None:
        """An attempt failed before its first token, and nothing was left to try, or no time. Retries that are sent count themselves."""
        self._book.counter(catalogue.RETRIES, pool, labels.RETRY_DENIED).n += 1

    def hedged(self, pool: str, result: str) -> None:
        """A second attempt beside the first has ended so (`labels.HEDGE_RESULTS`), or was due and not sent."""
        self._book.counter(catalogue.HEDGES, pool, result).n += 1

    def continued(self, pool: str, result: str) -> None:
        """A stream broke that could be continued, and this became of the rest (`labels.CONTINUATION_RESULTS`)."""
        self._book.counter(catalogue.CONTINUATIONS, pool, result).n += 1

    # --- what happens to Fairlane itself ---

    def swept(self, lag_s: float) -> None:
        """The deadlines were looked at, so late. What has ended is counted, and what was observed goes into its buckets now and then."""
        self._loop_lag.observe(lag_s)
        self.settle()
        self._sweeps += 1
        if self._sweeps % FOLD_SWEEPS == 0:
            self._book.fold()

    def events(self, events: Iterable[Event]) -> None:
        """What the dispatcher says has changed."""
        for event in events:
            if isinstance(event, FailedOver):
                reason = event.reason if event.reason in labels.FAILOVER_REASONS else labels.OTHER
                self._failovers(event.pool, event.from_, event.to, reason).n += 1
            elif isinstance(event, FailedBack):
                self._failovers(event.pool, event.from_, event.to, labels.RECOVERED).n += 1
            elif isinstance(event, PlatformRefuses):
                self._book.counter(catalogue.REFUSALS, event.platform).n += 1

    def smoked(self, platform: str, ok: bool) -> None:
        """A smoke test of one of the platform's backends has ended."""
        self._book.counter(catalogue.SMOKES, platform, labels.SMOKE_PASSED if ok else labels.SMOKE_FAILED).n += 1
        self._smoke_ok[platform] = ok

    def _failovers(self, pool: str, from_: str, to: str, reason: str) -> Counter:
        return self._book.counter(catalogue.FAILOVERS, pool, from_, to, reason)

    def reloaded(self, ok: bool, wall: float) -> None:
        """The file was read again: accepted at `wall` (seconds since 1970), or refused."""
        self._reload_ok = ok
        if ok:
            self._reloaded_at = wall

    def reconfigure(self, inventory: Inventory, now: float) -> None:
        """Counts for this file from now on. Series that remain go on; a histogram whose boundaries change begins anew."""
        self.settle()  # at the old prices, against the old promises, and into the old log
        plan = inventory.plan
        self._inventory = inventory
        for pool in plan.pools:
            self._bind(pool, inventory)
        for platform_plan in plan.platforms:
            for backend in platform_plan.backends:
                self._backends[backend.name]
            self._book.counter(catalogue.REFUSALS, platform_plan.name)
            for result in labels.SMOKE_RESULTS:
                self._book.counter(catalogue.SMOKES, platform_plan.name, result)
        self._smoke_ok = {platform_plan.name: self._smoke_ok.get(platform_plan.name, True) for platform_plan in plan.platforms}
        # SLO targets are boundaries in every series of a metric, so that sums over pools keep theirs.
        ttft_bounds = _with_targets(catalogue.TTFT_S, (pool.slo_ttft_s for pool in plan.pools))
        tpot_bounds = _with_targets(catalogue.TPOT_S, inventory.slo_tpot_s.values())
        for metric, bounds in (
            (catalogue.TTFT, ttft_bounds),
            (catalogue.CLASS_TTFT, ttft_bounds),
            (catalogue.BACKEND_TTFT, ttft_bounds),
            (catalogue.TPOT, tpot_bounds),
            (catalogue.ITL, tpot_bounds),
        ):
            self._book.rebound(metric, bounds)
        self._agree_on_rents(inventory, now)

    def _bind(self, pool: PoolPlan, inventory: Inventory) -> None:
        for result in labels.HEDGE_RESULTS:
            self._book.counter(catalogue.HEDGES, pool.name, result)
        for result in labels.CONTINUATION_RESULTS:
            self._book.counter(catalogue.CONTINUATIONS, pool.name, result)
        for lane in inventory.plan.lanes:
            cell = self._cells[pool.name, lane.name]
            cell.slo_ttft_s = pool.slo_ttft_s
            cell.slo_tpot_s = inventory.slo_tpot_s.get(pool.name)
            for name in pool.platforms:
                account = cell.accounts[name]
                price = inventory.prices.get(name, Price())
                account.price_in = price.input_per_million / 1e6
                account.price_out = price.output_per_million / 1e6
        for from_ in pool.platforms:
            for to in pool.platforms:
                for reason in labels.FAILOVER_REASONS if from_ != to else ():
                    self._failovers(pool.name, from_, to, reason)

    def _agree_on_rents(self, inventory: Inventory, now: float) -> None:
        present = {platform_plan.name: platform_plan for platform_plan in inventory.plan.platforms}
        rented = {name: price.per_hour for name, price in inventory.prices.items() if price.per_hour and name in present}
        for name in self._rents.keys() | rented.keys():
            caps = {backend.name: backend.max_streams for backend in present[name].backends} if name in present else {}
            first = next((pool.name for pool in inventory.plan.pools if name in pool.platforms), "")
            self._rent(name, now).agree(rented.get(name, 0.0), caps, first, now)

    # --- the scrape ---

    def exposition(self, state: State, now: float) -> bytes:
        """The text that Prometheus reads. `state` is the dispatcher's snapshot at `now`."""
        self.settle()
        for rent in self._rents.values():
            rent.settle(now)
        self._dropped.n = self._log.dropped
        return "".join([*self._book.text(), *gauges(state), *file_gauges(self._inventory), *self._own_gauges()]).encode() + generate_latest(
            self._process
        )

    def _own_gauges(self) -> Iterator[str]:
        yield header(catalogue.RELOAD_OK) + sample(catalogue.RELOAD_OK, (), int(self._reload_ok))
        yield header(catalogue.RELOADED_AT) + sample(catalogue.RELOADED_AT, (), self._reloaded_at)
        yield header(catalogue.SMOKE_OK)
        yield from (sample(catalogue.SMOKE_OK, (name,), int(ok)) for name, ok in self._smoke_ok.items())
        yield header(catalogue.BUILD) + sample(catalogue.BUILD, self._build, 1)

    def _rent(self, name: str, now: float) -> Rent:
        def cost(pool: str) -> Counter:
            return self._book.counter(catalogue.COST, pool, name)

        return self._rents.setdefault(name, Rent(cost, now))


def _with_targets(bounds: tuple[float, ...], targets: Iterable[float | None]) -> tuple[float, ...]:
    return tuple(sorted({*bounds, *(target for target in targets if target is not None)}))
