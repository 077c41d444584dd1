"""Real inputs that a converted model is compared on, at two batches and two image sizes.

Images are read as `compress` and `train` read them. An .npz or .safetensors file with other names
holds the inputs of a model by argument: each array goes to the argument of its name, the only one
to the only argument, or several in one dict to the only one; their first dimension is the batch.
Where the first is of images [n, channels, height, width], all that are get a second size too.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from ridgeline.errors import InputError, in_words
from ridgeline.image_files.preprocess import Preprocess
from ridgeline.image_files.read_ahead import read_ahead
from ridgeline.image_files.source import ImageSource, open_images
from ridgeline.measure.network.example import needed_arguments, takes_one_dict

JUDGED = 128
"""Inputs that are compared at the first size, at most."""
JUDGED_BESIDE = 16
"""At other sizes and batches."""
CALIBRATED = 128
"""Inputs whose ranges int8 takes, at most."""
BATCHES = (1, 8)
SIZE_STEP = 32
"""The second size is larger by this: a whole number of patches and of strides of most networks."""
_IN_DICT = "."
_SMOOTH = 0.2
"""Neighbouring pixels of photographs, drawings and text agree more than this; noise does not."""

Args = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckCase:
    """Calls of one batch and one size; the last may be smaller where the inputs ran out."""

    batch: int
    size: tuple[int, ...]
    calls: list[dict[str, Tensor]]
    """Arguments of each call by name; `` names the only positional one, and `.name` what stands
    under that name in the dict that is the only one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckInputs:
    """Inputs of all calls; the first case has the batch and the size that others stand beside."""

    cases: list[CheckCase]
    labels: Tensor | None
    """The class of each input of the cases of the first size, in order."""
    calibration: list[dict[str, Tensor]]
    notes: list[str]


def arguments(call: dict[str, Tensor]) -> tuple[Args, dict[str, Tensor]]:
    """Positional and keyword arguments of a call.

    >>> arguments({"": torch.ones(1)})[0][0].shape, arguments({"x": torch.ones(1)})[1].keys()
    (torch.Size([1]), dict_keys(['x']))
    >>> arguments({".x": torch.ones(1), ".y": torch.ones(1)})[0][0].keys()
    dict_keys(['x', 'y'])
    """
    if set(call) == {""}:
        return (call[""],), {}
    if all(name.startswith(_IN_DICT) for name in call):
        return ({name.removeprefix(_IN_DICT): one for name, one in call.items()},), {}
    return (), call


def read_check_inputs(
    check: Path,
    module: nn.Module,
    preprocess: Preprocess | None,
    *,
    image_size: int | None,
    calibrate: bool,
) -> CheckInputs:
    """Inputs of a folder or a file.

    Args:
        check: `--check`.
        module: Whose arguments they become.
        preprocess: What its authors say; None: ImageNet's usual.
        image_size: `--image-size`: the first size, whatever they say.
        calibrate: Every second input shows ranges to int8, and is not compared on.

    Raises:
        InputError: They cannot be read, or are random and were to be calibrated on.
    """
    arrays = _other_arrays(check)
    if arrays is not None:
        return _from_arrays(check, arrays, module, calibrate=calibrate)
    source = open_images("--check", check)
    notes = []
    if preprocess is None and not source.ready:
        preprocess = Preprocess()
        notes.append(f"nothing says how images become inputs: {preprocess.said()}")
    elif preprocess is not None and not source.ready:
        notes.append(preprocess.said())
    reader = _Reader(source, _sized(preprocess or Preprocess(), image_size))
    places = range(len(source))
    judged = _spread(places[::2] if calibrate else places, JUDGED)
    shown = _spread(places[1::2], CALIBRATED) if calibrate else []
    if calibrate and not shown:
        raise InputError(f"--check {check}: one image; int8 needs others to take its ranges from")
    notes += _smoothness(check, reader, judged, calibrate=calibrate)
    cases = [
        CheckCase(batch=batch, size=size, calls=list(_calls(reader.at(judged[:most], size), batch)))
        for size in reader.sizes
        for batch in BATCHES
        for most in [JUDGED if batch == BATCHES[-1] and size == reader.sizes[0] else JUDGED_BESIDE]
    ]
    calibration = _calls(reader.at(shown, reader.sizes[0]), BATCHES[-1])
    labels = source.labels
    return CheckInputs(
        cases=cases,
        labels=None if labels is None else torch.from_numpy(labels[judged]),
        calibration=list(calibration),
        notes=notes,
    )


