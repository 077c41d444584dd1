"""Graphs that cannot be: one line each, which names what is wrong."""

from __future__ import annotations

import pytest
from tests.frames.shapes import pipeline, sensor, stage

from ridgeline.errors import InputError
from ridgeline.frames.flow import FrameFlow
from ridgeline.frames.graph import StageGraph
from ridgeline.records.pipeline_shape import EdgeShape, PathBudget, PipelineShape

CAMERA = sensor("camera", 30.0)
DETECT = stage("detect", "camera")


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (
            pipeline(CAMERA, stage("a", "camera", "c"), stage("b", "a"), stage("c", "b")),
            "its stages form a cycle, a -> b -> c -> a; keep what a stage needs of its last frame",
        ),
        (pipeline(CAMERA, stage("a", "camera", "a")), "its stages form a cycle, a -> a"),
        (
            pipeline(CAMERA, stage("plan", "detct"), DETECT),
            "stage plan: reads 'detct', which is none of camera, detect",
        ),
        (pipeline(CAMERA, DETECT, DETECT), "'detect' names 2 sensors or stages"),
        (pipeline(CAMERA, stage("camera", "camera")), "'camera' names 2 sensors or stages"),
        (pipeline(CAMERA, stage("detect")), "stage detect: has no input"),
        (pipeline(CAMERA, sensor("radar"), DETECT), "no stage reads the sensor radar"),
        (pipeline(DETECT), "has no sensor"),
        (pipeline(CAMERA), "has no stage"),
        (
            pipeline(CAMERA, stage("detect", "camera", on_miss="degrade")),
            "stage detect: on a miss it shall degrade, but the pipeline has no deadline",
        ),
        (
            pipeline(CAMERA, stage("detect", EdgeShape(source="camera", reuse=True))),
            "stage detect: its first input leads and cannot be reused",
        ),
        (
            pipeline(CAMERA, stage("detect", EdgeShape(source="camera", depth=0))),
            "stage detect: the edge from camera holds at least 1, not 0",
        ),
        (pipeline(CAMERA, stage("join", "camera", "camera")), "reads camera 2 times"),
        (pipeline(CAMERA, DETECT, deadline_seconds=0.0), "a deadline is above zero, not 0 s"),
        (pipeline(sensor("camera", -1.0), DETECT), "sensor camera: a rate is above zero"),
        (pipeline(CAMERA, stage("a -> b", "camera")), "'a -> b' is no name"),
        (
            pipeline(
                CAMERA,
                sensor("radar"),
                DETECT,
                stage("track", "radar"),
                paths=(PathBudget(sensor="radar", stage="detect", budget_seconds=0.1),),
            ),
            "the path from radar to detect is none; detect depends on camera",
        ),
        (
            pipeline(CAMERA, DETECT, processors={"gpu": 0}),
            "processor gpu: runs at least 1 stage, not 0",
        ),
    ],
)
def test_a_graph_that_cannot_be_is_refused_in_one_line(shape: PipelineShape, message: str) -> None:
    with pytest.raises(InputError) as error:
        FrameFlow(shape)
    assert message in str(error.value)
    assert str(error.value).startswith("pipeline test: ")
    assert "\n" not in str(error.value)


def test_sinks_and_leading_sensors_follow_from_the_graph() -> None:
    graph = StageGraph(
        pipeline(
            CAMERA,
            sensor("radar", 10.0),
            stage("fuse", "detect", "radar"),
            DETECT,
            stage("plan", "fuse"),
            stage("record", "radar"),
        )
    )
    assert graph.sinks == ("plan", "record")
    assert graph.order.index("detect") < graph.order.index("fuse") < graph.order.index("plan")
    assert graph.leads["plan"] == "camera"
    assert graph.reached["radar"] == ("plan", "record")
