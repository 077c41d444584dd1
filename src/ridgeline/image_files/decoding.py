"""Bytes of an image file as an array, by Pillow."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError, MissingExtra, in_words

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm"})
"""File names that are taken for images, in small letters."""


def pillow() -> Any:
    """The module `Image` of Pillow.

    Raises:
        MissingExtra: It is not installed.
    """
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("pillow", "compress") from None
    return Image


def decode(content: bytes, where: str) -> NDArray[np.uint8]:
    """Pixels [height, width, 3] of an image file, as they are stored: EXIF turns nothing.

    Args:
        content: A whole file.
        where: Its name, for complaints.

    Raises:
        InputError: It is no image, or a damaged one.
    """
    image = pillow()
    try:
        with image.open(io.BytesIO(content)) as opened:
            return np.asarray(opened.convert("RGB"))
    except (OSError, ValueError, SyntaxError, image.DecompressionBombError) as error:
        why = in_words(error)
        raise InputError(f"{where}: cannot be read as an image ({why}); remove it") from None
