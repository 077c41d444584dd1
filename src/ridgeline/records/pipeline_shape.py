"""The shape of a real-time pipeline: sensors, stages, the edges between them, what overload does.

It holds names and numbers and no code, so a run, a simulation and a table typed by hand share it.
Times are seconds, rates Hz.
"""

from __future__ import annotations

from typing import Literal

import msgspec

EdgePolicy = Literal["block", "drop-oldest", "latest-only", "unbounded"]
"""What an edge does with a frame that finds it full.

`block`: the stage before waits (a sensor cannot: its frame is dropped, reason `full`);
`drop-oldest`: the frame that has waited longest makes room; `latest-only`: the same with a depth
of one; `unbounded`: the edge is never full, and data grows old without limit under overload."""

OnMiss = Literal["finish", "drop", "skip", "degrade", "hold"]
"""What a stage does with a frame that can no longer meet its deadline.

`finish`: runs all the same; `drop`: the frame ends here; `skip`: the stage is left out, its first
input goes on in place of its output; `degrade`: its cheaper call runs; `hold`: its last output goes
on again."""


class SensorShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A source of frames, each with an identity and the time at which it was taken."""

    name: str
    rate_hz: float | None = None
    """Frames per second; null: the next one as soon as the pipeline takes it (a tight loop)."""


class EdgeShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What waits between a sensor or stage and the stage that reads it."""

    source: str
    """The name of a sensor or a stage."""
    policy: EdgePolicy = "block"
    depth: int = 2
    """Frames that may wait; `latest-only` has one."""
    reuse: bool = False
    """The newest frame stays and serves again until a newer one comes, however old it grows: a slow
    sensor beside a fast one. Such an edge never blocks; its oldest frame makes room. A deadline
    does not count from what was reused: a path's budget does. Never on a stage's first edge."""


class StageShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A step of the pipeline; one frame at a time, in order."""

    name: str
    inputs: tuple[EdgeShape, ...]
    """What it reads; the first edge leads: each of its frames is joined with the frame of every
    other edge that is nearest in time among those that wait there."""
    budget_seconds: float | None = None
    on_miss: OnMiss = "finish"
    tolerance_seconds: float = 0.0
    """How far apart the stamps of joined frames of two sensors may lie. Frames of one sensor that
    went two ways have equal stamps, and are joined only with themselves."""
    processor: str = "cpu"
    """Stages of one processor (a GPU, a core, a thread) run one at a time where a simulation says
    so; see `PipelineShape.processors`."""


class PathBudget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A limit on the age of data from one sensor to one stage."""

    sensor: str
    stage: str
    """The path ends with this stage's output."""
    budget_seconds: float


class PipelineShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole pipeline; stages that no other stage reads are its sinks."""

    name: str
    deadline_seconds: float | None = None
    """Age of the oldest data behind a result, at most, when the result comes out of a sink; what
    came by an edge that reuses its frames does not count."""
    sensors: tuple[SensorShape, ...]
    stages: tuple[StageShape, ...]
    paths: tuple[PathBudget, ...] = ()
    processors: dict[str, int] = {}
    """Processor → stages that it runs at one time; absent: as many as there are."""

    @property
    def sinks(self) -> tuple[str, ...]:
        """Stages that no other stage reads, in the order they were declared."""
        read = {edge.source for stage in self.stages for edge in stage.inputs}
        return tuple(stage.name for stage in self.stages if stage.name not in read)
