"""The tensors of a model directory, read one at a time.

Only headers are read at first. A tensor is read through its own slice of the file, so that a model
larger than memory can be walked through.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ridgeline.errors import InputError
from ridgeline.records.input_file import parse_json, read_json
from ridgeline.records.overwriting import note_input

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
LONGEST_HEADER_BYTES = 100_000_000
"""As safetensors itself has it."""
CHECKED_NUMBERS = 2**24
"""That are looked at together, of a tensor that is not read whole."""

_DTYPES = {
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
"""By their names in safetensors."""


class Checkpoint:
    """A Hugging Face directory with safetensors.

    Raises:
        InputError: No such directory, no safetensors, a shard that is missing or damaged.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = self._json("config.json", "not a model directory")
        self._file_of: dict[str, str] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._dtypes: dict[str, torch.dtype] = {}
        for file in self._files():
            self._read_header(file)
        self.read_bytes = 0
        """Of all tensors read so far, as stored."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of all tensors, in the order of the files."""
        return tuple(self._file_of)

    def shape(self, name: str) -> tuple[int, ...]:
        """Without reading it."""
        return self._shapes[name]

    def dtype(self, name: str) -> torch.dtype:
        """It is stored in."""
        return self._dtypes[name]

    def stored_bytes(self, name: str) -> int:
        """On disk."""
        return math.prod(self._shapes[name]) * self._dtypes[name].itemsize

    def read(self, name: str) -> Tensor:
        """One tensor, in the dtype it is stored in."""
        from safetensors import SafetensorError, safe_open

        path = self.directory / self._file_of[name]
        try:
            with safe_open(path, framework="pt") as file:
                tensor: Tensor = file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path}: {name} cannot be read: {error}; fetch it again") from None
        self.read_bytes += tensor.nbytes
        return tensor

    def rows(self, name: str, numbers: Tensor) -> Tensor:
        """Some rows of a matrix [rows, …], without reading the others."""
        from safetensors import SafetensorError, safe_open

        path = self.directory / self._file_of[name]
        try:
            with safe_open(path, framework="pt") as file:
                whole = file.get_slice(name)
                found: Tensor = torch.cat([whole[row : row + 1] for row in numbers.tolist()])
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path}: {name} cannot be read: {error}; fetch it again") from None
        self.read_bytes += found.nbytes
        return found

    def finite(self, name: str) -> Tensor:
        """As `read`; a weight that is inf or NaN is an InputError that names it."""
        tensor = self.read(name)
        self._require_finite(name, tensor)
        return tensor

    def check_finite(self, name: str) -> None:
        """Raise the same `InputError`; some rows of the tensor are in memory at a time."""
        from safetensors import SafetensorError, safe_open

        path, shape = self.directory / self._file_of[name], self.shape(name)
        rows = max(1, CHECKED_NUMBERS // max(1, math.prod(shape[1:])))
        try:
            with safe_open(path, framework="pt") as file:
                whole = file.get_slice(name)
                for start in range(0, shape[0] if shape else 0, rows):
                    self._require_finite(name, whole[start : start + rows])
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path}: {name} cannot be read: {error}; fetch it again") from None

    def _require_finite(self, name: str, tensor: Tensor) -> None:
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            where = f"{self.directory}: {name}"
            raise InputError(f"{where} has inf or NaN weights, which cannot be compressed")

    def _files(self) -> list[str]:
        if (self.directory / INDEX).exists():
            index = self._json(INDEX, "fetch it again")
            try:
                return sorted(set(index["weight_map"].values()))
            except (KeyError, TypeError, AttributeError):
                path = self.directory / INDEX
                raise InputError(f"{path}: no weight_map; fetch it again") from None
        if (self.directory / SINGLE).exists():
            return [SINGLE]
        raise InputError(
            f"{self.directory}: no {SINGLE} and no {INDEX}; save the model as safetensors first"
        )

    def _json(self, name: str, cure: str) -> dict[str, Any]:
        return read_json(self.directory / name, dict[str, Any], cure=cure)

    def _read_header(self, file: str) -> None:
        path = self.directory / file
        note_input(path)
        try:
            with path.open("rb") as opened:
                length = int.from_bytes(opened.read(8), "little")
                size = path.stat().st_size
                if not 0 < length <= min(size - 8, LONGEST_HEADER_BYTES):
                    raise InputError(f"{path}: truncated or no safetensors file; fetch it again")
                content = opened.read(length)
            header = parse_json(
                content, dict[str, Any], where=f"{path}: damaged header", cure="fetch it again"
            )
            header.pop("__metadata__", None)
            end = max((about["data_offsets"][1] for about in header.values()), default=0)
            if 8 + length + end != size:
                raise InputError(
                    f"{path}: {size} bytes, its header says {8 + length + end}; fetch it again"
                )
            for name, about in header.items():
                self._file_of[name] = file
                self._shapes[name] = tuple(about["shape"])
                self._dtypes[name] = _DTYPES[about["dtype"]]
        except FileNotFoundError:
            raise InputError(f"{path}: named in {INDEX} but missing; fetch it again") from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path}: damaged header ({error}); fetch it again") from None
