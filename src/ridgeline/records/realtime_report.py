"""What `ridgeline realtime run` answers: stages, paths, sinks, losses, causes, the gate's verdict.

The run behind it, call by call, is a `RealtimeRun`. Ages are seconds from the stamp that a sensor
gave a frame to the moment at which something made of it came out.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ridgeline.records.calls import Quantile
from ridgeline.records.pipeline_shape import PipelineShape
from ridgeline.records.realtime_blame import CauseCount, MissCause
from ridgeline.records.realtime_run import Executor, SensorFault, SteadyMeasure
from ridgeline.records.tagged import TaggedRecord


class SampledSeconds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long something took over a run; at least one sample."""

    count: int
    mean_seconds: float
    p50: Quantile
    p99: Quantile
    worst_seconds: float


class StageLatency(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One stage over a run."""

    stage: str
    seconds: SampledSeconds | None
    """Times of its own code; null where that was never called."""
    wait_p99_seconds: float | None
    """From the moment at which its inputs lay there to its start; null without a call."""
    budget_seconds: float | None
    """Its own; null where none was declared."""
    share: float | None
    """P99 over the budget, over the deadline where there is no budget; null without either."""
    over_budget: int
    """Calls that took longer than the budget."""
    degraded: int = 0
    held: int = 0
    skipped: int = 0
    gpu_p50_seconds: float | None = None
    enqueue_p50_seconds: float | None = None
    tight_p50_seconds: float | None = None
    """In the tight loop; null where there was none."""
    flattery: float | None = None
    """Median at the frame rate over the one of the tight loop, which looks so many times better."""


class PathAges(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Age of one sensor's data when one stage's output came out."""

    sensor: str
    stage: str
    age: SampledSeconds | None
    """Null where nothing came out, or the run does not tell."""
    budget_seconds: float | None
    """The path's own, or the deadline for a path that ends at a sink."""
    over_budget: int


class SinkOutcome(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What became of the frames of the sensor that leads a sink."""

    sink: str
    sensor: str
    frames: int
    """All that have a fate: those still in flight at the end are not judged."""
    delivered: int
    late: int
    dropped: int
    failed: int
    unfinished: int
    miss_share: float | None
    """Frames without a result in time over all; null where there is none."""
    miss_share_low: float | None
    miss_share_high: float | None
    """Bounds of the share, at 95 % (Wilson), for frames that are independent."""
    age: SampledSeconds | None
    """Age of the frames that have a result; null where none has."""
    p99_over_p50: float | None
    results_per_second: float | None


class FrameLoss(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Frames that were lost at one place for one reason."""

    sensor: str
    sink: str
    kind: Literal["dropped", "failed"]
    place: str
    """The edge (`a -> b`), the stage or the sensor."""
    reason: str
    frames: int
    first_frame: int


GateLimit = Literal[
    "max-miss", "p99-over-p50", "worst", "mean", "p99.9", "stage-budget", "path-budget"
]  # fmt: skip


class GateCheck(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One limit at one place. Shares and ratios are numbers, ages seconds."""

    limit: GateLimit
    sink: str
    """The sink; of a budget the stage, or the path as `sensor -> stage`."""
    allowed: float
    found: float | None
    """Null where no result came out, or where the percentile falls on frames that have none."""
    low: float | None = None
    """Bounds at 95 %; null where the frames are too few to bound it."""
    high: float | None = None
    passed: bool
    note: str = ""
    """What the frames cannot prove, and how many could."""


class GateVerdict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether a run kept its limits."""

    mode: Literal["limits", "constant-stream"]
    passed: bool
    checks: list[GateCheck]


class RealtimeReport(TaggedRecord, frozen=True, kw_only=True, tag="realtime-report"):
    """The answer as one document."""

    pipeline: str
    executor: Executor
    shape: PipelineShape
    deadline_seconds: float | None
    seconds: float
    stages: list[StageLatency]
    paths: list[PathAges]
    sinks: list[SinkOutcome]
    losses: list[FrameLoss]
    causes: list[CauseCount]
    """Why frames missed, those that cost most frames first."""
    misses: list[MissCause]
    """Every frame that missed, in order."""
    gate: GateVerdict | None = None
    """Null where no limit was given."""
    sensor_faults: list[SensorFault] = []
    steady: list[SteadyMeasure] = []
    notes: list[str] = []
