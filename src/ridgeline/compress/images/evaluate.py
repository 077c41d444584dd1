"""How good a vision model is on images, alone or beside the model that it was made from."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ridgeline.compress.evaluate.loaded import device_of
from ridgeline.compress.images.answers import answers
from ridgeline.compress.images.material import (
    ImageMaterial,
    Images,
    check_labels,
    divided,
    open_sources,
)
from ridgeline.compress.images.measure import divergence, logits_over, quality
from ridgeline.compress.images.models import VisionModel, open_model
from ridgeline.compress.vision.batches import inputs_of
from ridgeline.errors import InputError
from ridgeline.hardware.environment import environment
from ridgeline.measure.device_name import device_name
from ridgeline.records.image_compression import ImageEvaluation, ImageProtocol, ImageRow


def evaluate_images(
    material: ImageMaterial,
    against: ImageMaterial | None,
    *,
    on_progress: Callable[[str], None] = lambda _: None,
) -> ImageEvaluation:
    """Top-1 accuracy of a model, and its agreement with another on the same images.

    Args:
        material: The model, the images as `held`, and how they are preprocessed.
        against: The model to compare with, on images of its own preprocessing; None: none.
        on_progress: Told what is under way.

    Raises:
        InputError: A model or the images cannot be used, or their classes are not as many.
    """
    model, images, said, logits = _answered(material, on_progress)
    device = device_of(material.device)
    row, above = _row(model, images, logits), None
    if against is not None:
        other, _, _, given = _answered(against, on_progress)
        if given.shape != logits.shape:
            raise InputError(
                f"--against {other.name}: {given.shape[1]} classes, {model.name} has"
                f" {logits.shape[1]}"
            )
        above = _row(other, images, given)
        row = _row(model, images, logits, given)
    return ImageEvaluation(
        model=model.name,
        against=None if against is None else str(against.model),
        protocol=ImageProtocol(
            images=images.name,
            judged=len(images),
            calibrated=0,
            shape=tuple(inputs_of(images.head(1))[0].shape[1:]),
            labelled=images.labels is not None,
            preprocess=said,
        ),
        row=row,
        against_row=above,
        environment=environment(device=device_name(device)),
    )


def _answered(
    material: ImageMaterial, on_progress: Callable[[str], None]
) -> tuple[VisionModel, Images, str, Tensor]:
    sources = open_sources(material)
    on_progress(f"judging {material.model}")
    device = str(device_of(material.device))
    model = open_model("MODEL", material.model, material.checkpoint, device)
    _, images, said = divided(material, sources, model)
    logits = logits_over(model.module, images)
    check_labels(images, logits.shape[1])
    return model, images, said, logits


def _row(
    model: VisionModel, images: Images, logits: Tensor, given: Tensor | None = None
) -> ImageRow:
    return ImageRow(
        scheme=model.name,
        disk_bytes=model.disk_bytes,
        parameters=sum(one.numel() for one in model.module.parameters()),
        flops=0,
        quality=None if images.labels is None else quality(logits, images.labels),
        divergence=None if given is None else divergence(given, logits),
        answers=None if given is None else answers(given, logits, images.labels),
        computed_with=model.computed_with,
    )
