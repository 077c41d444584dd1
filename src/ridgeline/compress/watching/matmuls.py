"""Where torch's functions that multiply have their inputs and the weight.

In a batched one every expert has rows of its own: it is as many matmuls as it has experts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ridgeline.compress.watching.byte_products import linear_in_bytes

PLACES: dict[Any, tuple[int, int]] = {
    functional.linear: (0, 1),
    linear_in_bytes: (0, 1),
    torch.addmm: (1, 2),
    torch.matmul: (0, 1),
    torch.mm: (0, 1),
    torch.Tensor.matmul: (0, 1),
    torch.Tensor.__matmul__: (0, 1),
}
"""Where each matmul's arguments have the inputs and the weight."""
BATCHED = frozenset({torch.bmm, torch.Tensor.bmm})
"""Functions that multiply [experts, rows, in] by weights [experts, in, out]."""


def weights_met(func: Any, args: Sequence[Any]) -> Iterator[int]:
    """The addresses of the weights that a call of a function multiplies with."""
    if func in BATCHED and len(args) > 1:
        yield from (weight.data_ptr() for weight in args[1])
    place = PLACES.get(func, (0, 0))[1]
    if place and len(args) > place and isinstance(args[place], Tensor):
        yield args[place].data_ptr()


def own_rows(inputs: Tensor) -> Tensor:
    """The rows that are not all zero, bool: those of zeros belong to other experts (Llama 4)."""
    return inputs.any(-1)