def _spread(places: Sequence[int], most: int) -> list[int]:
    """At most so many, evenly over all: class folders come one after the other.

    >>> _spread(range(10), 4)
    [0, 2, 5, 7]
    """
    if len(places) <= most:
        return list(places)
    return [places[place * len(places) // most] for place in range(most)]


class _Reader:
    """Images of a source as inputs of any size."""

    def __init__(self, source: ImageSource, preprocess: Preprocess) -> None:
        self._source, self._preprocess = source, preprocess
        first = self._first()
        self.sizes = [first, (first[0] + SIZE_STEP, first[1] + SIZE_STEP)]

    def _first(self) -> tuple[int, int]:
        if self._source.ready:
            _, height, width = self._source.read(0).shape
            return int(height), int(width)
        crop, resize = self._preprocess.crop, self._preprocess.resize
        found = crop or (resize if isinstance(resize, tuple) else None)
        if found is None:
            raise InputError(
                f"--check {self._source.name}: the preprocessor gives every image a size of its"
                " own; give --image-size"
            )
        return found

    def at(self, places: Sequence[int], size: tuple[int, int]) -> Iterator[Tensor]:
        """Inputs [channels, height, width] of one size."""
        if self._source.ready:
            for place in places:
                image = torch.from_numpy(self._source.read(place))
                yield image if tuple(image.shape[1:]) == size else _stretched(image[None], size)[0]
            return
        change = _resized(self._preprocess, size)
        for pixels in read_ahead(self._source, places, change):
            yield torch.from_numpy(pixels)


def _stretched(images: Tensor, size: tuple[int, int]) -> Tensor:
    return nn.functional.interpolate(images, size, mode="bilinear", align_corners=False)


def _sized(preprocess: Preprocess, image_size: int | None) -> Preprocess:
    return preprocess if image_size is None else _resized(preprocess, (image_size, image_size))


def _resized(preprocess: Preprocess, size: tuple[int, int]) -> Preprocess:
    """The same steps for another size: what is cut away stays the same share."""
    before = preprocess.crop or preprocess.resize
    if before == size:
        return preprocess
    resize: int | tuple[int, int] | None = preprocess.resize
    if preprocess.crop is None or resize is None:
        return msgspec.structs.replace(preprocess, resize=size, crop=None)
    share = min(size) / min(preprocess.crop)
    if isinstance(resize, int):
        resize = max(round(resize * share), *size)
    else:
        resize = (max(round(resize[0] * share), size[0]), max(round(resize[1] * share), size[1]))
    return msgspec.structs.replace(preprocess, resize=resize, crop=size)


def _calls(images: Iterator[Tensor], batch: int) -> Iterator[dict[str, Tensor]]:
    while together := list(islice(images, batch)):
        yield {"": torch.stack(together)}


def _smoothness(
    check: Path, reader: _Reader, places: Sequence[int], *, calibrate: bool
) -> list[str]:
    """Whether the images are noise: neighbours of a picture are alike."""
    seen = [_likeness_of_neighbours(image) for image in reader.at(places[:8], reader.sizes[0])]
    if np.median(seen) > _SMOOTH:
        return []
    if calibrate:
        raise InputError(
            f"--check {check}: the images are random numbers, whose ranges are not those of real"
            " ones; give real images to make an int8 model of"
        )
    return ["the inputs look like random numbers: agreement on them says little of real images"]


def _likeness_of_neighbours(image: Tensor) -> float:
    left, right = image[..., :-1].flatten(), image[..., 1:].flatten()
    if not bool(left.std() > 0) or not bool(right.std() > 0):
        return 1.0  # one colour
    return float(torch.corrcoef(torch.stack([left, right]))[0, 1])


# -- inputs that are no images -------------------------------------------------------------------


def _other_arrays(path: Path) -> dict[str, Tensor] | None:
    """Arrays of a file that holds no images; None: it is something else."""
    if path.suffix not in (".npz", ".safetensors") or not path.is_file():
        return None
    try:
        if path.suffix == ".npz":
            with np.load(path) as archive:
                found = {name: torch.from_numpy(archive[name]) for name in archive.files}
        else:
            from safetensors.torch import load_file

            found = dict(load_file(path))
    except Exception as error:  # the readers of numpy and safetensors raise what they like
        raise InputError(f"--check {path}: cannot be read ({in_words(error)})") from None
    return None if {"pixel_values", "images"} & found.keys() else found


def _from_arrays(
    check: Path, arrays: dict[str, Tensor], module: nn.Module, *, calibrate: bool
) -> CheckInputs:
    labels = None if "labels" in needed_arguments(module) else arrays.pop("labels", None)
    named = _by_argument(check, arrays, module)
    counts = {len(one) for one in arrays.values()}
    if len(counts) != 1 or 0 in counts:
        raise InputError(f"--check {check}: arrays of {sorted(counts)} rows; give as many of each")
    (count,) = counts
    places = range(count)
    if calibrate and count < 2:
        raise InputError(
            f"--check {check}: arrays of one row; int8 needs others to take its ranges from"
        )
    judged, shown = (places[::2], places[1::2]) if calibrate else (places, places[:0])
    size = tuple(int(one) for one in next(iter(named.values())).shape[1:])

    def calls(wanted: Sequence[int], batch: int) -> list[dict[str, Tensor]]:
        starts = range(0, len(wanted), batch)
        return [
            {name: one[list(wanted[start : start + batch])] for name, one in named.items()}
            for start in starts
        ]

    most = {1: JUDGED_BESIDE, BATCHES[-1]: JUDGED}
    cases = [
        CheckCase(batch=batch, size=size, calls=calls(judged[: most[batch]], batch))
        for batch in BATCHES
    ]
    if _is_images(next(iter(named.values()))):
        cases += [
            CheckCase(
                batch=batch,
                size=(size[0], size[1] + SIZE_STEP, size[2] + SIZE_STEP),
                calls=[_grown(one) for one in calls(judged[:JUDGED_BESIDE], batch)],
            )
            for batch in BATCHES
        ]
    return CheckInputs(
        cases=cases,
        labels=None if labels is None else labels[list(judged[:JUDGED])].to(torch.int64),
        calibration=calls(_spread(shown, CALIBRATED), BATCHES[-1]),
        notes=[],
    )


def _is_images(array: Tensor) -> bool:
    return array.ndim == 4 and array.is_floating_point() and min(array.shape[2:]) >= SIZE_STEP


def _grown(call: dict[str, Tensor]) -> dict[str, Tensor]:
    """A call with each of its images stretched; eager decides whether the model takes it."""
    return {
        name: _stretched(one, (one.shape[2] + SIZE_STEP, one.shape[3] + SIZE_STEP))
        if _is_images(one)
        else one
        for name, one in call.items()
    }


def _by_argument(check: Path, arrays: dict[str, Tensor], module: nn.Module) -> dict[str, Tensor]:
    parameters = inspect.signature(module.forward).parameters
    if len(arrays) == 1 and not arrays.keys() & parameters.keys():
        return {"": next(iter(arrays.values()))}
    if takes_one_dict(module, arrays):
        return {f"{_IN_DICT}{name}": one for name, one in arrays.items()}
    unknown = sorted(arrays.keys() - parameters.keys())
    if unknown or not arrays:
        raise InputError(
            f"--check {check}: forward has no argument {', '.join(unknown) or 'filled'}; it takes"
            f" {', '.join(parameters)}"
        )
    return {name: arrays[name] for name in parameters if name in arrays}
