"""Which images a run trains on and which it holds out, and what the data alone can say of both.

Nothing is decoded here: sources read single images when they are asked (`image_files`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError
from ridgeline.image_files.source import ImageSource, open_images
from ridgeline.records.image_recipe import RecipeImages
from ridgeline.records.recipe import Recipe
from ridgeline.train.data.remote import is_remote
from ridgeline.train.images.remote import open_remote_images


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSet:
    """Some images of a source, with their labels."""

    source: ImageSource
    places: NDArray[np.int64]
    """Where each stands in the source."""
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.places)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedImages:
    """The images of a run."""

    train: ImageSet
    held: ImageSet | None
    classes: tuple[str, ...]
    """Their names by label; numbers where the source has no names."""
    identity: str
    """Checksum of the names and labels of what is trained on, wherever it lies."""


def prepare_images(recipe: Recipe) -> PreparedImages:
    """Find the images of a recipe.

    Raises:
        InputError: There are none, they have no labels, or what is held out has other classes.
    """
    wanted = recipe.images
    assert wanted is not None
    source = _open("images.path", wanted.path, wanted.cache)
    every = _all_of(source)
    names = tuple(source.classes)
    train, held = every, None
    if wanted.validation:
        held = _matching(_open("images.validation", wanted.validation, wanted.cache), names)
    if wanted.holdout:
        if held is not None:
            raise InputError(
                "recipe: images.validation and images.holdout both hold out; keep one of them"
            )
        train, held = _divided(source, every, wanted)
    classes = names or tuple(str(label) for label in range(_highest(train, held) + 1))
    _check_classes(wanted, train, held, len(classes))
    return PreparedImages(train=train, held=held, classes=classes, identity=_identity(train))


def settled(recipe: Recipe, prepared: PreparedImages) -> Recipe:
    """The recipe with the number of classes, and of images where it gives epochs."""
    wanted = recipe.images
    assert wanted is not None
    classes = wanted.classes or len(prepared.classes)
    images = wanted.images
    if images is None and wanted.epochs is not None:
        images = wanted.epochs * len(prepared.train)
    found = msgspec.structs.replace(wanted, classes=classes, images=images, epochs=None)
    return msgspec.structs.replace(recipe, images=found)


def _open(key: str, path: str, cache: str) -> ImageSource:
    if is_remote(path):
        source = open_remote_images(key, path, cache)
    else:
        source = open_images(key, Path(path).expanduser())
    if source.ready:
        names = getattr(source, "arguments", ("pixel_values",)) or ("tensors without names",)
        raise InputError(
            f"{key} {path}: holds {', '.join(names)}, which are taken for what one model is given;"
            " training wants pixels: images, uint8 [n, height, width, 3]"
        )
    if source.labels is None:
        raise InputError(
            f"{key} {path}: its images have no labels; give a folder for each class, or labels"
            " beside them"
        )
    return source


def _all_of(source: ImageSource) -> ImageSet:
    assert source.labels is not None
    return ImageSet(
        source=source, places=np.arange(len(source), dtype=np.int64), labels=source.labels
    )


def _matching(source: ImageSource, names: tuple[str, ...]) -> ImageSet:
    """Held-out images with the training images' labels: classes are matched by name."""
    assert source.labels is not None
    every = _all_of(source)
    if tuple(source.classes) == names:
        return every
    if not names or not source.classes:
        raise InputError(
            f"images.validation {source.name}: only one of it and images.path names its classes;"
            " give both in one form"
        )
    unknown = [name for name in source.classes if name not in names]
    if unknown:
        raise InputError(
            f"images.validation {source.name}: its class {unknown[0]} is none of those of"
            f" images.path ({', '.join(names[:3])}…)"
        )
    place = np.array([names.index(name) for name in source.classes], dtype=np.int64)
    return ImageSet(source=source, places=every.places, labels=place[source.labels])


def _divided(
    source: ImageSource, every: ImageSet, wanted: RecipeImages
) -> tuple[ImageSet, ImageSet]:
    """Images to train on, and one in so many to hold out, by a hash of its name."""
    out = np.array([_draw(name) % wanted.holdout == 0 for name in _titles(source)])
    if out.all() or not out.any():
        split = "training" if out.all() else "validation"
        raise InputError(
            f"images.holdout: one image in {wanted.holdout} of {source.name} leaves none for"
            f" {split}; change it, or set images.validation"
        )
    train, held = (
        ImageSet(source=source, places=every.places[which], labels=every.labels[which])
        for which in (~out, out)
    )
    return train, held


def _titles(source: ImageSource) -> list[str]:
    """Names of all images, the same wherever the source lies."""
    path = Path(source.name)
    root = str(path if path.is_dir() else path.parent)
    return [source.title(place).removeprefix(root) for place in range(len(source))]


def _draw(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def _highest(*sets: ImageSet | None) -> int:
    return max(int(one.labels.max()) for one in sets if one is not None)


def _check_classes(
    wanted: RecipeImages, train: ImageSet, held: ImageSet | None, found: int
) -> None:
    lowest = min(int(one.labels.min()) for one in (train, held) if one is not None)
    if lowest < 0:
        raise InputError(f"{wanted.path}: a label is {lowest}; number classes from 0")
    if found < 2:
        raise InputError(f"images.path {wanted.path}: holds one class; a classifier needs two")
    if wanted.classes is not None and wanted.classes < found:
        raise InputError(
            f"recipe: images.classes is {wanted.classes} and {wanted.path} has {found} classes;"
            " raise it, or leave it out"
        )


def _identity(images: ImageSet) -> str:
    digest = hashlib.blake2b(digest_size=16)
    titles = _titles(images.source)
    for place, label in zip(images.places.tolist(), images.labels.tolist(), strict=True):
        digest.update(f"{titles[place]}\0{label}\n".encode())
    return digest.hexdigest()
