"""Why frames of a real-time run missed their deadline: one cause per miss, and causes counted."""

from __future__ import annotations

from typing import Literal

import msgspec

MissKind = Literal[
    "more work",
    "blocked",
    "waiting for a core",
    "lock",
    "garbage collection",
    "page faults",
    "lower clock",
    "throttle",
    "too slow",
    "queueing",
    "sensor late",
    "sensor gap",
    "sensor stopped",
    "repeated id",
    "bad stamp",
    "sensor raised",
    "no partner",
    "raised",
    "died",
    "restart",
    "not known",
]
"""What kind of thing cost a frame its deadline.

`more work`: the stage computed for longer than it does (its input was larger); `blocked`: its call
slept or waited for a disk, a network, another process; `waiting for a core`: it could have run, and
something else had the core; `lock`: another stage held the interpreter's lock or one of the user's;
`lower clock`: the same work took more cycles' time; `throttle`: the kernel took the core from a
real-time process, or its control group had used up its share; `too slow`: nothing was unusual, the
usual times alone are past the deadline; `queueing`: the frame waited behind a stage that cannot
keep up with the rate; `bad stamp`: from the future, or older than the one before; `no partner`:
another sensor's frame was missing from a join; `restart`: a process was being started again."""


class CauseShare(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the causes that made a frame late, with the time that it cost."""

    place: str
    """The stage, sensor or edge."""
    kind: MissKind
    seconds: float


class MissCause(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why one frame missed its deadline at one sink, or never came out."""

    sensor: str
    sink: str
    frame: int
    fate: str
    """One of `late`, `dropped`, `failed`."""
    at_seconds: float
    """When it came out or was lost; the end of the run where that is not known."""
    over_seconds: float | None
    """By how much it was late; null: it never came out."""
    place: str
    """The guilty stage, sensor, or edge (`a -> b`)."""
    kind: MissKind
    co_runner: str = ""
    """Who had the core, held the lock or starved the join: a process, a stage, a sensor."""
    excess_seconds: float = 0.0
    """Time that the cause took beyond what is usual at this place."""
    confidence: float
    """Share of the frame's unusual time that the cause explains, from 0 to 1."""
    behind: int | None = None
    """The earlier frame on which the cause fell, where this one only waited behind it."""
    evidence: str
    """One sentence with the numbers that speak for it."""
    others: tuple[CauseShare, ...] = ()
    """What else cost time, the largest first."""


class CauseCount(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All misses of a run with one cause at one place."""

    place: str
    kind: MissKind
    co_runner: str = ""
    """The one that was there most often."""
    misses: int
    share: float
    """Share of all misses, from 0 to 1."""
    median_excess_seconds: float
    worst_excess_seconds: float
    frames: tuple[int, ...]
    """The first frames that it befell."""
    evidence: str
    """The evidence of the worst of them."""
    cure: str
    """What a person can do about it, in one sentence."""
