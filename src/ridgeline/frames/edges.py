"""What waits between a sensor or stage and its reader, and what a full edge does."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import msgspec

from ridgeline.frames.fates import Delay, FateBook, FrameEntry
from ridgeline.frames.jobs import SensorStamp
from ridgeline.records.pipeline_shape import EdgeShape

FrameSources = tuple[tuple[FateBook, FrameEntry], ...]
"""Frames of sensors, each with the book that its fate is written in."""


class Payload(msgspec.Struct, eq=False):
    """A value and how many hold it: edges, running jobs, a stage's last output, a newest result."""

    value: Any
    holders: int = 0


class FrameToken(msgspec.Struct, eq=False):
    """A payload on its way, with all that is known of the frames behind it."""

    payload: Payload
    sources: FrameSources
    """The frames behind this payload, each once, the leading one first."""
    stamp: float
    """The leading frame's, which orders it and joins it with others."""
    oldest: float
    """The earliest stamp behind it that a deadline counts from."""
    delay: Delay
    """Where it lost most time so far."""
    put: float
    """When it came to where it waits."""


class Edge:
    """What waits for one stage at one of its inputs.

    Every edge knows a time up to which all that can come has come or never will (`decided`): what
    comes later has a later stamp. So a join gives a frame up as soon as its partner is lost, not
    when a queue has run full. Sources that end set it to infinity.
    """

    __slots__ = ("decided", "depth", "evicts", "name", "needed", "pending", "queue", "reuse",
                 "sinks", "source", "target", "tolerance")  # fmt: skip

    def __init__(
        self, shape: EdgeShape, target: str, sinks: tuple[int, ...], needed: frozenset[int]
    ) -> None:
        self.source = shape.source
        self.target = target
        self.name = f"{shape.source} -> {target}"
        self.reuse = shape.reuse
        self.sinks = sinks
        """Numbers of the sinks that what lies here can come out of."""
        self.needed = frozenset() if shape.reuse else needed
        """Those of them that get nothing where it is lost."""
        self.evicts = shape.reuse or shape.policy in ("drop-oldest", "latest-only")
        self.depth: float = shape.depth
        if shape.policy == "latest-only":
            self.depth = 1
        elif shape.policy == "unbounded":
            self.depth = math.inf
        self.tolerance = 0.0
        """How far from a leading frame's stamp those of its partners here may lie."""
        self.queue: deque[FrameToken] = deque()
        self.pending: FrameToken | None = None
        """The output of a stage that waits for room here."""
        self.decided = -math.inf

    @property
    def has_room(self) -> bool:
        """Whether one more finds a place without a loss."""
        return len(self.queue) < self.depth

    def lay(self, token: FrameToken) -> tuple[bool, FrameToken | None]:
        """Let one more wait here: whether there is room, and which one gave way to it."""
        evicted = None
        if len(self.queue) >= self.depth:
            if not self.evicts:
                return False, None
            evicted = self.queue.popleft()
        self.queue.append(token)
        self.decided = token.stamp
        return True, evicted

    def nearest(self, stamp: float) -> FrameToken | None:
        """The one nearest in time to a leading frame; None: none is near enough."""
        best, distance = None, math.inf if self.reuse else self.tolerance
        for token in self.queue:
            apart = abs(token.stamp - stamp)
            if apart < distance or (best is None and apart <= distance):
                best, distance = token, apart
        return best

    def never(self, stamp: float) -> bool:
        """Whether none that is still to come can be near enough to a leading frame."""
        return self.decided >= stamp + (0.0 if self.reuse else self.tolerance)


def oldest_stamps(sources: FrameSources) -> dict[str, SensorStamp]:
    """Sensor → the oldest of its frames among these."""
    stamps: dict[str, SensorStamp] = {}
    for book, entry in sources:
        known = stamps.get(book.sensor)
        if known is None or entry.stamp < known.seconds:
            stamps[book.sensor] = SensorStamp(entry.frame, entry.stamp)
    return stamps
