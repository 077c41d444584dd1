"""Linear layers with 8-bit weights on a GPU: what `kernels/linear_int8.py` computes.

A row of the weight lies as it is: int8 or float8_e4m3fn [outputs, depth].
"""

from __future__ import annotations

import torch
from torch import Tensor

from ridgeline.errors import InputError
from ridgeline.kernels.triton.weight_only import Format, step_within, weight_only_linear


def pack(quantised: Tensor) -> Tensor:
    """[outputs, depth] int8 or float8_e4m3fn, for `linear`."""
    return quantised.contiguous()


def unpack(packed: Tensor) -> Tensor:
    """The quantised weight that was packed."""
    return packed


def pack_groups(values: Tensor) -> Tensor:
    """Scales or zero points [outputs, groups], for `linear`: [groups, outputs]."""
    return values.T.contiguous()


def linear(
    x: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor | None, bias: Tensor | None
) -> Tensor:
    """[..., depth] to [..., outputs], in x's dtype; see `kernels/linear_int8.py`.

    Args:
        x: bfloat16, float16 or float32; any number of rows.
        packed: From `pack`.
        scales: From `pack_groups`, float32 or bfloat16.
        zeros: From `pack_groups`, int8; None: symmetric.
        bias: [outputs].

    Raises:
        InputError: Groups that are no multiple of 32.
    """
    depth = packed.shape[1]
    group = depth // scales.shape[0]
    if step_within(group, depth) == 0:
        raise InputError(f"int8 weights in groups of {group}: a GPU needs a multiple of 32")
    eight_bits = packed.view(torch.uint8) if packed.dtype == torch.float8_e4m3fn else packed
    kind: Format = "int8" if packed.dtype == torch.int8 else "fp8"
    return weight_only_linear(x, eight_bits, scales, zeros, bias, depth=depth, kind=kind)
