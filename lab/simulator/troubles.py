"""What goes wrong, when it was planned to? Carries out the planned events, and probes the backends as the server does."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lab.simulator.endings import CUT, IDLE, LATE_TOKEN, RESET
from lab.simulator.incidents import Incident, What
from lab.simulator.station import Mode, Station
from lab.simulator.tally import Happened
from lab.simulator.words import told
from policies.model import Plan

if TYPE_CHECKING:
    from lab.simulator.host import Host

PROBE_EVERY_S = 5.0  # policies.md 7, as `proxy.prober` does
PROBE_TIMEOUT_S = 2.0


class Troubles:
    """The planned events of one run, and its active probes."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def plan(self) -> None:
        """Enters all of them into the host's agenda."""
        scenario = self._host.scenario
        for incident in scenario.incidents:
            self._host.enter(incident.at, self._happen, incident, None)
        for name in scenario.probed:
            self._host.enter(PROBE_EVERY_S, self._probe, self._host.stations[name], None)

    def _probe(self, station: Station, _: None, now: float) -> None:
        took_s = PROBE_TIMEOUT_S if station.mode is Mode.HUNG else 0.0
        self._host.enter(now + took_s, self._probed, station, station.mode is Mode.UP)
        self._host.enter(now + took_s + PROBE_EVERY_S, self._probe, station, None)

    def _probed(self, station: Station, alive: bool, now: float) -> None:
        self._host.settle(self._host.dispatcher.probed(station.name, alive, now), now)
        self._host.note(now)

    def _happen(self, incident: Incident, _: None, now: float) -> None:
        self._host.tally.happened.append(Happened(now, "planned", told(incident)))
        what = incident.what
        if what is What.CAP:
            self._host.plan = _with_cap(self._host.plan, incident)
            self._host.tally.caps.update(dict.fromkeys(incident.backends, int(incident.amount)))
            self._host.settle(self._host.dispatcher.reconfigure(self._host.plan, now), now)
        elif what is What.DRAIN:
            self._host.settle(self._host.dispatcher.drain(incident.name, now), now)
        elif what is What.UNDRAIN:
            self._host.settle(self._host.dispatcher.undrain(incident.name, now), now)
        for name in incident.backends:
            self._befall(self._host.stations[name], what, incident.amount, now)
        self._host.note(now)

    def _befall(self, station: Station, what: What, amount: float, now: float) -> None:
        if what is What.RETURNS:
            station.recover()
        elif what is What.SLOW:
            station.factor = amount
        elif what is What.FAILS:
            station.fail(amount)
        elif what in (What.DIES, What.HANGS):
            station.turn(Mode.DEAD if what is What.DIES else Mode.HUNG)
            for passage in sorted(station.live, key=lambda each: each.caller.at):
                lease = passage.lease
                began = passage.first_at >= 0.0
                if what is What.DIES:
                    self._host.fail(passage, (lease, CUT if began else RESET), now)
                else:
                    facts = self._host.scenario.pools[passage.pool]
                    passage.stuck = lease
                    self._host.engines.drop(passage, now)
                    ending = (lease, IDLE if began else LATE_TOKEN)
                    self._host.enter(now + (facts.idle_s if began else facts.first_token_s), self._host.fail, passage, ending)


def _with_cap(plan: Plan, incident: Incident) -> Plan:
    cap = int(incident.amount)
    return replace(
        plan,
        platforms=tuple(
            replace(
                platform,
                backends=tuple(
                    replace(backend, max_streams=cap) if backend.name in incident.backends else backend for backend in platform.backends
                ),
            )
            for platform in plan.platforms
        ),
    )
