"""One pipeline step under one schedule, block by block, and what every other schedule makes of it.

The blocks are those of `pipeline_schedule.py`; here their bubbles are counted. A schedule that
these micro-batches cannot have (interleaving in groups of p) is left out of the comparison.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from ridgeline.cost.pipeline_schedule import ChunkSeconds, Timeline, simulate
from ridgeline.records.layout import Schedule

MOST_BLOCKS = 50_000
USUAL_CHUNKS = 2
"""Model chunks of the interleaved schedule where the one looked at has a single one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleTotal:
    """What a schedule comes to."""

    schedule: Schedule
    num_chunks: int
    makespan_seconds: float
    bubble_fraction: float
    """Share of all stages' time that is idle."""
    peak_live_microbatches: float
    """Activations that the fullest stage holds at once, in micro-batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleComparison:
    """One step of a pipeline, and the schedules it could have had."""

    timeline: Timeline
    num_stages: int
    bubble_fraction: float
    ideal_seconds: float
    """The step if no stage ever waited."""
    idle_seconds: tuple[float, ...]
    """The time that each stage waits."""
    peak_live_microbatches: tuple[float, ...]
    """How many micro-batches each stage holds at most."""
    schedules: tuple[ScheduleTotal, ...]
    """The schedules, the shortest step first."""


def compare_schedules(
    schedule: Schedule,
    num_stages: int,
    num_microbatches: int,
    seconds: ChunkSeconds,
    num_chunks: int = 1,
    p2p_seconds: float = 0.0,
) -> ScheduleComparison:
    """A pipeline step block by block: where its stages idle, and how other schedules compare.

    `seconds` is one micro-batch in a whole stage, all of its chunks together.

    >>> each = ChunkSeconds(
    ...     forward_seconds=1.0, backward_input_seconds=1.0, backward_weight_seconds=1.0
    ... )
    >>> found = compare_schedules("1f1b", 4, 8, each)
    >>> round(found.bubble_fraction, 3), [one.schedule for one in found.schedules]
    (0.273, ['zero-bubble', 'interleaved', 'gpipe', '1f1b'])

    Raises:
        ValueError: There is no such schedule of these numbers.
    """
    blocks = 3 * num_stages * num_microbatches * max(num_chunks, USUAL_CHUNKS)
    if blocks > MOST_BLOCKS:
        raise ValueError(f"{blocks} blocks are more than {MOST_BLOCKS}: take fewer micro-batches")
    if min(seconds.forward_seconds, seconds.backward_input_seconds,
           seconds.backward_weight_seconds, p2p_seconds) < 0:  # fmt: skip
        raise ValueError("times cannot be below 0")

    def of(name: Schedule, chunks: int) -> Timeline:
        return simulate(
            name,
            num_stages=num_stages,
            num_microbatches=num_microbatches,
            num_chunks=chunks,
            p2p_seconds=p2p_seconds,
            seconds=ChunkSeconds(
                forward_seconds=seconds.forward_seconds / chunks,
                backward_input_seconds=seconds.backward_input_seconds / chunks,
                backward_weight_seconds=seconds.backward_weight_seconds / chunks,
            ),
        )

    timeline = of(schedule, num_chunks)
    totals = []
    for name in get_args(Schedule):
        chunks = max(num_chunks, USUAL_CHUNKS) if name == "interleaved" else 1
        if name == schedule:
            totals.append(_total(timeline))
        elif name != "interleaved" or num_microbatches % num_stages == 0:
            totals.append(_total(of(name, chunks)))
    return ScheduleComparison(
        timeline=timeline,
        num_stages=num_stages,
        bubble_fraction=timeline.bubble_fraction,
        ideal_seconds=sum(timeline.busy_seconds) / num_stages,
        idle_seconds=tuple(timeline.makespan_seconds - busy for busy in timeline.busy_seconds),
        peak_live_microbatches=timeline.peak_live_microbatches,
        schedules=tuple(
            sorted(totals, key=lambda one: (one.makespan_seconds, one.bubble_fraction))
        ),
    )


def _total(timeline: Timeline) -> ScheduleTotal:
    return ScheduleTotal(
        schedule=timeline.schedule,
        num_chunks=timeline.num_chunks,
        makespan_seconds=timeline.makespan_seconds,
        bubble_fraction=timeline.bubble_fraction,
        peak_live_microbatches=max(timeline.peak_live_microbatches),
    )
