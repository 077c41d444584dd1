"""Safetensors shards, written tensor by tensor without holding them in memory.

The header of such a file comes first but is known last, and tensors lie in it by falling element
size (readers map them in place, so each must be aligned; holes are not allowed). Therefore tensors
are put in a file as they come, and copied into order when their shard is full.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

LIMIT_BYTES = 5_000_000_000
"""Of a shard: what transformers and the hub are used to."""

_COPY_BYTES = 1 << 24

_NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
}


class Shards:
    """`model.safetensors`, or several shards and their index, in one folder."""

    def __init__(self, folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self._folder, self._data = folder, folder / ".data"
        self._limit_bytes = limit_bytes
        self._shards: list[tuple[Path, list[str]]] = []
        self._names: set[str] = set()
        self._total_bytes = 0
        self._start()

    def add(self, name: str, tensor: Tensor) -> None:
        """Append one tensor; its memory is free afterwards."""
        if name in self._names:
            raise ValueError(f"{name} was written before")
        if self._rows and self._offset + tensor.nbytes > self._limit_bytes:
            self._finish()
            self._start()
        self._names.add(name)
        plain = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        with self._data.open("ab") as data:  # a full disk must not leave it open
            data.write(memoryview(plain.numpy()))
        self._rows.append((name, tensor.dtype, list(tensor.shape), self._offset, tensor.nbytes))
        self._offset += tensor.nbytes
        self._total_bytes += tensor.nbytes

    def close(self) -> int:
        """Finish the last shard, name them all, and give the bytes of all tensors."""
        self._finish()
        total = len(self._shards)
        weight_map: dict[str, str] = {}
        for number, (path, names) in enumerate(self._shards, start=1):
            final = f"model-{number:05d}-of-{total:05d}.safetensors"
            final = final if total > 1 else "model.safetensors"
            os.replace(path, self._folder / final)
            weight_map |= dict.fromkeys(names, final)
        if total > 1:
            index = {
                "metadata": {"total_size": self._total_bytes},
                "weight_map": dict(sorted(weight_map.items())),
            }
            path = self._folder / "model.safetensors.index.json"
            path.write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
        return self._total_bytes

    def _start(self) -> None:
        self._rows: list[tuple[str, torch.dtype, list[int], int, int]] = []
        self._offset = 0
        self._data.write_bytes(b"")

    def _finish(self) -> None:
        rows = sorted(self._rows, key=lambda row: (-row[1].itemsize, _NAMES[row[1]], row[0]))
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name, dtype, shape, _, size in rows:
            offsets = [end, end + size]
            header[name] = {"dtype": _NAMES[dtype], "shape": shape, "data_offsets": offsets}
            end += size
        content = json.dumps(header, separators=(",", ":")).encode()
        content += b" " * (-len(content) % 8)
        path = self._folder / f".shard-{len(self._shards)}"
        with path.open("wb") as file, self._data.open("rb") as data:
            file.write(len(content).to_bytes(8, "little") + content)
            for _, _, _, start, size in rows:
                _copy(data, file, start, size)
            file.flush()
            os.fsync(file.fileno())
        self._data.unlink()
        self._shards.append((path, [row[0] for row in rows]))


def _copy(data: IO[bytes], to: IO[bytes], start: int, size: int) -> None:
    data.seek(start)
    while size:
        piece = data.read(min(size, _COPY_BYTES))
        to.write(piece)
        size -= len(piece)
