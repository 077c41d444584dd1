"""Mean average precision of detectors: COCO's, by COCO's own evaluation.

What is read of a model's outputs is `logits` [images, queries, classes] and `pred_boxes` [images,
queries, 4], centres and sizes as shares of the picture that it saw: the form of DETR and all that
followed it in transformers (Carion et al., 2020, §3). As many logits as classes: each is a chance
of its own (RT-DETR, Deformable DETR); one more: the last stands for no object.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ridgeline.compress.images.material import ImageMaterial, Images, preprocessing
from ridgeline.compress.images.models import VisionModel
from ridgeline.compress.images.outputs import answered, is_classifier, tensors_of
from ridgeline.errors import InputError
from ridgeline.image_files.boxes import BoxedImage, Boxes, read_boxes
from ridgeline.image_files.preprocess import Preprocess

SCORES, BOXES = "logits", "pred_boxes"
MOST = 300
"""Boxes kept of an image before the evaluation takes its best 100."""
INSTALL = "pip install pycocotools"


@dataclass(frozen=True, slots=True)
class Detection:
    """How the boxes of one model are judged."""

    boxes: Boxes
    change: Preprocess
    """How a picture became what the model saw."""
    classes: tuple[int | None, ...]
    """The category of each class of the model; None: of none that is judged."""
    independent: bool
    """Each class has a chance of its own; else the last logit is that of no object."""
    places: tuple[int, int]
    """Where scores and boxes stand among the outputs."""

    def mean_average_precision(self, model: nn.Module, images: Images) -> float:
        """The mAP at IoU 0.50 to 0.95, at most 100 boxes an image, over objects of every size.

        Args:
            model: Gives the outputs that `places` names.
            images: Those that `boxes` is about, in its order.

        Raises:
            InputError: The model does not take them.
        """
        rows: list[NDArray[np.float64]] = []
        pictures = iter(self.boxes.images)
        for batch in images.batches():
            outputs = tensors_of(answered(model, batch))
            logits, boxes = (outputs[place].float().cpu() for place in self.places)
            rows += [self._found(*one, next(pictures)) for one in zip(logits, boxes, strict=True)]
        return _evaluated(self.boxes, np.concatenate(rows))

    def _found(self, logits: Tensor, boxes: Tensor, picture: BoxedImage) -> NDArray[np.float64]:
        """The best boxes of one picture: image, left, top, width, height, score, category."""
        scores = logits.sigmoid() if self.independent else logits.softmax(-1)[:, :-1]
        known = torch.tensor([one is not None for one in self.classes])
        scores = scores.masked_fill(~known, -1.0)
        if self.independent:
            best, flat = scores.flatten().topk(min(MOST, scores.numel()))
            query, label = flat // scores.shape[1], flat % scores.shape[1]
        else:
            best, label = scores.max(-1)
            query = torch.arange(len(boxes))
        kept = best > 0
        corners = _in_picture(boxes[query[kept]].double().numpy(), self.change, picture)
        sorts = np.array([self.classes[one] for one in label[kept].tolist()], np.float64)
        number = np.full(len(sorts), picture.id, np.float64)
        return np.column_stack([number, corners, best[kept].double().numpy(), sorts])


def detection_of(
    path: Path, material: ImageMaterial, model: VisionModel, images: Images, names: Sequence[str]
) -> Detection:
    """How a model's boxes are judged on images.

    Args:
        path: COCO's annotation file.
        material: What says how pictures become what the model takes.
        model: One that answers in the form of DETR.
        images: Those that are judged.
        names: Of the model's outputs, in order.

    Raises:
        InputError: The model is a classifier, its outputs have another form, or the file does not
            fit model or images.
    """
    _check_installed()
    first = answered(model.module, images.head(1))
    if is_classifier(first):
        raise InputError(f"--boxes {path}: {model.name} is a classifier; leave it out")
    boxes = read_boxes(path, images.source, images.places)
    _, change, _ = preprocessing(model, material.pixels, images.source)
    if change is None:
        raise InputError(
            f"--boxes {path}: where boxes lie after the script's own preprocess() is not known;"
            " give --resize HxW with --mean and --std instead of it, or --metric FILE.py:NAME"
        )
    last = [name.rpartition(".")[2] for name in names]
    missing = [one for one in (SCORES, BOXES) if last.count(one) != 1]
    if missing:
        raise InputError(
            f"--boxes {path}: {model.name} has outputs {', '.join(names)}, and one named"
            f" {missing[0]} is needed; wrap it to return {SCORES} and {BOXES}, or give --metric"
            " FILE.py:NAME"
        )
    places = last.index(SCORES), last.index(BOXES)
    count = tensors_of(first)[places[0]].shape[-1]
    classes, independent = _classes(boxes, model, count)
    return Detection(boxes, change, classes, independent, places)


def _classes(boxes: Boxes, model: VisionModel, count: int) -> tuple[tuple[int | None, ...], bool]:
    """The category of each of a model's classes, and whether no logit stands for no object."""
    by_name = {one.name: one.id for one in boxes.categories}
    if model.labels:
        numbers = {label: by_name.get(name) for name, label in model.labels.items()}
        known = [numbers.get(place) for place in range(max(numbers) + 1)]
        if not any(one is not None for one in known):
            raise InputError(
                f"--boxes {boxes.name}: has {', '.join(list(by_name)[:3])}, …, and {model.name} has"
                f" {', '.join(list(model.labels)[:3])}, …: no name is in both; rename categories"
            )
    elif count in (len(by_name), len(by_name) + 1):
        known = [one.id for one in boxes.categories]
    else:  # DETR's own code numbers classes as the file numbers categories
        numbered = {one.id for one in boxes.categories}
        known = [place if place in numbered else None for place in range(max(numbered) + 1)]
    if count not in (len(known), len(known) + 1):
        raise InputError(
            f"--boxes {boxes.name}: {model.name} gives {count} logits a box for {len(known)}"
            " classes; there must be as many, or one more for no object"
        )
    return tuple(known), count == len(known)


