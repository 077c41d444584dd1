"""Inputs of any model as tensors in a file: .npy, .pt, or .npz and .safetensors with own names.

One tensor [n, …], or one for each argument of `forward`, by name (a dict) or in order (a tuple);
the first dimension of all of them counts samples. So six cameras [n, 6, 3, height, width] with
their intrinsics, clips [n, channels, frames, height, width], or two images of a stereo pair.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError, in_words
from ridgeline.records.overwriting import note_input

_IMAGES = ("pixel_values", "images")


@dataclass(frozen=True, slots=True)
class StoredInputs:
    """Samples of stored tensors, each a tuple of arrays."""

    name: str
    columns: tuple[NDArray[Any], ...]
    arguments: tuple[str, ...] = ()
    """The names of the columns; empty: they go by position."""
    labels: NDArray[np.int64] | None = None
    classes: tuple[str, ...] = ()
    ready: bool = True

    def __len__(self) -> int:
        return len(self.columns[0])

    def title(self, place: int) -> str:
        """Where one sample stands."""
        return f"{self.name}[{place}]"

    def read(self, place: int) -> Any:
        """Read one sample as a copy, an array or a tuple of them.

        Raises:
            InputError: It is infinite or NaN in places.
        """
        found = tuple(_single(np.array(column[place])) for column in self.columns)
        for one in found:
            if np.issubdtype(one.dtype, np.floating) and not np.isfinite(one).all():
                raise InputError(f"{self.title(place)}: infinite or NaN in places")
        return found if len(found) > 1 or self.arguments else found[0]


def _single(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(np.float32) if np.issubdtype(array.dtype, np.floating) else array


def holds_inputs(path: Path) -> bool:
    """Whether a path is a file of tensors that are no images by their names."""
    if not path.is_file():
        return False
    if path.suffix in (".npy", ".pt", ".pth"):
        return True
    try:
        if path.suffix == ".npz":
            with np.load(path) as archive:
                names = set(archive.files)
        elif path.suffix == ".safetensors":
            from safetensors import safe_open

            with safe_open(path, framework="numpy") as file:
                names = set(file.keys())
        else:
            return False
    except Exception:  # as arrays it is said what is wrong with it
        return False
    return bool(names) and not names & set(_IMAGES)


def open_inputs(where: str, path: Path, *, judged: bool = True) -> StoredInputs:
    """Samples of a file of tensors.

    Args:
        where: The option and the path, for messages.
        path: The file.
        judged: Whether `labels` are the classes of the samples, and no input.

    Raises:
        InputError: It cannot be read, or its tensors have no dimension of samples in common.
    """
    note_input(path)
    try:
        found = _read(path)
    except InputError:
        raise
    except Exception as error:  # the readers of torch, numpy and safetensors raise what they like
        raise InputError(f"{where}: cannot be read as tensors ({in_words(error)})") from None
    labels = found.pop("labels", None) if judged and isinstance(found, dict) else None
    columns = tuple(found.values()) if isinstance(found, dict) else tuple(found)
    arguments = tuple(found) if isinstance(found, dict) else ()
    counts = {len(one) if one.ndim else 0 for one in columns}
    if len(counts) != 1 or 0 in counts:
        raise InputError(
            f"{where}: tensors of {sorted(counts)} rows; give one tensor for each argument of"
            " forward, with a row for each sample, or pixel_values of images alone"
        )
    numbers = None
    if labels is not None and labels.shape == (len(columns[0]),):
        numbers = labels.astype(np.int64)
    return StoredInputs(str(path), columns, arguments, numbers)


def _read(path: Path) -> dict[str, NDArray[Any]] | list[NDArray[Any]]:
    if path.suffix == ".npy":
        return [np.load(path, mmap_mode="r")]
    if path.suffix == ".npz":
        with np.load(path) as archive:
            return {name: archive[name] for name in archive.files}
    if path.suffix == ".safetensors":
        from safetensors.numpy import load_file

        return dict(load_file(path))
    import torch

    found: Any = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(found, torch.Tensor):
        return [found.numpy()]
    if isinstance(found, dict) and all(isinstance(one, torch.Tensor) for one in found.values()):
        return {str(name): one.numpy() for name, one in found.items()}
    if isinstance(found, list | tuple) and all(isinstance(one, torch.Tensor) for one in found):
        return [one.numpy() for one in found]
    raise InputError(f"{path}: holds no tensor, and no dict or tuple of tensors; save one of these")
