"""Boxes of images in COCO's annotation file, which every labelling tool writes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError
from ridgeline.image_files.source import ImageSource
from ridgeline.records.input_file import read_json

PROBED = 16
"""Images whose size is held against what the file says of them."""


class BoxedImage(msgspec.Struct, frozen=True, kw_only=True):
    """One picture of an annotation file."""

    id: int
    file_name: str
    width: int
    height: int


class Annotation(msgspec.Struct, frozen=True, kw_only=True):
    """One object, or a crowd of them, in a picture."""

    image_id: int
    category_id: int
    bbox: tuple[float, float, float, float]
    """Left, top, width and height in pixels."""
    iscrowd: int = 0
    area: float | None = None
    """Pixels that the object covers; None: those of its box."""


class BoxCategory(msgspec.Struct, frozen=True, kw_only=True):
    """One sort of object."""

    id: int
    name: str


class AnnotationFile(msgspec.Struct, frozen=True, kw_only=True):
    """What is read of an annotation file; everything else in it is passed over."""

    images: tuple[BoxedImage, ...]
    annotations: tuple[Annotation, ...]
    categories: tuple[BoxCategory, ...]


@dataclass(frozen=True, slots=True)
class Boxes:
    """The pictures that are judged, with the objects in them."""

    name: str
    """The file that says it."""
    images: tuple[BoxedImage, ...]
    """One for each judged image, in their order."""
    annotations: tuple[Annotation, ...]
    categories: tuple[BoxCategory, ...]
    """The sorts of objects, by number."""


def read_boxes(path: Path, source: ImageSource, places: NDArray[np.int64]) -> Boxes:
    """The objects of some images of a source.

    Args:
        path: COCO's annotation file ("instances").
        source: Image files in a folder.
        places: Which of its images, in order.

    Raises:
        InputError: The file is no annotation file, or does not fit the images.
    """
    found = read_json(path, AnnotationFile)
    if source.ready:
        raise InputError(f"--boxes {path}: {source.name} holds arrays without names; give a folder")
    known = {one.file_name: one for one in found.images}
    count = Counter(map(_last, known))
    by_last = {_last(name): one for name, one in known.items() if count[_last(name)] == 1}
    judged = []
    for place in places.tolist():
        own = known.get(_within(source, place)) or by_last.get(_last(source.title(place)))
        if own is None:
            raise InputError(
                f"--boxes {path}: says nothing of {source.title(place)}; list it under images, or"
                " leave it out"
            )
        judged.append(own)
    _check_sizes(path, source, places, judged)
    wanted, sorts = {one.id for one in judged}, {one.id for one in found.categories}
    objects = tuple(one for one in found.annotations if one.image_id in wanted)
    strange = {one.category_id for one in objects} - sorts
    if strange:
        raise InputError(f"--boxes {path}: names no category {min(strange)}, but boxes are of it")
    if not any(not one.iscrowd for one in objects):
        raise InputError(f"--boxes {path}: has no box in the {len(judged)} images that are judged")
    categories = sorted(found.categories, key=lambda one: one.id)
    return Boxes(str(path), tuple(judged), objects, tuple(categories))


def _last(name: str) -> str:
    return name.replace("\\", "/").rpartition("/")[2]


def _within(source: ImageSource, place: int) -> str:
    """The path of an image below the folder that was named."""
    title = Path(source.title(place))
    folder = Path(source.name)
    return title.relative_to(folder).as_posix() if title.is_relative_to(folder) else str(title)


def _check_sizes(
    path: Path, source: ImageSource, places: NDArray[np.int64], judged: list[BoxedImage]
) -> None:
    """Boxes are in pixels: a picture that was resized since would be judged wrongly."""
    chosen = np.unique(np.linspace(0, len(places) - 1, PROBED).astype(int))
    for at in chosen.tolist():
        place, own = int(places[at]), judged[at]
        height, width = source.read(place).shape[:2]
        if (width, height) != (own.width, own.height):
            raise InputError(
                f"--boxes {path}: says {own.width} × {own.height} of {source.title(place)}, which"
                f" is {width} × {height}; give the pictures that were annotated"
            )
