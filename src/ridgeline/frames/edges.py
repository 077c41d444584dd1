"""What waits between a sensor or stage and its reader, and what a full edge does."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from ridgeline.frames.fates import Delay, FateBook, FrameEntry
from ridgeline.records.pipeline_shape import EdgeShape

FrameSources = tuple[tuple[FateBook, FrameEntry], ...]
"""Frames of sensors, each with the book that its fate is written in."""


class Payload:
    """A value and how many hold it: edges, running jobs, a stage's last output, a newest result."""

    __slots__ = ("holders", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.holders = 0


class FrameToken:
    """A payload on its way, with all that is known of the frames behind it."""

    __slots__ = ("delay", "oldest", "payload", "put", "sources", "stamp")

    def __init__(
        self,
        payload: Payload,
        sources: FrameSources,
        stamp: float,
        oldest: float,
        delay: Delay,
        put: float,
    ) -> None:
        self.payload = payload
        self.sources = sources
        """The frames behind this payload, each once, the leading one first."""
        self.stamp = stamp
        """The leading frame's, which orders it and joins it with others."""
        self.oldest = oldest
        """The earliest stamp behind it that a deadline counts from."""
        self.delay = delay
        """Where it lost most time so far."""
        self.put = put
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
        if not self.has_room:
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
