"""Which priority classes are there? `lanes:` of the file, first served first."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from proxy.settings.section import Section, filled, refuse, setting
from proxy.settings.values import Name, Seconds, Share, Whole

FIRST_MAX_WAIT_S = 4.0
LOWER_MAX_WAIT_S = 20.0
LAST_SHARE = Fraction(1, 10)


class Lane(Section):
    """A priority class."""

    max_wait_s: Seconds = setting(
        "a request that would wait longer is refused; below the patience of those who call",
        FIRST_MAX_WAIT_S,
        shown="4s for the first lane, 20s for others",
    )
    share: Share = setting(
        "part of the dispatches that is this lane's while it waits, however busy the lanes above",
        Fraction(0),
        shown="10% for the last lane, else 0%",
    )
    reserve: Whole = setting("lower lanes are dispatched only while more than this many slots are free", 0, ge=0, le=1_000_000)


Lanes = Mapping[Name, Lane]


def default_lanes() -> Lanes:
    """The lanes of a file that names none: fast, then slow."""
    return with_defaults({"fast": Lane(), "slow": Lane()})


def with_defaults(lanes: Lanes) -> Lanes:
    """What a lane is by its place: the first is impatient, the last has a share unless it says otherwise."""
    if not lanes:
        raise ValueError("must name at least one lane")
    first, last = next(iter(lanes.values())), list(lanes.values())[-1]
    for lane in lanes.values():
        if lane is not first and "max_wait_s" not in lane.model_fields_set:
            filled(lane, {"max_wait_s": LOWER_MAX_WAIT_S})
    if "share" not in last.model_fields_set:
        filled(last, {"share": LAST_SHARE})
    if sum(lane.share for lane in lanes.values()) >= 1:
        over = max(lanes, key=lambda name: lanes[name].share)
        refuse(((over, "share"), "must be smaller: the shares of all lanes add up to 100% or more"))
    return lanes
