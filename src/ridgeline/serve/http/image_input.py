"""The images of a conversation: read, checked, and prepared for the model.

Requests bring them in data URLs, or name an address (`image_fetch.py`). Files of this machine are
never read. Bytes, pixels and their number are limited, all before a pixel is decoded.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import io
import re
from collections.abc import Sequence
from typing import Any

from ridgeline.errors import in_words
from ridgeline.serve.http.image_fetch import LARGEST_BYTES, PARAM, fetch, too_large
from ridgeline.serve.http.protocol.chat_messages import ImagePart
from ridgeline.serve.http.protocol.errors import ApiError, refused
from ridgeline.serve.vision.processor import ImageProcessor, PreparedImage

MOST_IMAGES = 32
"""The most images of one conversation."""
MOST_PIXELS = 2**25
"""A file of some kilobytes may say that it is a picture of gigabytes."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""The formats that are read; an animation is its first picture."""
_DATA = re.compile(r"data:(?:image/[\w.+-]+)?(?:;[\w.+-]+=[\w.+-]+)*;base64,", re.ASCII)


class ImageReader:
    """Reads the images of one server's conversations."""

    def __init__(self, processor: ImageProcessor, hosts: tuple[str, ...]) -> None:
        """Begin with nothing read.

        Args:
            processor: Of the model.
            hosts: Those that images may be fetched from.
        """
        self.token = processor.token
        self.token_id = processor.token_id
        self._processor = processor
        self._hosts = hosts

    async def read(self, parts: Sequence[ImagePart]) -> tuple[PreparedImage, ...]:
        """The images of a conversation, in order. Raises ApiError."""
        if len(parts) > MOST_IMAGES:
            raise refused(f"{len(parts)} images; at most {MOST_IMAGES} are taken", PARAM)
        return tuple([await self._read(part.url) for part in parts])

    async def _read(self, url: str) -> PreparedImage:
        if url[:5].lower() == "data:":
            data = _of_data_url(url)
        else:
            data = await fetch(url, self._hosts)
        return await asyncio.to_thread(self._prepared, data)

    def _prepared(self, data: bytes) -> PreparedImage:
        image = _opened(data)
        try:
            return self._processor.prepare(image)
        except Exception as error:  # code of any family runs here
            text = f"the model's processor refuses an image: {in_words(error)}"
            raise refused(text, PARAM) from None


def _of_data_url(url: str) -> bytes:
    head = _DATA.match(url)
    if head is None:
        raise refused("a data: URL of an image begins as data:image/png;base64,", PARAM)
    if (len(url) - head.end()) * 3 // 4 > LARGEST_BYTES:
        raise too_large()
    # Google's own client writes base64's alphabet for addresses, some leave the padding out.
    data = url[head.end() :].replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(data + "=" * (-len(data) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise refused("the data: URL of an image is no base64", PARAM) from None


def _check_size(width: int, height: int) -> None:
    if width * height > MOST_PIXELS:
        text = f"an image has {width} x {height} pixels; at most {MOST_PIXELS} in all are taken"
        raise refused(text, PARAM)


def _opened(data: bytes) -> Any:
    """The picture in a file, upright and in RGB. Raises ApiError."""
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            _check_size(image.width, image.height)
            return ImageOps.exif_transpose(image).convert("RGB")
    except ApiError:
        raise
    except Image.UnidentifiedImageError:
        known = ", ".join(FORMATS)
        raise refused(f"an image is none of {known}", PARAM) from None
    except Image.DecompressionBombError:
        raise refused(f"an image has more than {MOST_PIXELS} pixels", PARAM) from None
    except Exception as error:  # a file can be wrong in any way
        raise refused(f"an image cannot be read: {in_words(error)}", PARAM) from None
