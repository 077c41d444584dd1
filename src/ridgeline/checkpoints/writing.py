"""A model directory written without holding its tensors in memory, aside, and moved into place.

Safetensors' header comes first but is known last, and its own writer wants all tensors at once.
Tensors lie in a file by falling element size (readers map them in place, so each must be aligned;
holes are not allowed). Therefore tensors are put in a file as they come, and copied into order when
their shard is full. What an interrupted writer left aside is thrown away by the next one.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from ridgeline.checkpoints.files import DTYPES, INDEX, SINGLE
from ridgeline.errors import InputError

LIMIT_BYTES = 5_000_000_000
"""The largest size of a shard that transformers and the hub are used to."""
COMPANIONS = (
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
    "*.model",
    "*.py",
)
"""Files of the source that the result needs too (code: of models that bring their own)."""

_COPY_BYTES = 1 << 24
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def check_free(out_dir: Path) -> None:
    """Refuse to write over anything.

    Raises:
        InputError: There is something at `out_dir`.
    """
    if out_dir.exists() and (not out_dir.is_dir() or any(out_dir.iterdir())):
        raise InputError(f"{out_dir}: there is something already; give another place or remove it")


def open_aside(out_dir: Path) -> Path:
    """Make the empty folder beside `out_dir` that a directory is written in until it is whole.

    Raises:
        InputError: There is something at `out_dir`.
    """
    check_free(out_dir)
    aside = out_dir.with_name(f".{out_dir.name}.saving")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    return aside


@contextmanager
def written_aside(out_dir: Path) -> Iterator[Path]:
    """Within, a folder to write in; it becomes `out_dir` at the end, or goes where that failed."""
    aside = open_aside(out_dir)
    try:
        yield aside
        move_into_place(aside, out_dir)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Write `config.json`, its keys in order."""
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")


def copy_companions(source: Path, to: Path) -> None:
    """Copy the tokenizer, generation config and code of a model directory."""
    for pattern in COMPANIONS:
        for path in sorted(source.glob(pattern)):
            if path.is_file():
                shutil.copyfile(path, to / path.name)


def move_into_place(aside: Path, out_dir: Path) -> None:
    """Bring every file to the disk, then rename the folder at once."""
    for path in aside.iterdir():
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
    os.replace(aside, out_dir)


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
            final = final if total > 1 else SINGLE
            os.replace(path, self._folder / final)
            weight_map |= dict.fromkeys(names, final)
        if total > 1:
            index = {
                "metadata": {"total_size": self._total_bytes},
                "weight_map": dict(sorted(weight_map.items())),
            }
            path = self._folder / INDEX
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
