"""The numbers of a LoRA adapter that was examined (`adapters.py`), by plain reads of its file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ridgeline.checkpoints.adapters import AdapterFile, Identity, StoredMatrix
from ridgeline.errors import InputError, in_words

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class LowRank:
    """The addition to one layer: B A x, the scaling s already in B."""

    a: Tensor
    """The matrix A, [rank, inputs]."""
    b: Tensor
    """The matrix B times s, [outputs, rank] float32."""
    magnitude: Tensor | None = None
    """What the rows' lengths become (DoRA), [outputs] float32."""

    @property
    def rank(self) -> int:
        """The rank of the addition."""
        return self.a.shape[0]


def read_low_rank(file: AdapterFile) -> dict[str, LowRank]:
    """Read the numbers of an adapter that was examined, by the name of the layer they add to.

    Raises:
        InputError: The file is not what it was when it was examined.
    """
    try:
        descriptor = os.open(file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(f"{file.path}: {in_words(error)}") from None
    try:
        if Identity.of(descriptor) != file.identity:
            raise InputError(
                f"{file.path} has changed since it was loaded; unload the adapter and load it again"
            )
        found = {}
        for layer in file.layers:
            magnitude = layer.magnitude
            found[layer.name] = LowRank(
                _numbers(file.path, descriptor, layer.a),
                _numbers(file.path, descriptor, layer.b).float() * layer.scaling,
                None if magnitude is None else _numbers(file.path, descriptor, magnitude).float(),
            )
        return found
    finally:
        os.close(descriptor)


def _numbers(path: str, descriptor: int, matrix: StoredMatrix) -> Tensor:
    """The numbers of a matrix, by reads: where a mapped file is cut short, the process dies."""
    import torch

    dtypes = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
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
    return torch.frombuffer(data, dtype=dtypes[matrix.dtype]).view(matrix.shape)
