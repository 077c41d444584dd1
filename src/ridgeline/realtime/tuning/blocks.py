"""Frames timed at the frame rate, without frames that wait for others.

A pipeline that is slower than its sensors queues, and the age of its results then says more of the
queue than of the code. So both sides of a comparison run at one period that the slower of them
holds; the pipeline's own rate is left to the last proof.
"""

from __future__ import annotations

from collections import defaultdict
from statistics import median

import msgspec

from ridgeline.realtime.cures import RunChoice
from ridgeline.realtime.execute import execute
from ridgeline.realtime.pipeline import Pipeline
from ridgeline.realtime.recording import FREE_RUNNING_HZ, Recording
from ridgeline.realtime.rewriting.graph import without_deadline
from ridgeline.realtime.steady import SteadyProcess
from ridgeline.realtime.tuning.wire import FramesTimed
from ridgeline.records.realtime_run import RealtimeRun

WARMUP = 3
"""Leading frames of each block, after the other side ran on the same cores."""


def time_frames(
    pipeline: Pipeline,
    recording: Recording,
    choice: RunChoice,
    *,
    frames: int,
    period_seconds: float | None,
) -> FramesTimed:
    """Run a block of recorded frames.

    Args:
        pipeline: As it is after its cures.
        recording: Sent again and again.
        choice: Executor and steadiness.
        frames: After a few that only warm up.
        period_seconds: Of the first sensor, the others' in proportion; None: a tight loop.
    """
    run = execute(
        _replaying(pipeline, recording, period_seconds),
        executor=choice.executor,
        frames=frames,
        warmup=WARMUP,
        steady=SteadyProcess() if choice.steady else None,
        tight=period_seconds is None,
    )
    return _timed(run)


def _replaying(pipeline: Pipeline, recording: Recording, period_seconds: float | None) -> Pipeline:
    """The pipeline on recorded frames at this period, without a deadline."""
    shape = pipeline.shape
    sensors = tuple(
        msgspec.structs.replace(one, rate_hz=one.rate_hz or FREE_RUNNING_HZ)
        for one in shape.sensors
    )
    first = sensors[0].rate_hz or FREE_RUNNING_HZ
    slower = 1.0 if period_seconds is None else period_seconds * first
    paced = pipeline.changed(msgspec.structs.replace(shape, sensors=sensors))
    made = without_deadline(paced, slower=slower)
    made.readers.update(recording.readers())
    return made


def _timed(run: RealtimeRun) -> FramesTimed:
    """Latencies of the frames after the warm-up: the age of each at the last sink it reached."""
    first = run.shape.sensors[0].name
    ages: dict[int, float] = defaultdict(float)
    sent: set[int] = set()
    ends: list[float] = []
    for table in run.fates:
        if table.sensor != first:
            continue
        kept = slice(run.warmup_frames, None)
        rows = zip(table.frames, table.stamps, table.ended, table.kinds, strict=True)
        for frame, stamp, ended, kind in list(rows)[kept]:
            sent.add(frame)
            if ended is not None and kind in ("delivered", "late"):
                ages[frame] = max(ages[frame], ended - stamp)
                ends.append(ended)
    spans = {
        calls.stage: [
            end - start
            for frame, start, end in zip(calls.frames, calls.started, calls.ended, strict=True)
            if frame in ages
        ]
        for calls in run.calls
    }
    return FramesTimed(
        latencies=list(ages.values()),
        stage_seconds={name: median(spent) for name, spent in spans.items() if spent},
        delivered=len(ages),
        sent=len(sent),
        seconds=max(ends) - min(ends) if len(ends) > 1 else None,
    )
