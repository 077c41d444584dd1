"""Bytes of an image file as an array, by Pillow."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError, MissingExtra, in_words

SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".avif", ".bmp", ".gif", ".tif", ".tiff",
     ".ppm", ".pgm", ".pbm", ".pnm"}
)  # fmt: skip
"""File names that are taken for images, in small letters."""
_SIXTEEN = "I;16"
"""How the names of modes with 16 bits of grey begin; the rest of one is the order of its bytes."""
_UNBOUNDED = ("I", "F")
"""Modes whose numbers of 32 bits nothing bounds."""


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

    Of an animation that is its first frame, and of 16 bits of grey the upper eight.

    Args:
        content: A whole file.
        where: Its name, for complaints.

    Raises:
        InputError: It is no image, or a damaged one.
    """
    if not content:
        raise InputError(f"{where}: is empty; remove it")
    image = pillow()
    try:
        # What Pillow warns of (damaged EXIF data, transparency) changes no pixel.
        with warnings.catch_warnings(), image.open(io.BytesIO(content)) as opened:
            warnings.simplefilter("ignore")
            return _eight_bits(opened, where)
    except InputError:
        raise
    except image.UnidentifiedImageError:
        why = "of no format that Pillow knows, or its beginning is damaged"
    except Exception as error:  # each of Pillow's formats has errors of its own
        why = in_words(error)
    raise InputError(f"{where}: cannot be read as an image ({why}); remove it")


def _eight_bits(opened: Any, where: str) -> NDArray[np.uint8]:
    """Pixels in 8 bits; Pillow itself would cut off what lies above 255."""
    if opened.mode.startswith(_SIXTEEN):
        grey = (np.asarray(opened).astype(np.uint16) >> 8).astype(np.uint8)
        return np.repeat(grey[..., None], 3, axis=2)
    if opened.mode in _UNBOUNDED:
        kind = "integers" if opened.mode == "I" else "floating-point numbers"
        raise InputError(
            f"{where}: holds {kind} of 32 bits, and nothing says their range; save it in 8 or 16"
            " bits"
        )
    return np.asarray(opened.convert("RGB"))
