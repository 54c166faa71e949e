"""What would the server do? The other host of the policies: one heap of what is to come instead of an event loop.

It makes the calls that `proxy.dispatch` and `proxy.story` make, in the same order: arrive, first_token, give_back, again, leave, tick at
`next_at`, probed. Which request goes where and when is the dispatcher's answer alone. What the host adds is the world: callers, their
patience, backends that take their time or fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from math import inf
from random import Random
from typing import Any

from lab.simulator.endings import LATE_TOKEN, LEFT, OK, OUT_OF_TIME, REFUSED, STATUS_500
from lab.simulator.engines import Engines
from lab.simulator.jobs import Jobs
from lab.simulator.scenario import Scenario
from lab.simulator.station import Mode, Passage, Station
from lab.simulator.tally import Happened, LaneTally, Sample, StationTally, Tally
from lab.simulator.troubles import Troubles
from lab.simulator.words import told
from lab.simulator.workload import Caller
from policies.dispatcher import Dispatcher
from policies.failover import FailedOver
from policies.model import Ending, Lease, Outcome, Refusal, Ticket

CONNECT_S = 0.001  # how long a refused connection, or an error status, takes
End = tuple[float, int, Callable[..., None], Any, Any]


class Host:
    """One run. `tally` is what came of it."""

    def __init__(self, scenario: Scenario, callers: Iterator[Caller]) -> None:
        self.scenario = scenario
        self.plan = plan = scenario.plan
        self.dispatcher = Dispatcher(plan, 0.0, scenario.seed)
        self._callers = callers
        self._heap: list[End] = []
        self._entered = 0
        self._under_way = 0
        self._tell_first_token, self._tell_give_back = self.dispatcher.first_token, self.dispatcher.give_back
        self._at_end = self.end  # looked up once, as the two above: a bound method is made at each look
        self._counting = False
        self._faults = Random(f"{scenario.seed} faults")
        self._ttft = scenario.backend_ttft.draw(Random(f"{scenario.seed} ttft")) if scenario.backend_ttft else None
        self.stopped = False
        self._sampled = scenario.sample_every_s is not None
        self._until = inf  # end of the measured time, once it is known
        caps = {backend.name: backend.max_streams for platform in plan.platforms for backend in platform.backends}
        self.tally = Tally([LaneTally(lane.name) for lane in plan.lanes], {}, caps)
        self._total_s = {name: facts.total_s for name, facts in scenario.pools.items()}
        has_slo = any(facts.slo_ttft_s is not None for facts in scenario.pools.values())
        self._targets = has_slo or scenario.latency is not None or scenario.patience_s is not None  # not every answer is a good one
        self.jobs = Jobs(self)
        self.engines = Engines(self)
        self.stations = {name: self._station(name, cap) for name, cap in caps.items()}
        Troubles(self).plan()
        if scenario.sample_every_s:
            self.enter(0.0, self._sample, None, None)

    def run(self) -> Tally:
        """From the first caller until the last one is over, or the batch is."""
        scenario, tally, heap, callers = self.scenario, self.tally, self._heap, self._callers
        next_at, tick = self.dispatcher.next_at, self.dispatcher.tick
        arrive: Callable[[Ticket, float], Sequence[Any]] = self.dispatcher.arrive  # who settles are passages: ours
        choose, lanes, pools = scenario.choose, tally.lanes, scenario.pools
        patience_s = scenario.patience_s if scenario.seen_leaving else None
        attempt, counting = self._attempt, False
        caller = next(callers, None)
        arrival_at = inf if caller is None else caller.at
        number, now = 0, 0.0
        while not self.stopped:
            at = heap[0][0] if heap else inf
            due_at = next_at()
            if due_at is not None and due_at <= at and due_at <= arrival_at:
                now = due_at
                self.settle(tick(now), now)
                self.note(now)
            elif arrival_at <= at and caller is not None:
                now = arrival_at
                if not counting and now >= scenario.warm_up_s and number >= scenario.warm_up_requests:
                    counting = self._counting = True
                    tally.began_at = now
                number += 1
                request = caller.request
                pool = choose(request)
                lane = self.jobs.lane if caller.job else lanes[request.lane]
                if counting:
                    lane.offered += 1
                if pool is None or pool not in pools:
                    lane.refused[Outcome.NOT_FOUND] += counting
                else:
                    passage = Passage(caller, pool, now, lane, counting)
                    self._under_way += 1
                    if patience_s is not None:
                        self.enter(now + patience_s, self._leave, passage, None)
                    for settled in arrive(passage, now):
                        if type(settled.answer) is Refusal:
                            self._refused(settled, settled.answer, now)
                        else:
                            attempt(settled, settled.answer, now)
                caller = next(callers, None)
                if caller is None:
                    arrival_at, self._until = inf, now
                    tally.ended_at = now
                else:
                    arrival_at = caller.at
            elif caller is None and not self._under_way:
                break
            else:
                now, _, what, subject, detail = heappop(heap)
                what(subject, detail, now)
        self._close(number, now)
        return tally

    # -- what the dispatcher answered

    def settle(self, settled: Iterable[Any], now: float) -> None:
        for passage in settled:
            answer = passage.answer
            if type(answer) is Refusal:
                self._refused(passage, answer, now)
            else:
                self._attempt(passage, answer, now)

    def _attempt(self, passage: Passage, lease: Lease, now: float) -> None:
        station = passage.station = self.stations[lease.backend]
        live = station.live
        live.add(passage)
        station.attempts += 1
        if len(live) > station.at_most:
            station.at_most = len(live)
        if station.troubled and self._fails(passage, station, lease, now):
            return
        if station.batch is not None:
            self.engines.generate(passage, station, lease, now)
            return
        service_s = passage.caller.service_s * station.factor
        if self._ttft is None:
            self._first_token_came(passage, lease, now)
        else:
            ttft_s = self._ttft() * station.factor
            service_s = max(service_s, ttft_s)
            self.enter(now + ttft_s, self.first_token, passage, lease)
        if service_s > self._total_s[passage.pool]:
            self.enter(now + self._total_s[passage.pool], self.fail, passage, (lease, OUT_OF_TIME))
        else:
            self._entered = number = self._entered + 1
            heappush(self._heap, (now + service_s, number, self._at_end, passage, lease))

    def _fails(self, passage: Passage, station: Station, lease: Lease, now: float) -> bool:
        """Does this attempt come to nothing, whatever it would have been?"""
        if station.mode is Mode.DEAD:
            self.enter(now + CONNECT_S, self.fail, passage, (lease, REFUSED))
        elif station.mode is Mode.HUNG:
            self.enter(now + self.scenario.pools[passage.pool].first_token_s, self.fail, passage, (lease, LATE_TOKEN))
        elif self._faults.random() < station.failing_ratio:
            self.enter(now + CONNECT_S, self.fail, passage, (lease, STATUS_500))
        else:
            return False
        return True

    def first_token(self, passage: Passage, lease: Lease, now: float) -> None:
        """It has come."""
        if not lease.live or passage.stuck is lease:
            return
        self._first_token_came(passage, lease, now)

    def _first_token_came(self, passage: Passage, lease: Lease, now: float) -> None:
        passage.first_at = now
        if passage.counted:
            lane = passage.lane
            lane.waits.append(passage.waited_s)
            lane.ttfts.append(now - passage.arrived_at)
            if self._sampled:
                lane.dispatched_at.append(lease.granted_at)
        settled = self._tell_first_token(lease, now)
        if settled or lease.probe:
            self.settle(settled, now)
            self.note(now)

    def end(self, passage: Passage, lease: Lease, now: float) -> None:
        """The answer is whole."""
        if not lease.live or passage.stuck is lease:
            return
        self._release(passage, lease, now)
        if self._targets:
            self._count_end(passage, now)
        elif self._counting:
            lane = passage.lane
            if now <= self._until:
                lane.completed += 1
            if passage.counted:
                lane.answered += 1
        if self._sampled:
            passage.lane.ended_at.append(now)
        passage.over = True
        passage.work = None
        self._under_way -= 1
        settled = self._tell_give_back(lease, OK, now)
        if passage.caller.job:
            self.jobs.done(now)
        if settled or lease.probe:
            self.settle(settled, now)
            self.note(now)

    def _count_end(self, passage: Passage, now: float) -> None:
        """Was it of use, and within every target?"""
        if not self._counting:
            return
        lane, scenario = passage.lane, self.scenario
        ttft_s = passage.first_at - passage.arrived_at
        useful = good = scenario.patience_s is None or ttft_s <= scenario.patience_s
        facts = scenario.pools[passage.pool]
        good = good and (facts.slo_ttft_s is None or ttft_s <= facts.slo_ttft_s)
        tokens = passage.caller.output_tokens
        if passage.work is not None and tokens > 1:
            tpot_s = (now - passage.first_at) / (tokens - 1)
            good = good and (facts.slo_tpot_s is None or tpot_s <= facts.slo_tpot_s)
            if passage.counted:
                lane.tpots.append(tpot_s)
        if now <= self._until:
            lane.completed += 1
            lane.good_completed += good
        if passage.counted:
            lane.answered += useful
            lane.abandoned += not useful
            lane.good += good

    def _release(self, passage: Passage, lease: Lease, now: float) -> None:
        station = passage.station
        assert station is not None
        station.live.remove(passage)
        if self._counting:
            began_at, granted_at, until = self.tally.began_at, lease.granted_at, self._until
            held_s = (now if now < until else until) - (granted_at if granted_at > began_at else began_at)
            if held_s > 0.0:
                station.stream_s += held_s

    def _refused(self, passage: Passage, refusal: Refusal, now: float) -> None:
        if passage.caller.job:
            self.jobs.again_later(passage, refusal, now)
            return
        patience_s, lane = self.scenario.patience_s, passage.lane
        passage.over = True
        self._under_way -= 1
        if not passage.counted:
            return
        lane.waiting_s += passage.waited_s
        if patience_s is not None and now - passage.caller.at > patience_s:
            lane.abandoned += 1
        elif passage.attempts:
            lane.failed[refusal.outcome] += 1
        else:
            lane.refused[refusal.outcome] += 1

    # -- what goes wrong

    def fail(self, passage: Passage, detail: tuple[Lease, Ending], now: float) -> None:
        """The attempt ends like this; before its first token it may be tried again."""
        lease, ending = detail
        if not lease.live:
            return
        self._release(passage, lease, now)
        self.engines.drop(passage, now)
        self.settle(self.dispatcher.give_back(lease, ending, now), now)
        if passage.first_at >= 0.0:
            self._broken(passage, ending.outcome, now)
        else:
            self.settle(self.dispatcher.again(passage, ending, ending is not REFUSED, now), now)
        self.note(now)

    def _broken(self, passage: Passage, outcome: Outcome, now: float) -> None:
        """It ended after its first token: nothing is tried again."""
        if passage.caller.job:
            self.jobs.again_later(passage, Refusal(outcome, None), now)
            return
        passage.over = True
        self._under_way -= 1
        if passage.counted:
            passage.lane.failed[outcome] += 1

    def _leave(self, passage: Passage, _: None, now: float) -> None:
        """The caller's patience is over, and it closes its connection."""
        if passage.over or passage.first_at >= 0.0:
            return
        passage.over = True
        self._under_way -= 1
        lane, lease = passage.lane, passage.answer
        if isinstance(lease, Lease) and lease.live:
            self._release(passage, lease, now)
            self.engines.drop(passage, now)
            self.settle(self.dispatcher.give_back(lease, LEFT, now), now)
        else:
            self.settle(self.dispatcher.leave(passage, now), now)
        if passage.counted:
            lane.abandoned += 1
            lane.waiting_s += passage.waited_s

    # -- the world around

    def _station(self, name: str, cap: int) -> Station:
        latency = self.scenario.latency
        if latency is not None:
            latency = replace(latency, slots=self.scenario.engine_slots or cap)
        return Station(name, latency)

    # -- what is seen

    def note(self, now: float) -> None:
        """What the dispatcher says has happened: asked after whatever may change health."""
        for event in self.dispatcher.take_events():
            self.tally.failovers += isinstance(event, FailedOver)
            self.tally.happened.append(Happened(now, type(event).__name__, told(event)))

    def _sample(self, _: None, __: None, now: float) -> None:
        state = self.dispatcher.snapshot(now)
        waiting = {lane.name: 0 for lane in self.plan.lanes}
        for pool in state.pools.values():
            for name, lane in pool.lanes.items():
                waiting[name] += lane.waiting
        in_flight = {name: backend.in_flight for name, backend in state.backends.items()}
        of_lane = dict.fromkeys(waiting, 0)
        for station in self.stations.values():
            for passage in station.live:
                of_lane[self.plan.lanes[passage.caller.request.lane].name] += 1
        self.tally.samples.append(Sample(now, waiting, in_flight, of_lane))
        assert self.scenario.sample_every_s is not None
        self.enter(now + self.scenario.sample_every_s, self._sample, None, None)

    def _close(self, number: int, now: float) -> None:
        tally = self.tally
        tally.requests = number
        tally.over_at = now
        self.note(now)
        if self.stopped:
            tally.ended_at = self._until = now
            for station in self.stations.values():
                for passage in list(station.live):
                    self._release(passage, passage.lease, now)
        if not self._counting:
            tally.began_at = tally.ended_at
        for name, station in self.stations.items():
            tally.stations[name] = StationTally(station.at_most, station.attempts, station.stream_s)
        for lane in tally.lanes:
            if not self._targets:  # every answer is a good one
                lane.good, lane.good_completed = lane.answered, lane.completed
            lane.waiting_s += sum(lane.waits)
            told_of = lane.answered + lane.abandoned + sum(lane.refused.values()) + sum(lane.failed.values())
            lane.unfinished = lane.offered - told_of

    def enter(self, at: float, what: Callable[..., None], subject: Any, detail: Any) -> None:
        self._entered = number = self._entered + 1
        heappush(self._heap, (at, number, what, subject, detail))
