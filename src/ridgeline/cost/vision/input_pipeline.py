"""What must be read, decoded and copied so that a network never waits for its images.

    cores    images/s · (stored pixels / decode rate + used pixels / augment rate)
    storage  images/s · bytes of a stored image
    link     images/s · 3 · height · width · 4 bytes          (numbers of 32 bits, as loaders make)

A loader decodes the whole stored image and then crops, resizes, mirrors and normalises what the
network sees. Cores are the least: copies between worker processes, collation and Python come on
top. Decoding on the GPU (DALI, `nvjpeg`) takes the first term off the cores and compute units off
the network.
"""

from __future__ import annotations

from dataclasses import dataclass

STORED_BYTES = 109e3
"""Mean size of an ImageNet training image: 140 GB of JPEG over 1,281,167 images (Tensorpack,
"Efficient DataFlow"; a sample of 1,000, one of each class, has 106 kB)."""
STORED_PIXELS = 0.206e6
"""Mean pixels of the same sample of 1,000 images (EliSchwartz/imagenet-sample-images)."""
DECODE_PIXELS_PER_SECOND = 146e6
"""JPEG decoding of one core: torchvision's `decode_jpeg` took 2.54 ms for images of 551 x 676 on
the host of an A100 (pytorch/vision, pull request 8495, one thread)."""
AUGMENT_PIXELS_PER_SECOND = 66e6
"""Random crop, bilinear resize, mirror and normalisation in pixels of the result: 0.76 ms for
224 x 224 on one core of a Xeon (Pillow and numpy, the sample above)."""
LOADED_BYTES = 4
CHANNELS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class InputNeed:
    """What feeds one job, over all of its devices."""

    images_per_second: float
    decode_cores: float
    storage_bytes_per_second: float
    host_to_device_bytes_per_second: float


def core_seconds(image_size: tuple[int, int]) -> float:
    """The least time of one core for one image.

    >>> round(1.0 / core_seconds((224, 224)))
    461
    """
    used = image_size[0] * image_size[1]
    return STORED_PIXELS / DECODE_PIXELS_PER_SECOND + used / AUGMENT_PIXELS_PER_SECOND


def input_need(images_per_second: float, image_size: tuple[int, int]) -> InputNeed:
    """What it takes to feed so many images per second.

    >>> round(input_need(10_000, (224, 224)).decode_cores)
    22
    """
    image_bytes = CHANNELS * image_size[0] * image_size[1] * LOADED_BYTES
    return InputNeed(
        images_per_second=images_per_second,
        decode_cores=images_per_second * core_seconds(image_size),
        storage_bytes_per_second=images_per_second * STORED_BYTES,
        host_to_device_bytes_per_second=images_per_second * image_bytes,
    )
