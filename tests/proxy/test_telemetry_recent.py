"""Is what happened lately told, in words, and never more of it than fits on a page?"""

from __future__ import annotations

import random

from policies.model import Outcome
from proxy.telemetry.events import ProcessLog
from proxy.telemetry.log_writer import LogWriter
from proxy.telemetry.recent import EPISODE_S, KEPT, Recent
from proxy.telemetry.record import Record


class Wall:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def ended(outcome: Outcome, pool: str = "chat", lane: str = "slow", name: str = "r") -> Record:
    return Record(0.0, 0.0, id=name, pool=pool, lane=lane, outcome=outcome)


def test_a_flood_is_one_episode_until_it_pauses() -> None:
    wall = Wall()
    recent = Recent(wall)
    for number in range(500):
        recent.ended(ended(Outcome.QUEUE_FULL, name=f"r{number}"))
        wall.now += 0.1
    recent.ended(ended(Outcome.QUEUE_FULL, lane="fast"))
    wall.now += EPISODE_S + 1
    recent.ended(ended(Outcome.QUEUE_FULL, name="later"))
    shown = recent.document()["refusals"]
    assert [(each["lane"], each["count"], each["last_id"]) for each in shown] == [
        ("slow", 1, "later"),
        ("fast", 1, "r"),
        ("slow", 500, "r499"),
    ]
    assert shown[2]["last_unix"] - shown[2]["first_unix"] > 49


def test_who_was_answered_left_or_was_cancelled_was_not_refused() -> None:
    recent = Recent(Wall())
    for outcome in (Outcome.OK, Outcome.CLIENT_GONE, Outcome.CANCELLED):
        recent.ended(ended(outcome))
    assert recent.document() == {"events": [], "refusals": []}


def test_whatever_comes_little_is_kept_and_counts_go_on() -> None:
    wall, chance = Wall(), random.Random(1)
    recent = Recent(wall)
    kinds = [(outcome, pool, lane) for outcome in Outcome for pool in ("a", "b", "") for lane in ("fast", "slow")]
    for number in range(5000):
        outcome, pool, lane = chance.choice(kinds)
        recent.ended(ended(outcome, pool, lane, "x" * 500))
        recent.happened("info", "ejected", {"backend": "b" * 1000, "why": str(number)})
        wall.now += 0.01
    shown = recent.document()
    assert (len(shown["refusals"]), len(shown["events"])) == (KEPT, KEPT)
    assert len(recent._latest) <= len(kinds)
    assert max(len(str(each)) for each in (*shown["refusals"], *shown["events"])) < 600


def test_events_read_as_sentences_and_tell_no_traceback() -> None:
    recent = Recent(Wall())
    log = ProcessLog(LogWriter(None, lambda record: b""), recent=recent)
    log.info("reloaded", warnings=[])
    log.warning("lever_pulled", lever="cap", on="gpu-a", max_streams=4, was=8)
    log.error("story_failed", id="r1", traceback="File /etc/secret, line 1")
    log.error("reload_refused", problems=["f.yaml:1:1: pools: one", "f.yaml:2:1: lanes: two"])
    log.info("resting", backend="a")
    assert [(each["event"], each["text"]) for each in recent.document()["events"]] == [
        ("reload_refused", "problems f.yaml:1:1: pools: one; f.yaml:2:1: lanes: two"),
        ("story_failed", "id r1"),
        ("lever_pulled", "cap gpu-a 4"),
        ("reloaded", ""),
    ]
