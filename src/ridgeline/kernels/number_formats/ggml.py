"""GGUF's Q8_0 and Q4_0: blocks of 32 numbers with a float16 scale, as bytes in a row.

    Q8_0   d = max|v| / 127           34 bytes: d, then 32 int8 q               v ≈ q d
    Q4_0   d = (v of max|v|) / −8     18 bytes: d, then q_i | q_(i+16) << 4  v ≈ (q − 8) d

As llama.cpp's reference does it (`ggml-quants.c`, `quantize_row_q8_0_ref` and `…_q4_0_ref`): levels
are found with the scale before it is rounded to float16.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 32


def encode_q8_0(x: Tensor) -> Tensor:
    """[rows, n] as bytes [rows, n / 32 · 34]."""
    blocks = x.float().unflatten(1, (-1, BLOCK))
    scale = blocks.abs().amax(-1, keepdim=True) / 127
    steps = blocks * _reciprocal(scale)
    levels = steps.sign() * (steps.abs() + 0.5).floor()
    return join_q8_0(levels.to(torch.int8).flatten(1), scale.squeeze(-1))


def encode_q4_0(x: Tensor) -> Tensor:
    """[rows, n] as bytes [rows, n / 32 · 18]."""
    blocks = x.float().unflatten(1, (-1, BLOCK))
    largest = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))
    scale = largest / -8
    steps = blocks.double() * _reciprocal(scale).double()
    levels = (steps + 8.5).trunc().clamp(0, 15) - 8
    return join_q4_0(levels.to(torch.int8).flatten(1), scale.squeeze(-1))


def join_q8_0(levels: Tensor, scales: Tensor) -> Tensor:
    """Levels [rows, n] int8 and scales [rows, n / 32] as bytes."""
    return _joined(levels.unflatten(1, (-1, BLOCK)).view(torch.uint8), scales)


def join_q4_0(levels: Tensor, scales: Tensor) -> Tensor:
    """Levels [rows, n] int8 in −8 … 7 and scales [rows, n / 32] as bytes."""
    unsigned = (levels.unflatten(1, (-1, 2, BLOCK // 2)) + 8).to(torch.uint8)
    return _joined(unsigned[..., 0, :] | unsigned[..., 1, :] << 4, scales)


def _joined(content: Tensor, scales: Tensor) -> Tensor:
    halves = scales.to(torch.float16)[..., None].view(torch.uint8)
    return torch.cat((halves, content), -1).flatten(1)


def _reciprocal(scale: Tensor) -> Tensor:
    return torch.where(scale == 0, 0, 1 / scale)
