"""One micro-batch of images, as every part of a training step sees it.

Each image of a micro-batch may be blended with another, and so are their labels.

    MixUp     x = λ x_i + (1-λ) x_j                                Zhang et al., arXiv 1710.09412
    CutMix    x_j in a rectangle of share 1-λ, x_i around it       Yun et al., arXiv 1905.04899

λ is drawn from Beta(a, a), once for a micro-batch; image j is the i-th from the end. What is drawn
depends on the seed and the number of the micro-batch's first sample alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ridgeline.records.image_recipe import RecipeImages
from ridgeline.train.batch import IGNORED
from ridgeline.train.data.order import hash_of


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


_KIND = -2
"""Apart from the numbers that views and orders are drawn by."""


def blended(batch: ImageBatch, wanted: RecipeImages, seed: int, first: int) -> ImageBatch:
    """The batch as `mixup` and `cutmix` of the recipe say.

    Args:
        batch: As it was read.
        wanted: The recipe's `images`.
        seed: Of the run.
        first: The number of the batch's first sample in the run.
    """
    if not wanted.mixup and not wanted.cutmix:
        return batch
    chance = np.random.default_rng(hash_of(seed, _KIND, first))
    cuts = bool(wanted.cutmix) and (not wanted.mixup or chance.random() < 0.5)
    alpha = wanted.cutmix if cuts else wanted.mixup
    share = float(chance.beta(alpha, alpha))
    others = batch.pixels.flip(0)
    if cuts:
        top, bottom, left, right = rectangle(wanted.size, 1.0 - share, chance)
        pixels = batch.pixels.clone(memory_format=torch.preserve_format)
        pixels[..., top:bottom, left:right] = others[..., top:bottom, left:right]
        share = 1.0 - (bottom - top) * (right - left) / wanted.size**2
    else:
        pixels = torch.lerp(others, batch.pixels, share)
    return replace(batch, pixels=pixels, partners=batch.labels.flip(0), share=share)


def rectangle(size: int, area: float, chance: np.random.Generator) -> tuple[int, int, int, int]:
    """A square of so large a share around a random point, cut off at the border.

    Returns:
        Top, bottom, left, right.
    """
    half = size * math.sqrt(area) / 2.0
    down, across = chance.uniform(0.0, size, 2)
    edges = (down - half, down + half, across - half, across + half)
    top, bottom, left, right = (min(size, max(0, round(edge))) for edge in edges)
    return top, bottom, left, right
