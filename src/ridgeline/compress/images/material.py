"""The images that a compression is given, read batch by batch as the model takes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ridgeline.compress.images.models import VisionModel
from ridgeline.compress.material import HELD_BACK
from ridgeline.compress.vision.batches import Batch
from ridgeline.errors import InputError, in_words
from ridgeline.image_files.preprocess import Preprocess
from ridgeline.image_files.read_ahead import read_ahead
from ridgeline.image_files.source import ImageSource, open_images

FEWEST = 10
"""Images that say anything of accuracy."""
CALIBRATED = 512
"""Images that choose or show ranges, at most."""
BATCH = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Pixels:
    """How the user says that pictures become what the model takes; None: not said."""

    resize: int | tuple[int, int] | None = None
    """The shorter side after resizing, or height and width, of which nothing is cut off then."""
    size: int | None = None
    """Height and width that are cut out of the middle."""
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    interpolation: str | None = None


@dataclass(frozen=True, slots=True)
class ImageMaterial:
    """What is compressed, with what, and on what it is judged."""

    model: Path
    out: Path
    calibration: Path | None = None
    """Images that choose, and, without `held`, every tenth of them to judge on."""
    held: Path | None = None
    device: str = "auto"
    speed: bool = True
    """Time the rows in turns."""
    checkpoint: Path | None = None
    labels: Path | None = None
    pixels: Pixels = Pixels()
    mixed: bool = False
    """Measure what each layer costs alone, and leave the worst ones in float."""
    metric: str | None = None
    """The user's measure, as `file.py:name`."""
    boxes: Path | None = None
    """COCO's annotations of the images that are judged."""
    faster: float | None = None
    """The least speed-up at batch 1, with `latency`."""
    latency: bool = False
    """Whether channels are pruned for latency measured here."""

    @property
    def work(self) -> Path:
        """Where everything lies until it has been judged."""
        return self.out.with_name(f"{self.out.name}.partial")


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """Some images of a source, read when they are asked for."""

    source: ImageSource
    places: NDArray[np.int64]
    """Which of its images, in order."""
    change: Callable[[NDArray[Any]], NDArray[Any]]
    """Pixels → what the model takes; unused where the source is ready."""
    labels: Tensor | None
    """The class of each, [n] int64; None where nothing says it."""
    name: str
    """The path, or which part of it."""
    most: int | None = None
    """The largest batch that the model takes; None: any."""

    def __len__(self) -> int:
        return len(self.places)

    def part(self, chosen: NDArray[np.int64], name: str) -> Images:
        """Some of them, by their place among these."""
        return Images(
            source=self.source,
            places=self.places[chosen],
            change=self.change,
            labels=None if self.labels is None else self.labels[torch.from_numpy(chosen)],
            name=name,
            most=self.most,
        )

    def evenly(self, most: int) -> Images:
        """At most so many, from all over."""
        if len(self) <= most:
            return self
        chosen = np.linspace(0, len(self) - 1, most).astype(np.int64)
        return self.part(chosen, self.name)

    def batches(self, size: int = BATCH) -> Iterator[Batch]:
        """Images [n, channels, height, width] float32, or all inputs of a model, read ahead.

        Raises:
            InputError: One cannot be read, or has another size than the first.
        """
        change = (lambda one: one) if self.source.ready else self.change
        read = read_ahead(self.source, self.places.tolist(), change)
        titles = (self.source.title(place) for place in self.places.tolist())
        size = size if self.most is None else min(size, self.most)
        shape: Any = None
        both = zip(titles, read, strict=True)
        while group := list(islice(both, size)):
            for title, one in group:
                own = [list(part.shape) for part in _parts(one)]
                shape = shape or own
                if own != shape:
                    raise InputError(
                        f"{title}: {_sizes(own)} after preprocessing, the first one"
                        f" {_sizes(shape)}; give --crop to make all of them one size"
                    )
            yield _stacked([one for _, one in group])

    def head(self, count: int) -> Batch:
        """The first ones as one batch, as many as the model takes at once."""
        return next(self.part(np.arange(min(count, len(self))), self.name).batches(count))

    def for_batches_of(self, most: int | None) -> Images:
        """These images for a model that takes at most so many at once."""
        return dataclasses.replace(self, most=most)


def _parts(sample: Any) -> tuple[NDArray[Any], ...]:
    return sample if isinstance(sample, tuple) else (sample,)


def _sizes(shapes: list[list[int]]) -> str:
    return ", ".join(map(str, shapes))


def _stacked(samples: list[Any]) -> Batch:
    if isinstance(samples[0], tuple):
        columns = zip(*samples, strict=True)
        return tuple(torch.from_numpy(np.stack(column)) for column in columns)
    return torch.from_numpy(np.stack(samples))


