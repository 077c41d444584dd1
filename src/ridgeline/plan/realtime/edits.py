"""A pipeline with its times, changed: the graph and the times stay in step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from ridgeline.errors import InputError
from ridgeline.plan.realtime.timing import (
    CallSamples,
    PipelineTiming,
    SensorTiming,
    StageTiming,
)
from ridgeline.records.pipeline_shape import EdgeShape, PipelineShape, StageShape


def change_stage(timing: PipelineTiming, name: str, stage: StageTiming) -> PipelineTiming:
    """The pipeline with other times of one stage."""
    return replace(timing, stages={**timing.stages, name: stage})


def change_sensor(timing: PipelineTiming, name: str, rate_hz: float) -> PipelineTiming:
    """The pipeline with another rate of one sensor.

    What its frames were late by stays in seconds.
    """
    sensors = tuple(
        msgspec.structs.replace(one, rate_hz=rate_hz) if one.name == name else one
        for one in timing.shape.sensors
    )
    return replace(timing, shape=msgspec.structs.replace(timing.shape, sensors=sensors))


def change_edges(timing: PipelineTiming, stage: str, **fields: Any) -> PipelineTiming:
    """The pipeline with other edges into a stage, or everywhere; those that reuse stay."""
    if stage and stage not in timing.stages:
        raise InputError(f"{stage} is a sensor; edges are said of the stage that they lead to")

    def changed(one: StageShape) -> StageShape:
        if stage and one.name != stage:
            return one
        edges = (
            edge if edge.reuse else msgspec.structs.replace(edge, **fields) for edge in one.inputs
        )
        return msgspec.structs.replace(one, inputs=tuple(edges))

    stages = tuple(changed(one) for one in timing.shape.stages)
    return replace(timing, shape=msgspec.structs.replace(timing.shape, stages=stages))


def without_stage(timing: PipelineTiming, name: str) -> PipelineTiming:
    """The pipeline without a stage: what read it reads the stage's first input instead.

    Sensors that nothing reads any more go too, and paths that ended at the stage.
    """
    shape = timing.shape
    gone = next(one for one in shape.stages if one.name == name)
    if len(shape.stages) == 1:
        raise InputError(f"{name} is the only stage")
    stages = tuple(_bridged(one, gone) for one in shape.stages if one.name != name)
    read = {edge.source for one in stages for edge in one.inputs}
    sensors = tuple(one for one in shape.sensors if one.name in read)
    if not sensors or sensors[0] != shape.sensors[0]:
        raise InputError(f"without {name} nothing reads {shape.sensors[0].name}")
    kept = {one.name for one in sensors}
    paths = tuple(one for one in shape.paths if one.stage != name and one.sensor in kept)
    return replace(
        timing,
        shape=msgspec.structs.replace(shape, stages=stages, sensors=sensors, paths=paths),
        stages={key: one for key, one in timing.stages.items() if key != name},
        sensors={key: one for key, one in timing.sensors.items() if key in kept},
    )


def _bridged(stage: StageShape, gone: StageShape) -> StageShape:
    """A stage that reads what the one that is gone read."""
    edges: list[EdgeShape] = []
    there = {edge.source for edge in stage.inputs}
    for edge in stage.inputs:
        if edge.source != gone.name:
            edges.append(edge)
        elif gone.inputs[0].source not in there:
            edges.append(msgspec.structs.replace(edge, source=gone.inputs[0].source))
    if edges[0].reuse:
        edges[0] = msgspec.structs.replace(edges[0], reuse=False)
    return msgspec.structs.replace(stage, inputs=tuple(edges))


def copied(timing: PipelineTiming, streams: int) -> PipelineTiming:
    """So many of the pipeline side by side, on the same processors and cores.

    The copies' cameras are in step, and see other parts of the run: copy k of n begins k/n of it
    later, so that slow frames do not come in all at once.
    """
    if streams == 1:
        return timing
    shape = timing.shape
    shapes = [_renamed(shape, number) for number in range(streams)]
    stages: dict[str, StageTiming] = {}
    sensors: dict[str, SensorTiming] = {}
    for number in range(streams):
        shift = number * timing.slots // streams
        for name, stage in timing.stages.items():
            stages[_copy_name(name, number)] = _stage_shifted(stage, shift, timing)
        for name, sensor in timing.sensors.items():
            sensors[_copy_name(name, number)] = sensor
    return replace(
        timing,
        shape=msgspec.structs.replace(
            shape,
            sensors=tuple(one for copy in shapes for one in copy.sensors),
            stages=tuple(one for copy in shapes for one in copy.stages),
            paths=tuple(one for copy in shapes for one in copy.paths),
        ),
        stages=stages,
        sensors=sensors,
        streams=timing.streams * streams,
    )


def _copy_name(name: str, number: int) -> str:
    return name if number == 0 else f"{name} #{number + 1}"


def _renamed(shape: PipelineShape, number: int) -> PipelineShape:
    def name(one: str) -> str:
        return _copy_name(one, number)

    return msgspec.structs.replace(
        shape,
        sensors=tuple(msgspec.structs.replace(one, name=name(one.name)) for one in shape.sensors),
        stages=tuple(
            msgspec.structs.replace(
                one,
                name=name(one.name),
                inputs=tuple(
                    msgspec.structs.replace(edge, source=name(edge.source)) for edge in one.inputs
                ),
            )
            for one in shape.stages
        ),
        paths=tuple(
            msgspec.structs.replace(one, sensor=name(one.sensor), stage=name(one.stage))
            for one in shape.paths
        ),
    )


def _stage_shifted(stage: StageTiming, shift: int, timing: PipelineTiming) -> StageTiming:
    columns = {name: _shifted(samples, shift, timing) for name, samples in stage.columns.items()}
    cheaper = None if stage.cheaper is None else _shifted(stage.cheaper, shift, timing)
    return replace(stage, columns=columns, cheaper=cheaper)


def _shifted(samples: CallSamples, shift: int, timing: PipelineTiming) -> CallSamples:
    """The calls, so many slots earlier, in a circle."""
    if not shift:
        return samples
    slots = (samples.slots - shift) % timing.slots
    order = np.argsort(slots, kind="stable")
    return replace(
        samples, slots=slots[order], work=samples.work[order], before=samples.before[order]
    )
