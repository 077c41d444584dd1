"""The numbers of an adapter that was examined, out of its file."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.errors import InputError, in_words
from ridgeline.serve.adapters.peft_files import AdapterFile, Identity, Matrix

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Pair:
    """The addition to one layer: B A x, the scaling s already in B."""

    a: Tensor
    """[rank, inputs]"""
    b: Tensor
    """[outputs, rank] float32"""

    @property
    def rank(self) -> int:
        """Of the addition."""
        return self.a.shape[0]


def read_pairs(file: AdapterFile) -> dict[str, Pair]:
    """The pairs of one adapter by the name of the layer they add to.

    Raises:
        InputError: The file is not what it was when it was examined.
    """
    try:
        # By reads: a mapped file that is cut short meanwhile would end the process.
        descriptor = os.open(file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(f"{file.path}: {in_words(error)}") from None
    try:
        if Identity.of(descriptor) != file.identity:
            raise InputError(
                f"{file.path} has changed since it was loaded; unload the adapter and load it again"
            )
        return {
            layer.name: Pair(
                _read(file.path, descriptor, layer.a),
                _read(file.path, descriptor, layer.b).float() * layer.scaling,
            )
            for layer in file.layers
        }
    finally:
        os.close(descriptor)


def _read(path: str, descriptor: int, matrix: Matrix) -> Tensor:
    data = bytearray(matrix.num_bytes)
    view = memoryview(data)
    done = 0
    while done < len(data):
        try:
            count = os.preadv(descriptor, [view[done:]], matrix.start + done)
        except OSError as error:
            raise InputError(f"{path}: {in_words(error)}") from None
        if not count:
            raise InputError(f"{path} is shorter than it was; load the adapter again")
        done += count
    return torch.frombuffer(data, dtype=DTYPES[matrix.dtype]).view(matrix.shape)
