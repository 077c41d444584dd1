"""Latency and throughput of a network for images over growing batches: the knee, and what is late.

Each point is `predict_vision_inference` at one batch; nothing is drawn between them.
"""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.errors import InputError
from ridgeline.models.vision.network import VisionNetwork
from ridgeline.plan.vision.inference import predict_vision_inference
from ridgeline.plan.vision.measured import MeasuredImages
from ridgeline.records.batch_curve import BatchCurve, BatchCurves, BatchPoint

KNEE = 0.9
"""Share of the largest throughput that counts as having it."""
MOST_BATCHES = 32


def batch_curves(
    model: str | VisionNetwork,
    device: str,
    batches: Sequence[int],
    *,
    software: Sequence[str] = ("eager",),
    image_size: int | tuple[int, int] | None = None,
    precision: str | None = None,
    memory_format: str = "contiguous",
    threads: int | None = None,
    within_seconds: float | None = None,
    measured: Sequence[MeasuredImages] = (),
) -> BatchCurves:
    """Predict each batch under each software; what was measured is of a single one.

    >>> found = batch_curves("resnet50", "a100", [1, 8, 64, 512], within_seconds=0.05)
    >>> found.curves[0].knee_batch in (64, 512), found.curves[0].points[0].in_time
    (True, True)

    Raises:
        InputError: No batch, one below 1, too many, or a question that cannot be answered.
    """
    if not batches or min(batches) < 1 or len(batches) > MOST_BATCHES:
        raise InputError(f"--batches: give 1 to {MOST_BATCHES} numbers of images, each 1 or more")
    if measured and len(software) > 1:
        raise InputError("--measured is of one runtime: give one --software")
    curves = [
        _curve(
            one,
            [
                BatchPoint(
                    estimate=estimate,
                    in_time=None
                    if within_seconds is None
                    else estimate.latency_seconds <= within_seconds,
                )
                for batch in sorted(set(batches))
                for estimate in [
                    predict_vision_inference(
                        model,
                        device,
                        batch=batch,
                        image_size=image_size,
                        precision=precision,
                        memory_format=memory_format,
                        software=one,
                        threads=threads,
                        measured=measured,
                    )
                ]
            ],
        )
        for one in software
    ]
    first = curves[0].points[0].estimate
    return BatchCurves(
        model=first.model,
        device=first.device,
        precision=first.precision,
        within_seconds=within_seconds,
        curves=curves,
    )


def _curve(software: str, points: list[BatchPoint]) -> BatchCurve:
    most = max(one.estimate.images_per_second for one in points)
    return BatchCurve(
        software=software,
        points=points,
        knee_batch=next(
            one.estimate.batch for one in points if one.estimate.images_per_second >= KNEE * most
        ),
        largest_in_time=max((one.estimate.batch for one in points if one.in_time), default=None),
    )
