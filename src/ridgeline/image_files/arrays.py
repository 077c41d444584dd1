"""Images may lie in arrays: .npz, .safetensors, or a folder with a mapped images.npy.

`pixel_values` are what a model takes, floats [n, channels, height, width]; `images` are pixels,
uint8 [n, height, width, 3] (or without the last axis: grey), or such floats. `labels` [n] are
integers.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError, in_words
from ridgeline.records.overwriting import note_input

NEITHER = (
    "give pixel_values [n, channels, height, width] or images [n, height, width, 3] (uint8), and"
    " labels [n]"
)


@dataclass(frozen=True, slots=True)
class ArrayImages:
    """Images of one array."""

    name: str
    values: NDArray[Any]
    """[n, channels, height, width] floats, or [n, height, width, 3] or [n, height, width] uint8."""
    labels: NDArray[np.int64] | None
    ready: bool
    classes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.values)

    def title(self, place: int) -> str:
        """Where one image stands."""
        return f"{self.name}[{place}]"

    def read(self, place: int) -> NDArray[Any]:
        """One image, copied out of the array.

        Raises:
            InputError: It is infinite or NaN in places.
        """
        one = np.array(self.values[place])
        if not self.ready:
            return np.repeat(one[:, :, None], 3, axis=2) if one.ndim == 2 else one
        if not np.isfinite(one).all():
            raise InputError(f"{self.title(place)}: pixel_values are infinite or NaN in places")
        return one.astype(np.float32, copy=False)


def holds_arrays(path: Path) -> bool:
    """Whether a path is one of arrays."""
    return path.suffix in (".npz", ".safetensors") or (path / "images.npy").is_file()


def open_arrays(where: str, path: Path) -> ArrayImages:
    """Images of a file of arrays.

    Raises:
        InputError: It cannot be read, or holds something else.
    """
    for one in (path, path / "images.npy", path / "labels.npy"):
        if one.is_file():
            note_input(one)
    try:
        found = _arrays(path)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{where}: cannot be read as arrays ({in_words(error)})") from None
    values = found.get("pixel_values", found.get("images"))
    if values is None:
        raise InputError(f"{where}: has no pixel_values and no images; {NEITHER}")
    labels = found.get("labels")
    ready = "pixel_values" in found or _is_what_a_model_takes(values)
    if ready and (values.ndim != 4 or not np.issubdtype(values.dtype, np.floating)):
        shape = f"{values.dtype} {list(values.shape)}"
        raise InputError(
            f"{where}: pixel_values are {shape}, not the floats [n, channels, height, width] that"
            " the model's preprocessor makes"
        )
    grey_or_rgb = values.ndim == 3 or (values.ndim == 4 and values.shape[-1] == 3)
    if not ready and (values.dtype != np.uint8 or not grey_or_rgb):
        raise InputError(f"{where}: images are {values.dtype} {list(values.shape)}; {NEITHER}")
    if labels is not None and (
        labels.shape != values.shape[:1] or not np.issubdtype(labels.dtype, np.integer)
    ):
        raise InputError(
            f"{where}: {len(values)} images and labels {labels.dtype} {list(labels.shape)};"
            f" {NEITHER}"
        )
    if not len(values):
        raise InputError(f"{where}: holds no images; {NEITHER}")
    return ArrayImages(
        str(path), values, None if labels is None else labels.astype(np.int64), ready
    )


def _is_what_a_model_takes(values: NDArray[Any]) -> bool:
    """Whether these are floats with their channels in front."""
    floats = values.ndim == 4 and np.issubdtype(values.dtype, np.floating)
    return bool(floats and (values.shape[-1] != 3 or values.shape[1] == 3))


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    if path.is_dir():
        labels = path / "labels.npy"
        found = {"images": np.load(path / "images.npy", mmap_mode="r")}
        if found["images"].dtype != np.uint8:
            found = {"pixel_values": found["images"]}
        return found | ({"labels": np.load(labels)} if labels.is_file() else {})
    wanted = ("pixel_values", "images", "labels")
    if path.suffix == ".npz":
        with np.load(path) as archive:
            return {name: archive[name] for name in wanted if name in archive.files}
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            return {name: file.get_tensor(name) for name in wanted if name in file.keys()}  # noqa: SIM118
    except (SafetensorError, TypeError) as error:
        raise ValueError(in_words(error)) from None
