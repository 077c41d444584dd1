"""A stage between two events: what waits for it, what it runs, what waits for room behind it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ridgeline.frames.call_log import CallLog
from ridgeline.frames.edges import Edge, FrameSources, Payload
from ridgeline.frames.fates import Delay
from ridgeline.frames.misses import RecentStageTimes
from ridgeline.records.pipeline_shape import StageShape


@dataclass(frozen=True, slots=True)
class JobState:
    """The frames inside a stage: one copy each, whatever inputs they came by."""

    number: int
    payloads: tuple[Payload, ...]
    sources: FrameSources
    stamp: float
    oldest: float
    delay: Delay
    ready: float
    started: float


class StageState:
    """What is known of a stage between two events."""

    def __init__(
        self, shape: StageShape, *, outs: list[Edge], sinks: tuple[int, ...], needed: frozenset[int]
    ) -> None:
        self.shape = shape
        self.name = shape.name
        self.sinks = sinks
        """Numbers of the sinks that its output can come out of."""
        self.needed = needed
        """Those of them that get nothing where this stage's output is lost."""
        self.edges = [Edge(edge, shape.name, sinks, needed) for edge in shape.inputs]
        self.lead = self.edges[0]
        self.partners = self.edges[1:]
        self.outs = outs
        self.times = RecentStageTimes(shape)
        self.log = CallLog(shape.name)
        self.job: JobState | None = None
        self.blocked = 0
        """Edges that have no room for its last output."""
        self.last: Payload | None = None
        """Its last output, where that is to be held; its newest, where it is a sink."""
        self.decided = -math.inf
        """Up to here its leading frames have gone on or are lost."""
        self.told = -math.inf
        """What its readers know of that."""

    @property
    def busy(self) -> bool:
        """Whether it can take nothing now."""
        return self.job is not None or self.blocked > 0
