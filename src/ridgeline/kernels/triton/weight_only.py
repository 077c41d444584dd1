"""Launching the kernels of `weight_kernels.py`: which one, and how the work is cut."""

from __future__ import annotations

from typing import Literal

import torch
import triton
from torch import Tensor

from ridgeline.kernels.triton import dense, num_processors
from ridgeline.kernels.triton.weight_kernels import tile_kernel, vector_kernel

Format = Literal["int8", "fp8", "int4"]
_VECTORS: dict[Format, tuple[int, int, int]] = {
    "int4": (4, 128, 2),
    "int8": (4, 32, 1),
    "fp8": (4, 32, 1),
}
"""Outputs, chunks and warps of a program: the fastest of fifty on an H200, for fp8 as for int8."""
_LARGEST_STEP = 128
"""Weights along the depth that one step multiplies."""
_LEAST_STEPS = 4
"""The least steps of a split: with fewer, adding the parts costs more than the waiting saved."""
_MOST_SPLITS = 16


def weight_only_linear(
    x: Tensor,
    packed: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    bias: Tensor | None,
    *,
    depth: int,
    kind: Format,
) -> Tensor:
    """[..., depth] to [..., outputs] in x's dtype.

    Args:
        x: bfloat16, float16 or float32.
        packed: [outputs, bytes of a row].
        scales: [groups, outputs], float32 or bfloat16.
        zeros: Zero points laid out as the scales, int8.
        bias: [outputs].
        depth: The number of inputs of the weight.
        kind: How the bytes are to be read.
    """
    outputs = packed.shape[0]
    rows = x.reshape(-1, depth)
    if rows.stride(1) != 1:
        rows = rows.contiguous()
    packed, scales = packed.contiguous(), scales.contiguous()
    zeros, bias = dense(zeros), dense(bias)
    num_rows = rows.shape[0]
    group = depth // scales.shape[0]
    if num_rows == 0:
        return x.new_empty((*x.shape[:-1], outputs))
    if num_rows == 1:
        out = torch.empty((1, outputs), dtype=x.dtype, device=x.device)
        block_outputs, block_chunks, warps = _VECTORS[kind]
        vector_kernel[(triton.cdiv(outputs, block_outputs),)](
            out,
            rows,
            packed,
            scales,
            zeros,
            bias,
            outputs,
            DEPTH=depth,
            GROUP=group,
            FORMAT=kind,
            BLOCK_OUTPUTS=block_outputs,
            BLOCK_CHUNKS=block_chunks,
            num_warps=warps,
            enable_fp_fusion=True,
        )
    else:
        out = _tiles(rows, packed, scales, zeros, bias, group, kind)
    return out.view(*x.shape[:-1], outputs)


def _tiles(
    rows: Tensor,
    packed: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    bias: Tensor | None,
    group: int,
    kind: Format,
) -> Tensor:
    (num_rows, depth), outputs = rows.shape, packed.shape[0]
    block_rows = min(max(triton.next_power_of_2(num_rows), 16), 64)
    wide = rows.dtype == torch.float32
    block_outputs = 64 if wide or block_rows < 64 else 128
    block_depth = min(step_within(group, depth), _LARGEST_STEP // 2 if wide else _LARGEST_STEP)
    tiles = triton.cdiv(num_rows, block_rows), triton.cdiv(outputs, block_outputs)
    wanted = num_processors(rows.device) // (tiles[0] * tiles[1])
    steps = triton.cdiv(depth, block_depth)
    splits = max(1, min(wanted, steps // _LEAST_STEPS, _MOST_SPLITS))
    parts = torch.empty(
        (splits, num_rows, outputs),
        dtype=rows.dtype if splits == 1 else torch.float32,
        device=rows.device,
    )
    tile_kernel[(*tiles, splits)](
        parts,
        rows,
        packed,
        scales,
        zeros,
        bias if splits == 1 else None,
        num_rows,
        splits,
        outputs,
        rows.stride(0),
        DEPTH=depth,
        GROUP=group,
        FORMAT=kind,
        BLOCK_ROWS=block_rows,
        BLOCK_OUTPUTS=block_outputs,
        BLOCK_DEPTH=block_depth,
        num_warps=4 if block_rows < 64 else 8,
        enable_fp_fusion=True,
        num_stages=3,
    )
    if splits == 1:
        return parts[0]
    out = parts.sum(0)
    return (out if bias is None else out + bias).to(rows.dtype)


def step_within(group: int, depth: int) -> int:
    """The largest step of 32, 64 or 128 that lies within one group, or 0 if none does."""
    if group == depth and depth % 32:
        return _LARGEST_STEP  # one group, whose last step is masked
    step = _LARGEST_STEP
    while step > 16 and group % step:
        step //= 2
    return step if step > 16 else 0