def preprocessing(
    model: VisionModel, given: Pixels, source: ImageSource
) -> tuple[Callable[[NDArray[Any]], NDArray[Any]], Preprocess | None, str]:
    """How a source's images become what the model takes, and how that is said.

    The order: flags, then the model's own (file or script), then ImageNet's usual, which is said.

    Returns:
        The function, the same as a record (None: the script's function), and words for the ledger.
    """
    if source.ready:
        return (lambda one: one), None, ""
    said = {
        "resize": given.resize or (given.size if given.size else None),
        "crop": None if given.size is None else (given.size, given.size),
        "mean": given.mean,
        "std": given.std,
        "interpolation": given.interpolation,
    }
    changes: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
    if isinstance(given.resize, tuple) and given.size is None:
        changes["crop"] = None
    own = model.preprocess
    if callable(own) and not isinstance(own, Preprocess):
        if changes:
            raise InputError(
                "--crop, --resize, --mean, --std, --interpolation: the script has its own"
                " preprocess; leave them out, or rename it"
            )
        return _by_script(own), None, "the script's preprocess()"
    one = own if isinstance(own, Preprocess) else Preprocess()
    if changes:
        import msgspec

        changes["origin"] = f"by flags; the rest {one.origin}"
        one = msgspec.structs.replace(one, **changes)
    return one, one, one.said()


def _by_script(own: Callable[[Any], Any]) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """The user's function of a Pillow image, which gives a tensor or an array."""
    from ridgeline.image_files.decoding import pillow

    def change(pixels: NDArray[Any]) -> NDArray[Any]:
        try:
            made = own(pillow().fromarray(pixels))
            found = np.asarray(made, dtype=np.float32)
        except Exception as error:  # whatever the user's code raises
            raise InputError(f"the script's preprocess() fails: {in_words(error)}") from error
        if found.ndim != 3:
            raise InputError(
                f"the script's preprocess() gives {list(found.shape)}; return [channels, height,"
                " width]"
            )
        return found

    return change


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where images are, opened before a model is loaded: what is wrong with them is said first."""

    calibration: ImageSource | None
    held: ImageSource | None


def open_sources(material: ImageMaterial) -> Sources:
    """The images that a command names.

    Raises:
        InputError: There are none, or they are of no known form.
    """
    if material.calibration is None and material.held is None:
        raise InputError(
            "--calibration PATH is missing: images in a folder, .tar, .npz or .safetensors; every"
            f" {HELD_BACK}th of them is judged on, unless --images gives others"
        )
    own = None if material.held is not None else material.labels
    first, second = material.calibration, material.held
    return Sources(
        calibration=None if first is None else open_images("--calibration", first, own),
        held=None if second is None else open_images("--images", second, material.labels),
    )


def divided(
    material: ImageMaterial, sources: Sources, model: VisionModel
) -> tuple[Images | None, Images, str]:
    """Images to calibrate on, others to judge on, and how they were preprocessed.

    Raises:
        InputError: They are too few, or cannot be preprocessed so.
    """
    given = judged = None
    said = ""
    if sources.calibration is not None:
        given, said = _images(sources.calibration, material, model)
    if sources.held is not None:
        judged, said = _images(sources.held, material, model)
    else:
        assert given is not None
        every = np.arange(len(given))
        chosen = every % HELD_BACK == HELD_BACK - 1
        judged = given.part(every[chosen], f"{given.name}, every {HELD_BACK}th")
        given = given.part(every[~chosen], given.name)
    if len(judged) < FEWEST:
        cure = f"give {FEWEST} or more"
        if sources.held is None:
            cure = f"give others by --images PATH, or {FEWEST * HELD_BACK} in --calibration"
        raise InputError(
            f"{judged.name}: {len(judged)} images to judge on; {FEWEST} are the fewest that say"
            f" anything: {cure}"
        )
    return given, judged, said


def _images(source: ImageSource, material: ImageMaterial, model: VisionModel) -> tuple[Images, str]:
    change, _, said = preprocessing(model, material.pixels, source)
    numbers = None if source.labels is None else torch.from_numpy(source.labels)
    if numbers is not None and source.classes and model.labels is not None:
        numbers = _as_model(numbers, source.classes, model.labels)
    places = np.arange(len(source))
    images = Images(source=source, places=places, change=change, labels=numbers, name=source.name)
    return images, said


def _as_model(numbers: Tensor, classes: tuple[str, ...], known: Mapping[str, int]) -> Tensor:
    """Labels by the model's own numbering, where it knows the names of all classes."""
    if not all(name in known for name in classes):
        return numbers
    return torch.tensor([known[name] for name in classes])[numbers]


def check_labels(images: Images, classes: int) -> None:
    """Raise `InputError` where labels name classes that the model has not."""
    labels = images.labels
    if labels is not None and not bool(((labels >= 0) & (labels < classes)).all()):
        raise InputError(
            f"{images.name}: labels {int(labels.min())} to {int(labels.max())}, but the"
            f" model knows {classes} classes"
        )
