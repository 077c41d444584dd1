"""One micro-batch of images, as every part of a training step sees it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ridgeline.train.batch import IGNORED


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageBatch:
    """Images on the device that computes, normalised; B of them."""

    pixels: Tensor
    """[B, channels, size, size]."""
    labels: Tensor
    """[B] int64; `IGNORED` where an image could not be read, and where there is none."""
    count: int
    """Labels that are not `IGNORED`, known without asking the device."""
    partners: Tensor | None = None
    """Labels of the images that were blended in, [B]; None: none were."""
    share: float = 1.0
    """What `labels` have of the loss; the rest is that of `partners`."""

    def num_targets(self) -> int:
        """Images that a loss is taken of."""
        return self.count


def counted(labels: Tensor) -> int:
    """Labels that a loss is taken of; they lie on the host."""
    return int((labels != IGNORED).sum())
