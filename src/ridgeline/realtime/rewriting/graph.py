"""Stages with other code, edges with other policies: a pipeline changed, the given one left."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from ridgeline.realtime.pipeline import Pipeline
    from ridgeline.records.pipeline_shape import EdgePolicy

Call = Callable[..., Any]


class WrappedStage:
    """The code of a stage with something around it; the modules within keep their paths."""

    def __init__(self, call: Call) -> None:
        self.call = call

    @property
    def runs(self) -> Call:
        """What is called within."""
        return self.call

    def __call__(self, *inputs: Any) -> Any:
        """What the stage returns."""
        return self.call(*inputs)


def innermost(call: Call) -> Call:
    """The code of a stage as its author wrote it."""
    while isinstance(call, WrappedStage):
        call = call.call
    return call


def called_code(call: Call) -> Call:
    """The code that a stage runs within all that lies around it: its author's, or its twin."""
    while isinstance(call, WrappedStage):
        call = call.runs
    return call


def with_calls(pipeline: Pipeline, wrap: Callable[[Call], Call], stages: Iterable[str]) -> Pipeline:
    """The pipeline with the code of some stages wrapped."""
    code = {name: pipeline.code[name] for name in stages}
    return pipeline.changed(
        code={name: replace(one, call=wrap(one.call)) for name, one in code.items()}
    )


def without_deadline(pipeline: Pipeline, *, slower: float = 1.0) -> Pipeline:
    """The pipeline without a deadline, so that each frame goes the whole way.

    Args:
        pipeline: Stays as it is.
        slower: By how much longer the period of each sensor becomes.
    """
    shape = pipeline.shape
    sensors = tuple(
        one if one.rate_hz is None else msgspec.structs.replace(one, rate_hz=one.rate_hz / slower)
        for one in shape.sensors
    )
    stages = tuple(msgspec.structs.replace(stage, on_miss="finish") for stage in shape.stages)
    return pipeline.changed(
        msgspec.structs.replace(shape, sensors=sensors, stages=stages, deadline_seconds=None)
    )


def with_policy(pipeline: Pipeline, policy: EdgePolicy, depth: int) -> Pipeline:
    """The pipeline with another policy on the edges that leave a sensor."""
    shape = pipeline.shape
    sensors = {sensor.name for sensor in shape.sensors}
    stages = tuple(
        msgspec.structs.replace(
            stage,
            inputs=tuple(
                msgspec.structs.replace(edge, policy=policy, depth=depth)
                if edge.source in sensors and not edge.reuse
                else edge
                for edge in stage.inputs
            ),
        )
        for stage in shape.stages
    )
    return pipeline.changed(msgspec.structs.replace(shape, stages=stages))
