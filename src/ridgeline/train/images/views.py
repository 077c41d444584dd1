"""From a picture of any size to the pixels that a model sees, in training and in validation.

Training's view is chosen by the seed, the epoch and the image's place alone, so any process makes
the same one. Resizing is Pillow's, bilinear, with its antialiasing.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.image_files.decoding import pillow
from ridgeline.records.image_recipe import RecipeImages
from ridgeline.train.data.order import hash_of

Pixels = NDArray[np.uint8]
"""[height, width, 3], or [height, width, channels] once it is a view."""
_TRIES = 10
"""Random parts that may not fit into the image, before the middle is taken."""


def trained_view(pixels: Pixels, wanted: RecipeImages, seed: int, epoch: int, place: int) -> Pixels:
    """What training sees of an image, [size, size, channels].

    Args:
        pixels: [height, width, 3].
        wanted: The recipe's `images`.
        seed: Of the run.
        epoch: How often the image was seen before.
        place: The image's, in its source.
    """
    chance = np.random.default_rng(hash_of(seed, epoch, place))
    picture = _coloured(pixels, wanted)
    if wanted.crop == "random-resized":
        box = random_part(picture.width, picture.height, wanted, chance)
        square = (wanted.size, wanted.size)
        seen = np.asarray(picture.resize(square, pillow().Resampling.BILINEAR, box=box))
    elif wanted.crop == "padded":
        seen = _out_of_border(np.asarray(_resized(picture, wanted.size)), wanted, chance)
    else:
        seen = np.asarray(_middle(picture, wanted))
    if wanted.flip and chance.random() < 0.5:
        seen = seen[:, ::-1]
    return seen.reshape(wanted.size, wanted.size, wanted.channels)


def judged_view(pixels: Pixels, wanted: RecipeImages) -> Pixels:
    """What validation sees is the square in the middle, [size, size, channels]."""
    seen = np.asarray(_middle(_coloured(pixels, wanted), wanted))
    return seen.reshape(wanted.size, wanted.size, wanted.channels)


def random_part(
    width: int, height: int, wanted: RecipeImages, chance: np.random.Generator
) -> tuple[int, int, int, int]:
    """A part of random area and shape: left, top, right, bottom.

    Szegedy et al., arXiv 1409.4842, section 6: the area is even between its limits, the shape even
    in its logarithm. Where none of ten fits, the largest part in the middle that has the shape.
    """
    low, high = (math.log(limit) for limit in wanted.shape)
    for _ in range(_TRIES):
        area = width * height * chance.uniform(*wanted.area)
        shape = math.exp(chance.uniform(low, high))
        across, down = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < across <= width and 0 < down <= height:
            left = int(chance.integers(width - across + 1))
            top = int(chance.integers(height - down + 1))
            return left, top, left + across, top + down
    shape = min(max(width / height, wanted.shape[0]), wanted.shape[1])
    across, down = min(width, round(height * shape)), min(height, round(width / shape))
    left, top = (width - across) // 2, (height - down) // 2
    return left, top, left + max(1, across), top + max(1, down)


def resized_side(wanted: RecipeImages) -> int:
    """The shorter side that validation resizes to."""
    return round(wanted.size / wanted.centre_share)


def _coloured(pixels: Pixels, wanted: RecipeImages) -> Any:
    picture = pillow().fromarray(pixels)
    return picture.convert("L") if wanted.channels == 1 else picture


def _resized(picture: Any, shorter: int) -> Any:
    """The picture with its shorter side so long."""
    least = min(picture.width, picture.height)
    if least == shorter:
        return picture
    sides = (
        shorter if side == least else int(shorter * side / least)
        for side in (picture.width, picture.height)
    )
    return picture.resize(tuple(sides), pillow().Resampling.BILINEAR)


def _middle(picture: Any, wanted: RecipeImages) -> Any:
    resized = _resized(picture, resized_side(wanted))
    left, top = ((side - wanted.size) // 2 for side in (resized.width, resized.height))
    if (left, top) == (0, 0) and resized.width == resized.height == wanted.size:
        return resized
    return resized.crop((left, top, left + wanted.size, top + wanted.size))


def _out_of_border(
    pixels: Pixels, wanted: RecipeImages, chance: np.random.Generator
) -> NDArray[np.uint8]:
    """A random square of `size` out of the image with a black border."""
    border = wanted.padding
    padding = ((border, border), (border, border), (0, 0))[: pixels.ndim]
    around = np.pad(pixels, padding)
    top = int(chance.integers(around.shape[0] - wanted.size + 1))
    left = int(chance.integers(around.shape[1] - wanted.size + 1))
    return around[top : top + wanted.size, left : left + wanted.size]
