"""From a picture of any size to what a model takes: resized, cropped, scaled, normalised.

The steps and their order are those of the preprocessors of transformers and of torchvision's
evaluation transforms; resizing is Pillow's, as theirs is on PIL images.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError
from ridgeline.image_files.decoding import pillow
from ridgeline.records.input_file import read_json

Interpolation = Literal["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"]
_BY_NUMBER: dict[int, Interpolation] = {
    0: "nearest",
    1: "lanczos",
    2: "bilinear",
    3: "bicubic",
    4: "box",
    5: "hamming",
}
"""Pillow's numbers, which preprocessor_config.json holds."""
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
"""The mean and deviation of ImageNet's training images (torchvision's normalisation)."""
CONFIG = "preprocessor_config.json"


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """Where what a model sees lies in the picture that it was made of."""

    width: int
    height: int
    """Pixels that the model sees."""
    left: int
    top: int
    """Where these begin in the resized picture."""
    scale_x: float
    scale_y: float
    """Pixels of the resized picture for one of the picture as it was."""


class Preprocess(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How pixels become what a model takes."""

    resize: int | tuple[int, int] | None = 256
    """The shorter side, or height and width; None: left as it is."""
    crop: tuple[int, int] | None = (224, 224)
    """Height and width cut out of the middle, black where the image is smaller; None: all of it."""
    interpolation: Interpolation = "bilinear"
    scale: float = 1 / 255
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    origin: str = "ImageNet's usual"
    """Where it was read from."""

    def __call__(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Apply the steps to one image.

        Args:
            pixels: [height, width, 3].

        Returns:
            [3, height, width] float32.
        """
        image = pillow()
        picture = image.fromarray(pixels)
        if self.resize is not None:
            way = getattr(image.Resampling, self.interpolation.upper())
            picture = picture.resize(_size(picture.size, self.resize), way)
        if self.crop is not None:
            picture = _cropped(picture, self.crop)
        scaled = np.asarray(picture, dtype=np.float32) * np.float32(self.scale)
        mean, std = np.array(self.mean, np.float32), np.array(self.std, np.float32)
        normal = (scaled - mean) / std
        return np.ascontiguousarray(normal.transpose(2, 0, 1), dtype=np.float32)

    def frame(self, width: int, height: int) -> Frame:
        """Where pixels of a picture of this size come to lie."""
        wide, high = (width, height) if self.resize is None else _size((width, height), self.resize)
        seen = (high, wide) if self.crop is None else self.crop
        left, top = _corner((wide, high), seen)
        return Frame(
            width=seen[1],
            height=seen[0],
            left=left,
            top=top,
            scale_x=wide / width,
            scale_y=high / height,
        )

    def said(self) -> str:
        """In words, for ledgers."""
        one = self.resize
        size = "" if one is None else f"{one}" if isinstance(one, int) else f"{one[0]} × {one[1]}"
        steps = [f"resized to {size} ({self.interpolation})"] if size else []
        if self.crop is not None:
            steps.append(f"cropped to {self.crop[0]} × {self.crop[1]}")
        mean = ", ".join(f"{one:.4g}" for one in self.mean)
        std = ", ".join(f"{one:.4g}" for one in self.std)
        return f"{', '.join([*steps, f'mean {mean}', f'std {std}'])}: {self.origin}"


def read_preprocess(folder: Path) -> Preprocess | None:
    """What a Hugging Face directory says; None where it says nothing.

    Raises:
        InputError: It says something that is not known here.
    """
    path = folder / CONFIG
    if not path.is_file():
        return None
    config = read_json(path, dict[str, Any])
    number = config.get("resample", 2)
    if number not in _BY_NUMBER:
        raise InputError(f"{path}: resample is {number!r}; give a number from 0 to 5")
    size = config.get("size") if config.get("do_resize", True) else None
    crop = config.get("crop_size") if config.get("do_center_crop", False) else None
    normal = config.get("do_normalize", True)
    resize = _resize(path, size)
    share = config.get("crop_pct")
    if share and isinstance(resize, int) and not config.get("do_center_crop", False):
        # ConvNeXt's and EfficientFormer's: resized to size ÷ share, then cropped to size
        resize, crop = (int(resize / share), {"height": resize, "width": resize})
    return Preprocess(
        resize=resize,
        crop=_pair(path, crop),
        interpolation=_BY_NUMBER[number],
        scale=float(config.get("rescale_factor", 1 / 255)) if config.get("do_rescale", True) else 1,
        mean=tuple(config.get("image_mean") or IMAGENET_MEAN) if normal else (0.0, 0.0, 0.0),
        std=tuple(config.get("image_std") or IMAGENET_STD) if normal else (1.0, 1.0, 1.0),
        origin=CONFIG,
    )


def _resize(path: Path, size: Any) -> int | tuple[int, int] | None:
    if isinstance(size, dict) and "shortest_edge" in size:
        return int(size["shortest_edge"])
    return _pair(path, size)


def _pair(path: Path, size: Any) -> tuple[int, int] | None:
    if size is None:
        return None
    if isinstance(size, int):
        return (size, size)
    if isinstance(size, dict) and {"height", "width"} <= size.keys():
        return (int(size["height"]), int(size["width"]))
    raise InputError(f"{path}: size {size!r} is not known here; give height and width")


def _size(given: tuple[int, int], wanted: int | tuple[int, int]) -> tuple[int, int]:
    """Width and height after resizing from width and height.

    >>> _size((400, 300), 256), _size((400, 300), (224, 200))
    ((341, 256), (200, 224))
    """
    if not isinstance(wanted, int):
        return wanted[1], wanted[0]
    width, height = given
    shorter = min(width, height)
    return (
        wanted if width == shorter else int(wanted * width / shorter),
        wanted if height == shorter else int(wanted * height / shorter),
    )


def _cropped(picture: Any, crop: tuple[int, int]) -> Any:
    left, top = _corner(picture.size, crop)
    return picture.crop((left, top, left + crop[1], top + crop[0]))


def _corner(size: tuple[int, int], crop: tuple[int, int]) -> tuple[int, int]:
    """Left and top of a crop, height and width, from the middle of width and height."""
    return (size[0] - crop[1]) // 2, (size[1] - crop[0]) // 2  # as transformers
