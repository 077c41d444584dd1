"""Products of linear layers in bytes while calibration flows through a bfloat16 block.

A processor that multiplies four bytes at once does so twice as fast as bfloat16. Inputs are rounded
to 255 steps per token, weights per output (`kernels/linear_w8a8.py`), and outputs lose some 0.01 %
of their energy where numbers are normal: 4-bit weights lose fifty times as much. What comes out
is looked at by the layers behind and is saved nowhere. A layer's outliers can make its steps
too coarse; such a chunk, or such a weight, is multiplied in bfloat16.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function
from torch.utils.weak import WeakTensorKeyDictionary

from ridgeline.kernels import linear_int8, linear_w8a8
from ridgeline.kernels.cpu.build import have
from ridgeline.kernels.cpu.compiler import settings

MOST_NOISE = 2.5e-3
"""Rounding's noise over the energy of a row's usual numbers, of inputs and of weights each."""
_FEWEST_ROWS = 64
"""Tokens for which a weight is worth being packed."""
_LOOKED_AT = 16
"""One of so many tokens is looked at: each sequence's first, where outliers gather, among them."""


def are_faster() -> bool:
    """Whether there is a kernel, compiled for a CPU that multiplies four bytes at once."""
    until_then = "until then products of calibration take twice as long"
    return settings().multiplies_bytes and have("linear_w8a8", until_then)


@dataclass(frozen=True, slots=True)
class _Packed:
    """A weight as it was at one time."""

    version: int
    """The number of times that it had been changed in place."""
    operands: tuple[Tensor, Tensor, Tensor] | None
    """What the kernel takes; None: its rows are too uneven."""


class ByteProducts:
    """Linear layers of the parameters that are met, each packed once until it changes.

    Lanes may call it side by side.
    """

    def __init__(self) -> None:
        self._packed: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self._lock = threading.Lock()

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
        """The layer's outputs in bfloat16, or None where they are better computed otherwise."""
        if not _is_plain(x, weight):
            return None
        operands = self._operands(weight)
        if operands is None or not _noise(x.reshape(-1, x.shape[-1])[::_LOOKED_AT]) <= MOST_NOISE:
            return None
        wide = None if bias is None else bias.float()
        return linear_w8a8.linear(x.to(torch.bfloat16), *operands, wide, len(weight))

    def _operands(self, weight: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        with self._lock:
            found: _Packed | None = self._packed.get(weight)
            if found is None or found.version != weight._version:
                found = _Packed(weight._version, _packed(weight.detach()))
                self._packed[weight] = found
            return found.operands


def linear_in_bytes(
    x: Tensor, weight: Tensor, bias: Tensor | None, products: ByteProducts
) -> Tensor:
    """A linear layer in bytes where that may be, which modes see as they see PyTorch's."""
    if has_torch_function((x, weight)):
        given = (x, weight, bias, products)
        result: Tensor = handle_torch_function(linear_in_bytes, (x, weight), *given)
        return result
    found = products.linear(x, weight, bias)
    return functional.linear(x, weight, bias) if found is None else found


def _is_plain(x: Tensor, weight: Tensor) -> bool:
    """Whether this is a matrix that the block holds; slices of one are made anew for each call."""
    return (
        isinstance(weight, nn.Parameter)
        and weight.ndim == 2
        and weight.dtype == torch.bfloat16
        and x.dtype in {torch.bfloat16, torch.float32}
        and x.shape[-1] > 0
        and x.numel() >= _FEWEST_ROWS * x.shape[-1]
        and not torch.is_grad_enabled()
    )


def _packed(weight: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    if not _noise(weight) <= MOST_NOISE:
        return None
    return linear_w8a8.pack(*linear_int8.quantise(weight))


def _noise(rows: Tensor) -> float:
    """What 255 even steps between its largest magnitudes add to a row, over its usual numbers.

    Rounding to steps of s adds s² / 12 to each number's square, in the mean. Usual is the mean
    magnitude: of the mean square an outlier makes most, beside which the others seem well kept.
    """
    sizes = rows.float().abs()
    steps = sizes.amax(1).div_(127.0)
    usual = sizes.mean(1).clamp_min_(torch.finfo(torch.float32).tiny ** 0.5)
    return float((steps / usual).square_().mean().div_(12.0))
