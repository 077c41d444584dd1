"""What the ledger says of one variant of the pipeline, from blocks of as many frames as fit."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

import numpy as np

from ridgeline.realtime.tuning import wire
from ridgeline.realtime.tuning.budget import FEWEST_FRAMES, block_seconds
from ridgeline.realtime.tuning.sides import SideProcess
from ridgeline.records.realtime_ledger import FrameFigures

_FRAMES = 40


@dataclass(frozen=True, slots=True)
class TimedFrames:
    """Frames that were timed without waiting for each other."""

    latencies: list[float]
    stages: list[dict[str, float]]
    """Seconds of the stages, block by block."""


def figures_seconds(base: wire.SideOpened, unhurried_seconds: float | None = None) -> float:
    """How long all blocks of one variant take.

    Args:
        base: The pipeline as it is.
        unhurried_seconds: A period at which frames do not wait; None: they were timed already.
    """
    found = block_seconds(_FRAMES, base.frame_seconds)
    if base.deadline_seconds is not None:
        found += block_seconds(2 * _FRAMES, max(base.period_seconds, base.frame_seconds))
    if unhurried_seconds is not None:
        found += block_seconds(_FRAMES, unhurried_seconds)
    return found


def figures_of(
    side: SideProcess,
    base: wire.SideOpened,
    quality: dict[str, float],
    timed: TimedFrames | None,
    *,
    unhurried_seconds: float,
    seconds: float,
) -> FrameFigures:
    """The figures of a variant: unhurried, tight, and at the rate of the sensors.

    Args:
        side: Its process.
        base: The pipeline as it is.
        quality: Its figures of merit.
        timed: Frames that were timed already; None: they still have to be.
        unhurried_seconds: The period at which they do not wait for each other.
        seconds: What all of this may take; blocks are shorter where it takes longer.
    """
    wanted = figures_seconds(base, unhurried_seconds if timed is None else None)
    fits = min(1.0, max(0.0, seconds) / wanted)

    def block(frames: int, period_seconds: float | None) -> wire.FramesTimed:
        fewer = max(FEWEST_FRAMES, round(fits * frames))
        order = wire.TimeFrames(frames=fewer, period_seconds=period_seconds)
        return side.ask(order, wire.FramesTimed)

    if timed is None:
        found = block(_FRAMES, unhurried_seconds)
        timed = TimedFrames(found.latencies, [found.stage_seconds])
    tight = block(_FRAMES, None)
    missed = None
    if base.deadline_seconds is not None:
        hurried = block(2 * _FRAMES, base.period_seconds)
        met = sum(1 for age in hurried.latencies if age <= base.deadline_seconds)
        missed = 1 - met / hurried.sent if hurried.sent else None
    names = dict.fromkeys(name for one in timed.stages for name in one)
    return FrameFigures(
        frame_seconds=median(timed.latencies),
        p99_seconds=float(np.quantile(timed.latencies, 0.99)),
        frames=len(timed.latencies),
        frames_per_second=(tight.delivered - 1) / tight.seconds if tight.seconds else 0.0,
        stage_seconds={
            name: median(one[name] for one in timed.stages if name in one) for name in names
        },
        missed_share=missed,
        ages_seconds=tuple(timed.latencies),
        quality=quality,
    )
