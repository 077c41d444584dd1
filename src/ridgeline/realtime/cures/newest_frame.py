"""Sensors' edges keep the newest frame only: under overload results are of what is seen now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline.realtime.cures import CureCard, CureStage, Fit
from ridgeline.realtime.rewriting.graph import with_policy
from ridgeline.records.ledger import Options

if TYPE_CHECKING:
    from ridgeline.realtime.pipeline import Pipeline
    from ridgeline.realtime.rewriting.observe import ObservedPipeline

CARD = CureCard(
    name="newest-frame",
    title="Only the newest frame waits",
    costs="More frames are dropped while a stage is busy; each is counted.",
    source="docs/reference/realtime-pipeline.md",
    stage=CureStage.RUN,
    watched="age",
)
_QUEUES = 1.3


def applies(pipeline: Pipeline, seen: ObservedPipeline) -> Fit:
    """At the declared rate results are older than the frame takes."""
    sensors = {sensor.name for sensor in pipeline.shape.sensors}
    edges = [edge for stage in pipeline.shape.stages for edge in stage.inputs]
    if all(edge.policy == "latest-only" for edge in edges if edge.source in sensors):
        return Fit(reason="only the newest frame waits already")
    if seen.queue_ratio < _QUEUES:
        return Fit(reason="frames do not queue at the declared rate")
    return Fit(({},))


def apply(pipeline: Pipeline, options: Options) -> Pipeline:
    """Change the policy of every edge that leaves a sensor."""
    return with_policy(pipeline, "latest-only", 1)
