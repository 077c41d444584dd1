"""How long calls take and when frames come: what a simulated pipeline is made of.

Times are kept by the slot of the frame that they belong to, so that a scene that is slow in one
stage is slow in the next one too, and slow frames follow each other as they did.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ridgeline.records.pipeline_shape import PipelineShape

Seconds = NDArray[np.float64]
Slots = NDArray[np.int64]

SimulatedExecutor = Literal["inline", "threads", "processes"]
"""Who calls the stages. `inline`: one worker, the deepest stage first; else each stage has its own.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSamples:
    """Times of one stage's calls, one row per call."""

    slots: Slots
    """Slot of the leading sensor's frame, in ascending order."""
    work: Seconds
    """Time of the call on a core of its own."""
    before: Seconds
    """From the moment at which the call could begin until it did."""
    after: float = 0.0
    """Until what comes next knows of the result."""

    @property
    def mean(self) -> float:
        """Seconds of the average call."""
        return float(self.work.mean())


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTiming:
    """The times of one stage."""

    columns: Mapping[str, CallSamples]
    """Times by column of a table (a device at a precision); a run has one, named ``""``."""
    column: str = ""
    """The one that holds."""
    scale: float = 1.0
    """What a what-if makes of the time of a call."""
    cheaper: CallSamples | None = None
    """Times of its cheaper call; None: never seen."""
    core_share: float = 1.0
    """Share of a call in which it needs a core; the rest it sleeps or waits for a GPU."""

    @property
    def times(self) -> CallSamples:
        """The times that hold, before `scale`."""
        return self.columns[self.column]

    @property
    def mean_seconds(self) -> float:
        """The average call as simulated, on a core of its own."""
        return self.times.mean * self.scale


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorTiming:
    """When a sensor's frames were taken and when they came, by slot of its rate.

    Slots without a frame are gaps. Equal lengths.
    """

    slots: Slots
    stamped: Seconds
    """How late the stamp is against the slot's time at the sensor's rate."""
    delay: Seconds
    """From the stamp until the frame is in the pipeline, were its reader free."""
    repeated: NDArray[np.bool_]
    """The frame came with the identity of the one before."""
    slots_per_first: float = 1.0
    """Slots of this sensor per slot of the first one, as measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    """A device at a precision."""

    device: str
    precision: str
    total_seconds: float | None = None
    """What the table's source gives for all stages; None: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTiming:
    """A pipeline with the times of everything in it: what what-ifs change and simulations run."""

    shape: PipelineShape
    executor: SimulatedExecutor
    cores: int | None
    """Cores that the stages of the processor `cpu` contend for; None: enough for all."""
    stages: Mapping[str, StageTiming]
    sensors: Mapping[str, SensorTiming]
    slots: int
    """Slots of the first sensor that times are known for; 1: the same for all."""
    warmup_slots: int = 0
    """Leading ones that statistics leave out."""
    columns: Mapping[str, TableColumn] = field(default_factory=dict)
    """The columns of a table; empty for a run."""
    column: str = ""
    """The one that the pipeline as a whole stands for."""
    streams: int = 1
    """Copies of the whole pipeline on the same processors and cores."""
