"""Options that say where images have their labels, and how pictures become what a model takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ridgeline.cli.option_groups import OptionGroup
from ridgeline.errors import InputError

if TYPE_CHECKING:
    from ridgeline.compress.images.material import Pixels


class ImageOptions(OptionGroup, frozen=True, kw_only=True):
    """Where images have their labels, and how pictures become what a model takes."""

    labels: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Lines of file,label for a flat folder of images."),
    ] = None
    boxes: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Images: COCO's annotations, for the mAP of a detector."),
    ] = None
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Weights; MODEL is then a name of timm.")
    ] = None
    resize: Annotated[
        str | None,
        typer.Option(metavar="N|HxW", help="Images: the shorter side, or both, after resizing."),
    ] = None
    crop: Annotated[int | None, typer.Option(help="Images: the square cut out of the middle.")] = (
        None
    )
    mean: Annotated[
        str | None,
        typer.Option(metavar="R,G,B", help="Images: the channels' means, of pixels from 0 to 1."),
    ] = None
    std: Annotated[
        str | None,
        typer.Option(metavar="R,G,B", help="Images: the channels' deviations, likewise."),
    ] = None
    interpolation: Annotated[
        Literal["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"] | None,
        typer.Option(help="Images: how they are resized."),
    ] = None

    def pixels(self) -> Pixels:
        """How pictures become inputs.

        Raises:
            InputError: One of the options cannot be.
        """
        from ridgeline.compress.images.material import Pixels

        if self.crop is not None and self.crop < 1:
            raise InputError(f"--crop {self.crop}: give pixels, 1 or more")
        return Pixels(
            resize=None if self.resize is None else _sides(self.resize),
            size=self.crop,
            mean=_numbers("--mean", self.mean),
            std=_numbers("--std", self.std, positive=True),
            interpolation=self.interpolation,
        )


def _sides(text: str) -> int | tuple[int, int]:
    """The shorter side, or height and width.

    >>> _sides("256"), _sides("480x640")
    (256, (480, 640))
    """
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(one.isdecimal() and int(one) for one in parts):
        raise InputError(
            f"--resize {text}: give the shorter side in pixels, such as 256, or height x width,"
            " such as 640x640"
        )
    return int(parts[0]) if len(parts) == 1 else (int(parts[0]), int(parts[1]))


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
