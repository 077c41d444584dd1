"""Pipelines for tests, written short."""

from __future__ import annotations

from typing import Any

from ridgeline.records.pipeline_shape import EdgeShape, PipelineShape, SensorShape, StageShape


def sensor(name: str, rate_hz: float | None = None) -> SensorShape:
    """A sensor."""
    return SensorShape(name=name, rate_hz=rate_hz)


def stage(name: str, *inputs: str | EdgeShape, **more: Any) -> StageShape:
    """A stage; an input by name is its default edge."""
    edges = [EdgeShape(source=one) if isinstance(one, str) else one for one in inputs]
    return StageShape(name=name, inputs=tuple(edges), **more)


def pipeline(*parts: SensorShape | StageShape, **more: Any) -> PipelineShape:
    """A pipeline of sensors and stages."""
    return PipelineShape(
        name="test",
        sensors=tuple(one for one in parts if isinstance(one, SensorShape)),
        stages=tuple(one for one in parts if isinstance(one, StageShape)),
        **more,
    )
