"""What every source of images offers, and the way from a path to the source that reads it.

| path | is read as |
|---|---|
| a folder of folders | a class for each folder, in alphabetical order |
| a folder of images, beside it `labels.csv` or `--labels` | file,label lines |
| a folder of images alone | images without labels |
| `.tar`, a folder of them, or `shard-{000..099}.tar` | WebDataset |
| `.npz`, `.safetensors`, or a folder with `images.npy` | arrays |
| `.npy`, `.pt`, or arrays of other names | tensors for the arguments of `forward` |
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError


class ImageSource(Protocol):
    """Images in a fixed order, each read when it is asked for; safe to read from many threads."""

    @property
    def name(self) -> str:
        """The path that the user named."""
        ...

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """The class of each image, [n]; None where nothing says them."""
        ...

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, by label; empty where labels are numbers."""
        ...

    @property
    def ready(self) -> bool:
        """Whether `read` gives what a model takes, float32 [channels, height, width]."""
        ...

    def __len__(self) -> int:
        """The number of images."""
        ...

    def title(self, place: int) -> str:
        """The name of one image: its file, or where it stands."""
        ...

    def read(self, place: int) -> NDArray[Any]:
        """One image as pixels, uint8 [height, width, 3], or as a model takes it where `ready`.

        Raises:
            InputError: It cannot be read or decoded.
        """
        ...


def open_images(option: str, path: Path, labels: Path | None = None) -> ImageSource:
    """The source behind a path; nothing is decoded yet.

    Args:
        option: That named it.
        path: See the table above.
        labels: Lines of `file,label`, for a flat folder alone.

    Raises:
        InputError: It holds no images, or is of no known form.
    """
    from ridgeline.image_files import arrays, folders, tar_shards, tensors

    where = f"{option} {path}"
    shards = tar_shards.shards_of(path)
    if labels is not None and (shards or not path.is_dir()):
        raise InputError(f"--labels {labels}: {path} has its labels inside; leave --labels out")
    if shards:
        return tar_shards.open_shards(where, path, shards)
    if not path.exists():
        raise InputError(f"{where}: no such file or folder; check the path")
    if tensors.holds_inputs(path):
        return tensors.open_inputs(where, path)
    if arrays.holds_arrays(path):
        return arrays.open_arrays(where, path)
    if path.is_dir():
        return folders.open_folder(where, path, labels)
    raise InputError(
        f"{where}: is no folder of images, .tar, .npz, .safetensors, .npy or .pt; give one of these"
    )
