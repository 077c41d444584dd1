"""The model and the images that a compression is given, checked before anything is computed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ridgeline.compress.material import HELD_BACK
from ridgeline.errors import InputError, in_words
from ridgeline.records.input_file import read_json
from ridgeline.records.overwriting import note_input

FEWEST = 10
"""Images that say anything of accuracy."""
CALIBRATED = 512
"""Images whose gradients choose, at most."""


@dataclass(frozen=True, slots=True)
class ImageMaterial:
    """What is compressed, with what, and on what it is judged."""

    model: Path
    out: Path
    calibration: Path | None = None
    """Images that choose, and, without `held`, its last tenth to judge on."""
    held: Path | None = None
    device: str = "auto"
    speed: bool = True
    """Time the rows in turns."""

    @property
    def work(self) -> Path:
        """Where everything lies until it has been judged."""
        return self.out.with_name(f"{self.out.name}.partial")


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """Images and what they show."""

    pixel_values: Tensor
    """[n, channels, height, width], as the model's preprocessor gives them."""
    labels: Tensor
    """The class of each image, [n] int64."""
    name: str
    """The file, or which part of it."""

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, start: int, end: int, name: str) -> Images:
        """Some of them, in order."""
        return Images(
            pixel_values=self.pixel_values[start:end], labels=self.labels[start:end], name=name
        )


def is_image_model(directory: Path) -> bool:
    """Whether config.json is that of an image classifier."""
    try:
        config = read_json(directory / "config.json", dict[str, Any])
    except InputError:
        return False  # whoever needs it as the model's says what is wrong with it
    names = config.get("architectures")
    return isinstance(config.get("channels"), dict) or any(
        str(one).endswith("ForImageClassification")
        for one in (names if isinstance(names, list) else ())
    )


def read_images(option: str, path: Path) -> Images:
    """Images of a safetensors file: `pixel_values` [n, channels, height, width], `labels` [n].

    Raises:
        InputError: It cannot be read, or holds something else.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise InputError(f"{option} {path}: no such file")
    note_input(path)
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"{option} {path}: no safetensors file of images ({in_words(error)})"
        ) from None
    missing = [name for name in ("pixel_values", "labels") if name not in tensors]
    if missing:
        raise InputError(
            f"{option} {path}: has no {' and no '.join(missing)}; give pixel_values [n, channels,"
            " height, width] and labels [n]"
        )
    pixels, labels = tensors["pixel_values"], tensors["labels"]
    if pixels.ndim != 4 or labels.shape != pixels.shape[:1]:
        raise InputError(
            f"{option} {path}: pixel_values {list(pixels.shape)} and labels {list(labels.shape)};"
            " wanted are [n, channels, height, width] and [n]"
        )
    if not pixels.is_floating_point():
        raise InputError(
            f"{option} {path}: pixel_values are {str(pixels.dtype).removeprefix('torch.')}; give"
            " the floats that the model's preprocessor makes of them"
        )
    if not bool(pixels.isfinite().all()):
        raise InputError(f"{option} {path}: pixel_values are infinite or NaN in places")
    return Images(pixel_values=pixels.float(), labels=labels.to(torch.int64), name=str(path))


def divided(calibration: Path | None, held: Path | None) -> tuple[Images | None, Images]:
    """Images to calibrate on, and others to judge on.

    Args:
        calibration: A file, or None.
        held: Another to judge on; None: the last tenth of `calibration`.

    Raises:
        InputError: A file cannot be used, or there is none.
    """
    given = None if calibration is None else read_images("--calibration", calibration)
    if held is not None:
        judged = read_images("--text", held)
    elif given is None:
        raise InputError(
            "--calibration FILE is missing: a safetensors file of images, with pixel_values and"
            " labels; its last tenth is judged on"
        )
    else:
        cut = len(given) - len(given) // HELD_BACK
        judged = given.part(cut, len(given), f"{given.name}, its last 1/{HELD_BACK}")
        given = given.part(0, cut, given.name)
    if len(judged) < FEWEST:
        raise InputError(
            f"{judged.name}: {len(judged)} images to judge on; {FEWEST} are the fewest that say"
            " anything"
        )
    return given, judged
