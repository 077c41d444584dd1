"""The tensors of a model directory, read one at a time through safetensors' own reader.

Only headers are read at first. A tensor is read through its own slice of the file, so that a model
larger than memory can be walked through. A file stays open from one tensor to the next, since each
opening reads its header, which names thousands of tensors in a mixture; it is opened anew before
what was read, and stays mapped so long, becomes much.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ridgeline.errors import InputError
from ridgeline.records.input_file import read_json
from ridgeline.records.overwriting import note_input

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
LARGEST_MAPPED_BYTES = 2**22
"""A file is opened anew once tensors of so many bytes were read through it."""
READ_TOGETHER_BYTES = 2**16
"""Rows of a matrix within so many bytes are read at once where some of them are wanted."""
CHECKED_NUMBERS = 2**24
"""Numbers that are looked at together, of a tensor that is not read whole."""
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""Dtypes by their names in safetensors."""


class StoredTensors:
    """The safetensors of a directory: one file, or shards that an index lists.

    Raises:
        InputError: There are none, or a shard is missing or damaged.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._file_of: dict[str, Path] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._dtypes: dict[str, torch.dtype] = {}
        for path in self._files():
            self._read_header(path)
        self._open: tuple[Path, Any] | None = None
        self._mapped_bytes = 0
        """At most what is resident of the open file."""
        self.read_bytes = 0
        """The bytes of all tensors read so far, as stored."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all tensors, in the order of the files."""
        return tuple(self._file_of)

    @property
    def files(self) -> list[Path]:
        """The files that hold the tensors, in order."""
        return list(dict.fromkeys(self._file_of.values()))

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape, without reading it."""
        return self._shapes[name]

    def dtype(self, name: str) -> torch.dtype:
        """The dtype that a tensor is stored in."""
        return self._dtypes[name]

    def stored_bytes(self, name: str) -> int:
        """The bytes that a tensor takes on disk."""
        return math.prod(self._shapes[name]) * self._dtypes[name].itemsize

    def read(self, name: str, inside: int | None = None) -> Tensor:
        """Read one tensor, in the dtype it is stored in.

        Args:
            name: The tensor's.
            inside: The place along its first dimension; None: all of it.

        Raises:
            InputError: It is not there, or its file cannot be read.
        """
        if inside is not None:
            return self.part(name, 0, inside, inside + 1)[0]
        with self._opened(name) as file:
            tensor: Tensor = file.get_tensor(name)
        self.read_bytes += tensor.nbytes
        return tensor

    def rows(self, name: str, numbers: Tensor) -> Tensor:
        """Read some rows of a matrix [rows, …], and few of the others.

        Rows that follow each other and lie close together are read at once: a reading costs as
        much as some 64 KiB do.
        """
        row_bytes = self.stored_bytes(name) // max(1, self._shapes[name][0])
        together = max(1, READ_TOGETHER_BYTES // max(1, row_bytes))
        found: list[Tensor] = []
        with self._opened(name) as file:
            whole = file.get_slice(name)
            for _, close in groupby(numbers.tolist(), key=lambda row: row // together):
                rows = list(close)
                first = min(rows)
                piece: Tensor = whole[first : max(rows) + 1]
                found.append(piece[torch.tensor(rows) - first])
        result = torch.cat(found)
        self.read_bytes += result.nbytes
        return result

    def part(self, name: str, dim: int, first: int, last: int) -> Tensor:
        """Read from `first` to before `last` along a dimension, and not the rest."""
        with self._opened(name) as file:
            whole = file.get_slice(name)
            found: Tensor = whole[(slice(None),) * dim + (slice(first, last),)]
        self.read_bytes += found.nbytes
        return found

    def finite(self, name: str, inside: int | None = None) -> Tensor:
        """Read as `read` does; a weight that is inf or NaN is an InputError that names it."""
        tensor = self.read(name, inside)
        self._require_finite(name, tensor)
        return tensor

    def check_finite(self, name: str) -> None:
        """Raise the same `InputError`; some rows of the tensor are in memory at a time."""
        shape = self.shape(name)
        rows = max(1, CHECKED_NUMBERS // max(1, math.prod(shape[1:])))
        with self._opened(name) as file:
            whole = file.get_slice(name)
            for start in range(0, shape[0] if shape else 0, rows):
                self._require_finite(name, whole[start : start + rows])

    def _require_finite(self, name: str, tensor: Tensor) -> None:
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            where = f"{self.directory}: {name}"
            raise InputError(f"{where} has inf or NaN weights, which cannot be compressed")

    @contextmanager
    def _opened(self, name: str) -> Iterator[Any]:
        """The file that holds a tensor, for as long as that is read."""
        if name not in self._file_of:
            raise InputError(f"{self.directory}: {name} is missing")
        path = self._file_of[name]
        try:
            yield self._file(path, self.stored_bytes(name))
        except (SafetensorError, OSError) as error:
            self._open = None
            raise InputError(f"{path}: {name} cannot be read: {error}; fetch it again") from None

    def _file(self, path: Path, more_bytes: int) -> Any:
        """The open file of that path, through which so many bytes more are to be read."""
        self._mapped_bytes += more_bytes
        kept = self._open
        if kept is None or kept[0] != path or self._mapped_bytes > LARGEST_MAPPED_BYTES:
            kept = self._open = path, safe_open(path, framework="pt")
            self._mapped_bytes = more_bytes
        return kept[1]

    def _files(self) -> list[Path]:
        if (self.directory / INDEX).exists():
            index = read_json(self.directory / INDEX, dict[str, Any], cure="fetch it again")
            try:
                return [self.directory / file for file in sorted(set(index["weight_map"].values()))]
            except (KeyError, TypeError, AttributeError):
                path = self.directory / INDEX
                raise InputError(f"{path}: no weight_map; fetch it again") from None
        if (self.directory / SINGLE).exists():
            return [self.directory / SINGLE]
        raise InputError(
            f"{self.directory}: holds neither {SINGLE} nor its index; save the model as safetensors"
            " first, as save_pretrained does"
        )

    def _read_header(self, path: Path) -> None:
        note_input(path)
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - it is no dict
                    tensor = file.get_slice(name)
                    self._shapes[name] = tuple(tensor.get_shape())
                    self._dtypes[name] = DTYPES[tensor.get_dtype()]
                    self._file_of[name] = path
        except FileNotFoundError:
            raise InputError(f"{path}: named in {INDEX} but missing; fetch it again") from None
        except KeyError as error:
            raise InputError(f"{path}: {name} is stored as {error}, which torch has not") from None
        except (SafetensorError, OSError) as error:
            raise InputError(
                f"{path}: damaged header, or truncated ({error}); fetch it again"
            ) from None


class CheckpointFiles(StoredTensors):
    """A Hugging Face directory: `config.json` and safetensors.

    Raises:
        InputError: No such directory, no safetensors, a shard that is missing or damaged.
    """

    def __init__(self, directory: Path) -> None:
        self.config = read_json(
            directory / "config.json", dict[str, Any], cure="not a model directory"
        )
        super().__init__(directory)


def disk_bytes(directory: Path) -> int:
    """The bytes of the files that hold weights; each format once, safetensors first.

    transformers reads safetensors where there are some, so a second copy in another format is
    nothing that the model needs.
    """
    for pattern in ("*.safetensors", "*.bin"):
        files = [path for path in directory.glob(pattern) if path.is_file()]
        if files:
            return sum(path.stat().st_size for path in files)
    return 0
