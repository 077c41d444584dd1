"""A stage between two events: what waits for it, what it runs, what waits for room behind it."""

from __future__ import annotations

import math

import msgspec

from ridgeline.frames.call_log import CallLog
from ridgeline.frames.edges import Edge, FrameSources, Payload, oldest_stamps
from ridgeline.frames.fates import Delay
from ridgeline.frames.jobs import FrameJob
from ridgeline.frames.misses import RecentStageTimes
from ridgeline.records.pipeline_shape import StageShape
from ridgeline.records.realtime_run import CallMode


class JobState(msgspec.Struct, frozen=True, eq=False):
    """The frames inside a stage: one copy each, whatever inputs they came by."""

    number: int
    payloads: tuple[Payload, ...]
    sources: FrameSources
    stamp: float
    oldest: float
    delay: Delay
    ready: float
    started: float

    def as_job(self, stage: str, mode: CallMode, deadline_seconds: float) -> FrameJob:
        """The call as drivers see it; the deadline counts from the oldest stamp."""
        sources, payloads = self.sources, self.payloads
        alone = len(sources) == 1
        return FrameJob(
            stage=stage,
            number=self.number,
            frame=sources[0][1].frame,
            stamps=sources[0][1].stamps if alone else oldest_stamps(sources),
            inputs=tuple([payload.value for payload in payloads]),
            mode=mode,
            ready=self.ready,
            deadline=self.oldest + deadline_seconds,
        )


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
        self.only_out: Edge | None = None
        """Where all that it makes goes on, if that is one way and comes out of the same sinks."""
        if len(outs) == 1 and outs[0].sinks == sinks:
            self.only_out = outs[0]
        self.job: JobState | None = None
        self.blocked = 0
        """Edges that have no room for its last output."""
        self.last: Payload | None = None
        """Its last output, where that is to be held; its newest, where it is a sink."""
        self.decided = -math.inf
        """Up to here its leading frames have gone on or are lost."""
        self.told = -math.inf
        """What its readers know of that."""

    def end(self, job: FrameJob) -> JobState:
        """The call that it ran has ended, and this is what was inside."""
        inside = self.job
        if inside is None or inside.number != job.number:
            raise ValueError(f"{job.stage} does not run job {job.number}")
        self.job = None
        return inside

    @property
    def busy(self) -> bool:
        """Whether it can take nothing now."""
        return self.job is not None or self.blocked > 0
