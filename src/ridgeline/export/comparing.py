"""Answers of a converted model beside those of the eager one, call by call.

Agreement is what a user of the answers would notice: the class of the largest output, of each
pixel where the output is a map, or of each box of a detector. SQNR is 10 log₁₀ of the eager
answers' energy over that of the difference, all outputs of all calls together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ridgeline.records.runtime_export import Likeness
from ridgeline.runtimes import Precision
from ridgeline.runtimes.capture.structure import flatten

LEAST_SQNR_DB: dict[Precision, float] = {"fp32": 40.0, "fp16": 25.0, "bf16": 15.0, "int8": 5.0}
"""Below this no rounding to the format explains the difference: the mantissas of float32, float16
and bfloat16 give some 140, 66 and 48 dB a sum, of which a deep network loses up to half; sound int8
networks are published from 10 dB on."""
LEAST_AGREEMENT: dict[Precision, float] = {"fp32": 0.97, "fp16": 0.9, "bf16": 0.8, "int8": 0.5}
"""The least agreement of answers without a SQNR: the numbers of boxes differ from call to call."""
_MEET = 0.5
"""Intersection over union from which two boxes are one (Everingham et al., PASCAL VOC, 2010)."""


@dataclass(slots=True)
class Compared:
    """What is summed up over calls."""

    signal: float = 0.0
    noise: float = 0.0
    largest: float = 0.0
    answers: float = 0.0
    equal: float = 0.0
    inputs: int = 0
    unlike: str = ""
    """Why the outputs cannot be compared number by number."""
    broken: str = ""
    chosen: list[Tensor] = field(default_factory=list)
    """The classes that the converted model chose, where it classifies."""

    def add(self, wanted: Any, found: Any, batch: int) -> None:
        """Compare the answers of one call."""
        self.inputs += batch
        boxes = _detections(wanted)
        if boxes:
            self._add_boxes(boxes, _detections(found))
            return
        ours, theirs = flatten(found)[0], flatten(wanted)[0]
        if [one.shape for one in ours] != [one.shape for one in theirs]:
            shapes = (_shapes(theirs), _shapes(ours))
            self.broken = self.broken or f"it answers {shapes[1]} where eager answers {shapes[0]}"
            return
        self._add_choices(theirs, ours)
        for one, other in zip(theirs, ours, strict=True):
            self._add_numbers(one, other)

    def _add_numbers(self, wanted: Tensor, found: Tensor) -> None:
        if not wanted.is_floating_point():
            return
        one, other = wanted.double(), found.double()
        finite = one.isfinite()
        if not bool((finite == other.isfinite()).all()):
            self.broken = self.broken or "it answers NaN or infinity where eager does not"
            return
        one, other = one[finite], other[finite]
        self.signal += float(one.square().sum())
        self.noise += float((one - other).square().sum())
        if one.numel():
            self.largest = max(self.largest, float((one - other).abs().max()))

    def _add_choices(self, wanted: Sequence[Tensor], found: Sequence[Tensor]) -> None:
        place = _choosing(wanted)
        if place is None:
            return
        one, other = wanted[place], found[place]
        if one.is_floating_point():
            one, other = one.argmax(1), other.argmax(1)
        if one.ndim == 1:
            self.chosen.append(other)
        self.equal += float((one == other).sum())
        self.answers += one.numel()

    def _add_boxes(self, wanted: list[_Boxes], found: list[_Boxes]) -> None:
        if len(wanted) != len(found):
            self.broken = (
                f"it answers for {len(found)} images where eager answers for {len(wanted)}"
            )
            return
        for one, other in zip(wanted, found, strict=True):
            meeting = one.meeting(other)
            self.equal += 2.0 * meeting
            self.answers += len(one.boxes) + len(other.boxes)
            if len(one.boxes) == len(other.boxes):
                self._add_numbers(one.boxes, other.boxes)
            else:
                self.unlike = "the numbers of boxes differ"

    @property
    def agreement(self) -> float | None:
        """Share of equal answers; None where there is nothing to choose."""
        return self.equal / self.answers if self.answers else None

    @property
    def sqnr_db(self) -> float | None:
        """Signal over noise; None where there is no difference, or nothing to compare."""
        if self.unlike or self.noise <= 0:
            return None
        return 10 * math.log10(max(self.signal, 1e-30) / self.noise)

    def likeness(self, batch: int, size: tuple[int, ...], precision: Precision) -> Likeness:
        """The record of all calls, with a word where no rounding explains the difference."""
        return Likeness(
            batch=batch,
            size=size,
            agreement=self.agreement,
            sqnr_db=self.sqnr_db,
            max_abs_error=None if self.unlike or self.broken else self.largest,
            inputs=self.inputs,
            wrong=self.broken or self._beyond(precision),
        )

    def _beyond(self, precision: Precision) -> str:
        least, agreement = LEAST_SQNR_DB[precision], self.agreement
        if self.sqnr_db is not None and self.sqnr_db < least and not self._boxes_agree(precision):
            return f"SQNR {self.sqnr_db:.1f} dB; {precision} gives {least:.0f} or more"
        if self.unlike and not self._boxes_agree(precision):
            return f"{self.unlike}, and {agreement or 0:.0%} of the boxes meet"
        return ""

    def _boxes_agree(self, precision: Precision) -> bool:
        """Boxes may come in another order, or one more at the threshold."""
        by_box = self.answers and not self.chosen and self.agreement is not None
        return bool(by_box) and (self.agreement or 0.0) >= LEAST_AGREEMENT[precision]


def _shapes(tensors: Sequence[Tensor]) -> str:
    return ", ".join(str(list(one.shape)) for one in tensors)


def _choosing(outputs: Sequence[Tensor]) -> int | None:
    """Which output says classes: [batch, classes] or [batch, classes, …], or integers."""
    for place, one in enumerate(outputs):
        if one.is_floating_point() and one.ndim >= 2 and one.shape[1] >= 2:
            return place
        if not one.is_floating_point() and one.dtype != torch.bool and one.ndim >= 1:
            return place
    return None


# -- detectors -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Boxes:
    """Boxes [n, 4] (x1, y1, x2, y2) and their classes [n] of one image."""

    boxes: Tensor
    labels: Tensor

    def meeting(self, other: _Boxes) -> int:
        """How many of its boxes meet one of the other's of the same class, each used once."""
        if not len(self.boxes) or not len(other.boxes):
            return 0
        overlap = _intersection_over_union(self.boxes.double(), other.boxes.double())
        overlap[self.labels[:, None] != other.labels[None]] = 0.0
        met = 0
        while float(overlap.max()) >= _MEET:
            row, column = divmod(int(overlap.argmax()), overlap.shape[1])
            overlap[row], overlap[:, column] = 0.0, 0.0
            met += 1
        return met


def _intersection_over_union(one: Tensor, other: Tensor) -> Tensor:
    low = torch.maximum(one[:, None, :2], other[None, :, :2])
    high = torch.minimum(one[:, None, 2:], other[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(-1)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(-1) for boxes in (one, other)]
    return shared / (areas[0][:, None] + areas[1][None] - shared).clamp(min=1e-12)


def _detections(value: Any) -> list[_Boxes]:
    """What a detector answers, image by image, as torchvision's do; empty: it is none."""
    if isinstance(value, dict) and isinstance(value.get("boxes"), Tensor):
        boxes = value["boxes"]
        if boxes.ndim == 2 and boxes.shape[1] == 4:
            labels = value.get("labels", torch.zeros(len(boxes), dtype=torch.int64))
            return [_Boxes(boxes, labels)]
    if isinstance(value, (list, tuple)) and value:
        found = [_detections(one) for one in value]
        if all(len(one) == 1 for one in found):
            return [one[0] for one in found]
    return []
