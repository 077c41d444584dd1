"""Options that say where images have their labels, and how pictures become what a model takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ridgeline.errors import InputError

if TYPE_CHECKING:
    from ridgeline.compress.images.material import Pixels

Labels = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Lines of file,label for a flat folder of images."),
]
Checkpoint = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Weights; MODEL is then a name of timm.")
]
Resize = Annotated[int | None, typer.Option(help="Images: the shorter side after resizing.")]
Crop = Annotated[int | None, typer.Option(help="Images: the square cut out of the middle.")]
Mean = Annotated[str | None, typer.Option(metavar="R,G,B", help="Images: of pixels from 0 to 1.")]
Std = Annotated[str | None, typer.Option(metavar="R,G,B", help="Images: of pixels from 0 to 1.")]
Interpolation = Annotated[
    Literal["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"] | None,
    typer.Option(help="Images: how they are resized."),
]


def pixels_of(
    resize: int | None,
    crop: int | None,
    mean: str | None,
    std: str | None,
    interpolation: str | None,
) -> Pixels:
    """What these options say together.

    Raises:
        InputError: One of them cannot be.
    """
    from ridgeline.compress.images.material import Pixels

    for option, size in (("--resize", resize), ("--crop", crop)):
        if size is not None and size < 1:
            raise InputError(f"{option} {size}: give pixels, 1 or more")
    return Pixels(
        resize=resize,
        size=crop,
        mean=_numbers("--mean", mean),
        std=_numbers("--std", std, positive=True),
        interpolation=interpolation,
    )


def _numbers(option: str, text: str | None, *, positive: bool = False) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        found = tuple(float(one) for one in text.split(","))
    except ValueError:
        found = ()
    if len(found) != 3 or (positive and min(found) <= 0):
        above = " above 0" if positive else ""
        raise InputError(f"{option} {text}: give three numbers{above}, such as 0.485,0.456,0.406")
    return found
