"""What a frame's deadline leaves: its slack, and how much faster one stage must become.

    slack      D - sum of the stages
    needed     stage / (D - the other stages)
    frame      sum of the stages, of those that run side by side only the longest

of stages that run one after another on one frame. Jitter, queues and stages that run side by side
are for the simulator (`ridgeline realtime simulate`): this is the sum on the back of an envelope.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """One stage as it was and as it is."""

    name: str
    before_seconds: float
    after_seconds: float
    speedup: float
    side_by_side: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameTable:
    """The stages of a frame before and after, and what the frame comes to."""

    stages: tuple[StageRow, ...]
    serial_before_seconds: float
    serial_after_seconds: float
    parallel_before_seconds: float
    """With the stages of `parallel` side by side."""
    parallel_after_seconds: float
    frames_per_second_before: float
    """With the stages one after another."""
    frames_per_second_after: float


def slack_seconds(deadline_seconds: float, stage_seconds: Sequence[float]) -> float:
    """The part of the deadline that no stage uses; below 0: the frame is late by so much.

    >>> round(slack_seconds(0.033, [0.004, 0.018, 0.006]), 6)
    0.005
    """
    _check(deadline_seconds, stage_seconds)
    return deadline_seconds - sum(stage_seconds)


def needed_speedup(
    deadline_seconds: float, stage_seconds: float, other_seconds: Sequence[float]
) -> float:
    """How many times faster one stage must be for the frame to meet its deadline; ∞: never.

    >>> needed_speedup(0.033, 0.046, [0.004, 0.006])
    2.0
    """
    _check(deadline_seconds, [stage_seconds, *other_seconds])
    left = slack_seconds(deadline_seconds, other_seconds)
    return stage_seconds / left if left > 0.0 else math.inf


def frame_table(
    names: Sequence[str],
    before_seconds: Sequence[float],
    after_seconds: Sequence[float],
    parallel: Sequence[str] = (),
) -> FrameTable:
    """A frame stage by stage, before and after, one after another and with some side by side.

    >>> names = ["backbone", "boxes", "lanes"]
    >>> table = frame_table(names, [20, 6, 5], [10, 4, 3], parallel=["boxes", "lanes"])
    >>> table.serial_before_seconds, table.parallel_before_seconds, table.parallel_after_seconds
    (31, 26, 14)
    """
    if not len(names) == len(before_seconds) == len(after_seconds) or not names:
        raise ValueError(
            f"{len(names)} names, {len(before_seconds)} times before, {len(after_seconds)} after"
        )
    if min(*before_seconds, *after_seconds) <= 0.0:
        raise ValueError("every stage takes time")
    unknown = [name for name in parallel if name not in names]
    if unknown:
        raise ValueError(f"no stage {unknown[0]!r} in names; there are {', '.join(names)}")
    beside = [name in parallel for name in names]
    rows = [
        StageRow(
            name=name,
            before_seconds=before,
            after_seconds=after,
            speedup=before / after,
            side_by_side=joined,
        )
        for name, before, after, joined in zip(
            names, before_seconds, after_seconds, beside, strict=True
        )
    ]
    serial = (sum(before_seconds), sum(after_seconds))
    return FrameTable(
        stages=tuple(rows),
        serial_before_seconds=serial[0],
        serial_after_seconds=serial[1],
        parallel_before_seconds=_side_by_side(before_seconds, beside),
        parallel_after_seconds=_side_by_side(after_seconds, beside),
        frames_per_second_before=1.0 / serial[0],
        frames_per_second_after=1.0 / serial[1],
    )


def _side_by_side(seconds: Sequence[float], beside: Sequence[bool]) -> float:
    """The sum of stages, of which those side by side count as their longest."""
    joined = [one for one, together in zip(seconds, beside, strict=True) if together]
    return sum(seconds) - sum(joined) + max(joined, default=0.0)


def _check(deadline_seconds: float, stages: Sequence[float]) -> None:
    if deadline_seconds <= 0.0 or min(stages, default=0.0) < 0.0:
        raise ValueError("a deadline is above 0, and no stage takes less than nothing")