def _in_picture(
    boxes: NDArray[np.float64], change: Preprocess, picture: BoxedImage
) -> NDArray[np.float64]:
    """Left, top, width and height in a picture's own pixels, cut off at its edges.

    Args:
        boxes: [n, 4], centre x, centre y, width, height, shares of what the model saw.
        change: How the picture became that.
        picture: Its size.
    """
    frame = change.frame(picture.width, picture.height)
    centre, half = boxes[:, :2], boxes[:, 2:] / 2
    size = np.array([frame.width, frame.height], np.float64)
    corners = np.stack([centre - half, centre + half]) * size  # [2, n, 2]
    corners = (corners + np.array([frame.left, frame.top])) / [frame.scale_x, frame.scale_y]
    corners = corners.clip(0, [picture.width, picture.height])
    return np.concatenate([corners[0], corners[1] - corners[0]], axis=1)


def _check_installed() -> None:
    try:
        import pycocotools.cocoeval  # noqa: F401
    except ImportError:
        raise InputError(f"--boxes needs COCO's own evaluation: {INSTALL}") from None


def _evaluated(boxes: Boxes, found: NDArray[np.float64]) -> float:
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    with _quietly():
        truth = COCO()
        truth.dataset = {
            "images": [{"id": one.id} for one in boxes.images],
            "categories": [{"id": one.id, "name": one.name} for one in boxes.categories],
            "annotations": [
                {
                    "id": number,
                    "image_id": one.image_id,
                    "category_id": one.category_id,
                    "bbox": list(one.bbox),
                    "area": one.bbox[2] * one.bbox[3] if one.area is None else one.area,
                    "iscrowd": one.iscrowd,
                }
                for number, one in enumerate(boxes.annotations, start=1)
            ],
        }
        truth.createIndex()
        if not len(found):
            return 0.0
        judge = COCOeval(truth, truth.loadRes(found), "bbox")
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    return float(judge.stats[0])


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """The evaluation prints what it does."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
