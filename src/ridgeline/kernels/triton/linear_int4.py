"""Linear layers with 4-bit weights in groups on a GPU: what `kernels/linear_int4.py` computes.

A row of the weight lies in chunks of 32 weights as 16 bytes: the low nibbles are the first 16
weights, the high nibbles the other 16, each weight plus 8. One thread reads a chunk at once, and
both halves of a byte meet consecutive inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ridgeline.errors import InputError
from ridgeline.kernels.triton.linear_int8 import pack_groups
from ridgeline.kernels.triton.weight_only import step_within, weight_only_linear

__all__ = ["linear", "pack", "pack_groups", "unpack"]

CHUNK = 32


def pack(quantised: Tensor) -> Tensor:
    """[outputs, depth] int8 in -8 … 7 as [outputs, depth / 2] uint8.

    Raises:
        InputError: The depth is no multiple of 32.
    """
    depth = quantised.shape[1]
    if depth % CHUNK:
        raise InputError(
            f"int4: {depth} input features are no multiple of {CHUNK}, which a GPU needs; "
            "use --weights int8"
        )
    halves = (quantised + 8).to(torch.uint8).unflatten(1, (-1, 2, CHUNK // 2))
    return (halves[:, :, 0] | halves[:, :, 1] << 4).flatten(1)


def unpack(packed: Tensor) -> Tensor:
    """The quantised weight that was packed, int8."""
    chunks = packed.unflatten(1, (-1, 1, CHUNK // 2))
    return torch.cat((chunks & 15, chunks >> 4), 2).flatten(1).to(torch.int8) - 8


def linear(
    x: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor | None, bias: Tensor | None
) -> Tensor:
    """[..., depth] to [..., outputs], in x's dtype; see `kernels/linear_int4.py`.

    Args:
        x: bfloat16, float16 or float32; any number of rows.
        packed: From `pack`.
        scales: From `pack_groups`, float32 or bfloat16.
        zeros: From `pack_groups`, int8 in -8 … 7; None: symmetric.
        bias: [outputs].

    Raises:
        InputError: Groups that are no multiple of 32.
    """
    depth = packed.shape[1] * 2
    group = depth // scales.shape[0]
    if group % CHUNK:
        raise InputError(
            f"int4 weights in groups of {group}: a GPU needs a multiple of {CHUNK}; "
            "choose another --group-size"
        )
    assert step_within(group, depth)
    return weight_only_linear(x, packed, scales, zeros, bias, depth=depth, kind="int4")
