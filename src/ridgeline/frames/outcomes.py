"""What a run came to, frame by frame: ages at sinks, ages along paths, seconds of stages.

Pure arithmetic on the columns of a `RealtimeRun`, whether it was run or simulated, with the
warm-up left out. A sink's frames are those of its leading sensor, the one that is reached by first
edges alone: a slow sensor beside it serves many frames, and one of a fast sensor that no frame was
joined with is no loss.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ridgeline.frames.graph import StageGraph
from ridgeline.records.pipeline_shape import PipelineShape, StageShape
from ridgeline.records.realtime_run import FrameFates, RealtimeRun, StageCalls

Array = NDArray[np.float64]

LOST = ("dropped", "failed")
"""Kinds of fate without a result."""
RESULTS = ("delivered", "late")
"""Kinds of fate with one."""


def leading_sensor(shape: PipelineShape, stage: str) -> str:
    """The sensor whose frames give this stage's calls their identity."""
    return StageGraph(shape).leads[stage]


def sensors_behind(shape: PipelineShape, stage: str, *, reused: bool = True) -> tuple[str, ...]:
    """The sensors that a stage's output depends on, in the order they were declared.

    Args:
        shape: The whole pipeline.
        stage: Whose output.
        reused: Also those that come by edges alone that reuse their frames; no deadline counts
            from these.
    """
    stages = {one.name: one for one in shape.stages}
    found: set[str] = set()
    waiting = [stage]
    while waiting:
        one = waiting.pop()
        if one in found:
            continue
        found.add(one)
        if one in stages:
            waiting += [edge.source for edge in stages[one].inputs if reused or not edge.reuse]
    return tuple(sensor.name for sensor in shape.sensors if sensor.name in found)


def stage_of(shape: PipelineShape, name: str) -> StageShape:
    """The stage of this name, which is there."""
    return next(one for one in shape.stages if one.name == name)


def measured_fates(run: RealtimeRun, sink: str) -> FrameFates:
    """The fates of the leading sensor's frames at a sink, without the warm-up."""
    sensor = leading_sensor(run.shape, sink)
    for fates in run.fates:
        if (fates.sensor, fates.sink) == (sensor, sink):
            return _without_warmup(fates, run.warmup_frames)
    return FrameFates(
        sensor=sensor, sink=sink, frames=[], stamps=[], arrived=[], ended=[], kinds=[], places=[],
        reasons=[],
    )  # fmt: skip


def _without_warmup(fates: FrameFates, warmup: int) -> FrameFates:
    return FrameFates(
        sensor=fates.sensor,
        sink=fates.sink,
        frames=fates.frames[warmup:],
        stamps=fates.stamps[warmup:],
        arrived=fates.arrived[warmup:],
        ended=fates.ended[warmup:],
        kinds=fates.kinds[warmup:],
        places=fates.places[warmup:],
        reasons=fates.reasons[warmup:],
    )


def sink_ages(run: RealtimeRun, sink: str) -> Array:
    """Seconds from the oldest stamp behind a result to the result, of the frames that have one.

    As the deadline counts: what came by an edge that reuses its frames is left out.
    """
    fates = measured_fates(run, sink)
    oldest = _oldest_stamps(run, sink)
    return np.array(
        [
            ended - min(stamp, oldest.get(frame, stamp))
            for frame, stamp, ended, kind in zip(
                fates.frames, fates.stamps, fates.ended, fates.kinds, strict=True
            )
            if kind in RESULTS and ended is not None
        ],
        dtype=np.float64,
    )


def _oldest_stamps(run: RealtimeRun, stage: str) -> dict[int, float]:
    """Frame → the oldest stamp of the other sensors that a deadline of this stage counts from."""
    calls = calls_of(run, stage)
    fresh = set(sensors_behind(run.shape, stage, reused=False))
    others = fresh & calls.behind.keys() - {leading_sensor(run.shape, stage)}
    columns = [_stamps_of(run, sensor, calls) for sensor in others]
    return {
        frame: min(column[place] for column in columns)
        for place, frame in enumerate(calls.frames)
        if columns and all(place in column for column in columns)
    }


def calls_of(run: RealtimeRun, stage: str) -> StageCalls:
    """The calls of a stage, which may be none."""
    none = StageCalls(stage=stage, frames=[], ready=[], started=[], ended=[], modes=[])
    return next((one for one in run.calls if one.stage == stage), none)


def _failed_frames(run: RealtimeRun, stage: str) -> set[int]:
    """Identities of the frames on which a stage raised, or its process died."""
    sensor = leading_sensor(run.shape, stage)
    return {
        frame
        for fates in run.fates
        if fates.sensor == sensor
        for frame, kind, place in zip(fates.frames, fates.kinds, fates.places, strict=True)
        if kind == "failed" and place == stage
    }


def _warm_frames(run: RealtimeRun, stage: str) -> set[int]:
    """Identities of the frames of the warm-up, as a stage's calls name them."""
    sensor = leading_sensor(run.shape, stage)
    return {
        frame
        for fates in run.fates
        if fates.sensor == sensor
        for frame in fates.frames[: run.warmup_frames]
    }


def measured_calls(run: RealtimeRun, calls: StageCalls) -> list[int]:
    """Places, in a stage's columns, of its calls after the warm-up that had an output."""
    left_out = _warm_frames(run, calls.stage) | _failed_frames(run, calls.stage)
    return [place for place, frame in enumerate(calls.frames) if frame not in left_out]


def call_seconds(calls: StageCalls, places: Sequence[int]) -> Array:
    """Seconds of the calls of a stage's own code, the cheaper calls of frames in need left out."""
    return np.array(
        [
            calls.ended[place] - calls.started[place]
            for place in places
            if calls.modes[place] == "run"
        ],
        dtype=np.float64,
    )


def path_ages(run: RealtimeRun, sensor: str, stage: str) -> Array:
    """Age of a sensor's data at each output of a stage; a slow sensor's data serves several."""
    calls = calls_of(run, stage)
    stamps = _stamps_of(run, sensor, calls)
    return np.array(
        [
            calls.ended[place] - stamps[place]
            for place in measured_calls(run, calls)
            if place in stamps
        ],
        dtype=np.float64,
    )


def _stamps_of(run: RealtimeRun, sensor: str, calls: StageCalls) -> dict[int, float]:
    """Place of a call → the stamp of a sensor's data behind it."""
    known: dict[int, float] = {}
    for fates in run.fates:
        if fates.sensor == sensor:
            for frame, stamp in zip(fates.frames, fates.stamps, strict=True):
                known.setdefault(frame, stamp)  # nothing ran on one whose id was repeated
    if sensor != leading_sensor(run.shape, calls.stage) and sensor not in calls.behind:
        return {}
    frames = calls.behind.get(sensor, calls.frames)
    return {place: known[frame] for place, frame in enumerate(frames) if frame in known}
