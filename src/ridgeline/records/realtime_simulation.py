"""What a pipeline would do: the JSON contract of `ridgeline realtime simulate`.

Ages are seconds from the stamp that a sensor gave a frame to the moment at which its result comes
out of a sink, as in a run.
"""

from __future__ import annotations

import msgspec

from ridgeline.records.finite import Computed

Bounds = tuple[float, float]
"""Low and high end of an interval."""


class SimulatedAge(Computed, frozen=True, kw_only=True):
    """How old results are when they come out, in seconds."""

    p50: float
    p99: float
    worst: float
    mean: float
    p50_interval: Bounds
    p99_interval: Bounds
    """95 of 100 runs of so many frames would lie there: frames resampled in blocks."""


class SimulatedSink(Computed, frozen=True, kw_only=True):
    """The fates of the frames of the sensor that leads a sink."""

    sink: str
    sensor: str
    frames: int
    """All that have a fate."""
    delivered: int
    late: int
    dropped: int
    failed: int
    miss_share: float | None
    """Share of frames that were late, dropped or failed; None: no frame has a fate."""
    miss_interval: Bounds | None
    age: SimulatedAge | None
    """How old results are; None: no result came out."""
    results_per_second: float
    losses: dict[str, int]
    """Where and why frames were dropped or failed, `place: reason`, and how many."""


class SimulatedStage(Computed, frozen=True, kw_only=True):
    """What one stage does."""

    stage: str
    calls: int
    p50_seconds: float | None
    """Median time of a call, contention included; None: never called."""
    p99_seconds: float | None
    wait_p99_seconds: float | None
    """From the moment at which its inputs lay there to its start."""
    busy_share: float
    """Share of the time in which it runs."""


class SimulatedPipeline(Computed, frozen=True, kw_only=True):
    """One variant of the pipeline, simulated."""

    change: str
    """What was changed; empty: nothing."""
    executor: str
    cores: int | None
    """Cores that threads contend for; None: as many as are needed."""
    deadline_seconds: float | None
    sum_seconds: float
    """All stages one after the other, on average: the age of a result that waits nowhere."""
    bound_per_second: float
    """Frames per second that the busiest worker, processor or core can do, as stages overlap."""
    bound_by: str
    """Which one that is."""
    sinks: tuple[SimulatedSink, ...]
    stages: tuple[SimulatedStage, ...]
    answered_in_seconds: float
    """Time that the simulation took."""


class NeededFactor(Computed, frozen=True, kw_only=True):
    """How much of its time one stage may keep, so that the target is met."""

    stage: str
    """The stage's name; empty: all stages alike."""
    factor: float | None
    """The largest that meets it, at most 1; None: not even a stage that takes no time does."""
    now_seconds: float
    """Mean time of a call as it is."""
    needed_seconds: float | None
    """Mean time at that factor."""


class TargetAnswer(Computed, frozen=True, kw_only=True):
    """What it takes to meet a deadline, by one stage alone and by all alike."""

    target_seconds: float
    max_miss: float
    """Share of frames that may be late or lost."""
    met: bool
    """Whether the pipeline meets it as it is."""
    factors: tuple[NeededFactor, ...]


class RealtimeSimulation(
    Computed, frozen=True, kw_only=True, tag_field="record", tag="realtime-simulation"
):
    """The answer as one document."""

    pipeline: str
    source: str
    """The run or the table that the times come from, and what they are."""
    frames: int
    """Frames of the first sensor that were simulated."""
    seed: int
    base: SimulatedPipeline
    what_if: tuple[SimulatedPipeline, ...] = ()
    """Each change alone, in the order they were asked for."""
    together: SimulatedPipeline | None = None
    """All changes at once; None where there are fewer than two."""
    measured: tuple[SimulatedSink, ...] = ()
    """What the run itself did, beside `base`; empty for a table."""
    published_total_seconds: float | None = None
    """The total that the table's source gives; None where it gives none."""
    target: TargetAnswer | None = None
    ages_seconds: dict[str, tuple[float, ...]] = msgspec.field(default_factory=dict)
    """Sink → the ages of its results in `base`, in the order of their frames."""
    notes: tuple[str, ...] = ()
