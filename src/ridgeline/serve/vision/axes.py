"""Positions in three axes, time, height and width, as Qwen2-VL's rotary embedding has them.

Multimodal rotary embedding (2409.12191, section 2.1): text counts on in all axes alike; the tokens
of an image stand at its beginning in time, and at their row and column from there; text behind it
goes on behind the longer side of the image.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ridgeline.serve.vision.features import PlacedImage


def axes_between(images: Sequence[PlacedImage], start: int, stop: int) -> NDArray[np.int64]:
    """The positions of the tokens [start, stop) of a sequence, [3, stop - start].

    Args:
        images: All of the sequence, in order, each with its grid.
        start: The place of the first token.
        stop: The place behind the last one.
    """
    places = np.arange(start, stop)
    found = np.repeat(places[None], 3, axis=0)
    shift = 0
    for image in images:
        assert image.grid is not None
        first, count = int(image.positions[0]), len(image.positions)
        height, width = image.grid
        inside = (places >= first) & (places < first + count)
        at = places[inside] - first
        found[:, inside] = first + shift + np.stack((0 * at, at // width, at % width))
        shift += max(height, width) - count
        behind = places >= first + count
        found[:, behind] = places[behind] + shift
    return found
