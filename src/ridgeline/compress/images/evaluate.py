"""How good a vision model is on images, alone or beside the model that it was made from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from msgspec.structs import replace
from torch import Tensor

from ridgeline.compress.evaluate.loaded import device_of
from ridgeline.compress.images.answers import answers
from ridgeline.compress.images.detection import detection_of
from ridgeline.compress.images.material import (
    ImageMaterial,
    Images,
    check_labels,
    divided,
    open_sources,
)
from ridgeline.compress.images.measure import divergence, logits_over, quality
from ridgeline.compress.images.models import VisionModel, name_arguments, open_model
from ridgeline.compress.images.outputs import (
    OutputComparison,
    answered,
    as_called,
    is_classifier,
    largest_batch,
    output_names,
    read_metric,
    share_of_choices,
    tensors_of,
)
from ridgeline.compress.vision.batches import inputs_of
from ridgeline.errors import InputError
from ridgeline.hardware.environment import environment
from ridgeline.measure.device_name import device_name
from ridgeline.records.image_compression import (
    ImageAnswers,
    ImageEvaluation,
    ImageProtocol,
    ImageRow,
)
from ridgeline.runtimes.capture.structure import Structure


def evaluate_images(
    material: ImageMaterial,
    against: ImageMaterial | None,
    *,
    on_progress: Callable[[str], None] = lambda _: None,
) -> ImageEvaluation:
    """A model on images, alone or beside another: top-1 and agreement, or each of its outputs.

    Args:
        material: The model, the images as `held`, how they are preprocessed, the user's measure.
        against: The model to compare with, on images of its own preprocessing; None: none.
        on_progress: Told what is under way.

    Raises:
        InputError: A model or the images cannot be used, their classes are not as many, or there
            is nothing to judge outputs by that are no logits.
    """
    metric = None if material.metric is None else read_metric(material.metric)
    own = _opened(material, on_progress)
    other = None if against is None else _opened(against, on_progress)
    model, images, said = own
    first = answered(model.module, images.head(1))
    if is_classifier(first):
        above, row = _classified(own, other)
    elif other is None and metric is None and material.boxes is None:
        raise InputError(
            f"{model.name}: gives {len(tensors_of(first))} output(s) that are no logits [images,"
            " classes]; give --against MODEL to compare them with, --boxes FILE, or --metric"
            " FILE.py:NAME"
        )
    else:
        above, row = _compared(own, other)
    if material.boxes is not None:
        above, row = _detected(material, own, other, above, row)
    if metric is not None:
        structure = _structure(model, other and other[0])
        row = replace(row, metric=metric(as_called(model.module, structure)))
        if above is not None and other is not None:
            measured = metric(as_called(other[0].module, structure))
            above = replace(above, metric=measured)
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
        environment=environment(device=device_name(device_of(material.device))),
    )


_Opened = tuple[VisionModel, Images, str]
"""A model, the images as it takes them, and how they were preprocessed."""


def _opened(material: ImageMaterial, on_progress: Callable[[str], None]) -> _Opened:
    sources = open_sources(material)
    on_progress(f"judging {material.model}")
    device = str(device_of(material.device))
    model = open_model("MODEL", material.model, material.checkpoint, device)
    _, images, said = divided(material, sources, model)
    name_arguments(model, images)
    return model, images.for_batches_of(largest_batch(model.module, images)), said


def _classified(own: _Opened, other: _Opened | None) -> tuple[ImageRow | None, ImageRow]:
    """The rows of the other classifier and of the one that is judged."""
    model, images, _ = own
    logits = logits_over(model.module, images)
    check_labels(images, logits.shape[1])
    if other is None:
        return None, _row(model, images, logits)
    given = logits_over(other[0].module, other[1])
    if given.shape != logits.shape:
        raise InputError(
            f"--against {other[0].name}: {given.shape[1]} classes, {model.name} has"
            f" {logits.shape[1]}"
        )
    return _row(other[0], other[1], given), _row(model, images, logits, given)


def _compared(own: _Opened, other: _Opened | None) -> tuple[ImageRow | None, ImageRow]:
    """The same two rows, output by output; each model reads images in its own way."""
    model, images, _ = own
    row = _plain(model)
    if other is None:
        return None, row
    found = OutputComparison()
    for given, taken in zip(other[1].batches(), images.batches(), strict=True):
        found.add(answered(other[0].module, given), answered(model.module, taken))
    outputs = found.found(output_names(_structure(model, other[0]), len(found.sums)))
    agreement = share_of_choices(outputs)
    answers_of = ImageAnswers(agreement=agreement, sqnr_db=found.sqnr_db)
    return _plain(other[0]), replace(row, outputs=outputs, answers=answers_of)


def _detected(
    material: ImageMaterial,
    own: _Opened,
    other: _Opened | None,
    above: ImageRow | None,
    row: ImageRow,
) -> tuple[ImageRow | None, ImageRow]:
    """The same rows with the mAP of each."""
    assert material.boxes is not None
    model, images, _ = own
    outputs = tensors_of(answered(model.module, images.head(1)))
    names = output_names(_structure(model, other and other[0]), len(outputs))
    described = model if model.labels or other is None else _named_as(model, other[0])
    judge = detection_of(material.boxes, material, described, images, names)
    found = judge.mean_average_precision(model.module, images)
    row = replace(row, mean_average_precision=found)
    if above is None or other is None:
        return above, row
    judge = detection_of(material.boxes, material, other[0], other[1], names)
    found = judge.mean_average_precision(other[0].module, other[1])
    return replace(above, mean_average_precision=found), row


def _structure(model: VisionModel, other: VisionModel | None) -> Structure | None:
    """What lies around the tensors of the model's answers; a file keeps it no more."""
    both = [one.module for one in (model, other) if one is not None]
    return next((one.structure for one in both if getattr(one, "structure", None)), None)


def _named_as(model: VisionModel, other: VisionModel) -> VisionModel:
    """A file that holds no names of classes, with those of the model that it was made from."""
    return dataclasses.replace(model, labels=other.labels)


def _plain(model: VisionModel) -> ImageRow:
    return ImageRow(
        scheme=model.name,
        disk_bytes=model.disk_bytes,
        parameters=sum(one.numel() for one in model.module.parameters()),
        flops=0,
        computed_with=model.computed_with,
    )


def _row(
    model: VisionModel, images: Images, logits: Tensor, given: Tensor | None = None
) -> ImageRow:
    return replace(
        _plain(model),
        quality=None if images.labels is None else quality(logits, images.labels),
        divergence=None if given is None else divergence(given, logits),
        answers=None if given is None else answers(given, logits, images.labels),
    )
