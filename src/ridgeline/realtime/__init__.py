"""Perception pipelines with a frame deadline: declared, run, made steady, gated, blamed, tuned.

    from ridgeline.realtime import Pipeline

    pipeline = Pipeline("camera", deadline="33ms")
    camera = pipeline.sensor("camera", read_image, rate="30Hz")
    features = pipeline.stage("backbone", backbone, camera, budget="15ms")
    boxes = pipeline.stage("detect", detector, features)

What may not enter: the logic of edges, joins and deadlines (`frames/`, which simulation shares) and
simulation itself (`plan/realtime/`). Start reading at `pipeline.py`.
"""

from ridgeline.realtime.pipeline import Pipeline, PipelineNode, SensorReading, read_pipeline

__all__ = ["Pipeline", "PipelineNode", "SensorReading", "read_pipeline"]
