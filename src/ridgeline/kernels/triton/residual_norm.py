"""RMS and layer norm of a residual sum on a GPU: what `kernels/residual_norm.py` calls.

A program holds whole rows in registers, so each element is read once and written once. In the
backward a program takes every so-manieth tile of rows and sums the weight's gradient as it goes;
the few sums are added in a fixed order, so that gradients are the same at every run.
"""

# ruff: noqa: N803  (Triton's compile-time constants are upper case, here as everywhere)

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ridgeline.kernels.triton import dense, num_processors, rows_of

_ELEMENTS_OF_A_TILE = 2048
"""Rows shorter than this share a program."""
_ELEMENTS_OF_A_BACKWARD = 8192
_LONGEST_SHARED_ROW = 2048
"""A centred backward sums two gradients, so longer rows have a program each."""
_PROGRAMS_PER_PROCESSOR = 2
_MOST_WARPS = 16
"""With waves of 64 threads, as on AMD, 16 are the most that a program may have."""


@triton.jit
def forward_kernel(
    y: tl.tensor,
    sums: tl.tensor,
    means: tl.tensor,
    rstds: tl.tensor,
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    num_rows: tl.tensor,
    x_stride: tl.tensor,
    residual_stride: tl.tensor,
    eps: tl.tensor,
    offset: tl.tensor,
    D: tl.constexpr,
    CENTRED: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Normalise BLOCK_ROWS rows; `sums`, `means` are None where there are none to write."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    columns = tl.arange(0, BLOCK)
    inside = (rows < num_rows)[:, None] & (columns < D)[None, :]
    place = rows[:, None] * D + columns[None, :]
    h = tl.load(x + rows[:, None] * x_stride + columns[None, :], mask=inside, other=0.0)
    h = h.to(tl.float32)
    if residual is not None:
        added = residual + rows[:, None] * residual_stride + columns[None, :]
        h += tl.load(added, mask=inside, other=0.0).to(tl.float32)
        rounded = h.to(sums.dtype.element_ty)
        tl.store(sums + place, rounded, mask=inside)
        h = rounded.to(tl.float32)
    if CENTRED:
        mean = tl.sum(h, 1) / D
        tl.store(means + rows, mean, mask=rows < num_rows)
        h = tl.where(inside, h - mean[:, None], 0.0)
    rstd = tl.rsqrt(tl.sum(h * h, 1) / D + eps)
    tl.store(rstds + rows, rstd, mask=rows < num_rows)
    h = h * rstd[:, None]
    if weight is not None:
        gain = tl.load(weight + columns, mask=columns < D, other=0.0).to(tl.float32) + offset
        h = h * gain[None, :]
    if bias is not None:
        shift = tl.load(bias + columns, mask=columns < D, other=0.0).to(tl.float32)
        h = h + shift[None, :]
    tl.store(y + place, h.to(y.dtype.element_ty), mask=inside)


@triton.jit
def backward_kernel(
    dx: tl.tensor,
    dweights: tl.tensor,
    dbiases: tl.tensor,
    dy: tl.tensor,
    dh: tl.tensor,
    h: tl.tensor,
    weight: tl.tensor,
    means: tl.tensor,
    rstds: tl.tensor,
    num_rows: tl.tensor,
    dy_stride: tl.tensor,
    dh_stride: tl.tensor,
    h_stride: tl.tensor,
    offset: tl.tensor,
    num_programs: tl.tensor,
    D: tl.constexpr,
    CENTRED: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Gradients of every `num_programs`th tile of rows, and their share of the weight's."""
    program = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    own = program.to(tl.int64) * D + columns
    dweight = tl.zeros((BLOCK,), tl.float32)
    dbias = tl.zeros((BLOCK,), tl.float32)
    for tile in range(program, tl.cdiv(num_rows, BLOCK_ROWS), num_programs):
        rows = (tile * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)).to(tl.int64)
        inside = (rows < num_rows)[:, None] & (columns < D)[None, :]
        rstd = tl.load(rstds + rows, mask=rows < num_rows, other=0.0)
        from_h = h + rows[:, None] * h_stride + columns[None, :]
        normal = tl.load(from_h, mask=inside, other=0.0).to(tl.float32)
        if CENTRED:
            mean = tl.load(means + rows, mask=rows < num_rows, other=0.0)
            normal = tl.where(inside, normal - mean[:, None], 0.0)
        normal = normal * rstd[:, None]
        from_dy = dy + rows[:, None] * dy_stride + columns[None, :]
        gradient = tl.load(from_dy, mask=inside, other=0.0).to(tl.float32)
        if dweights is not None:
            dweight += tl.sum(gradient * normal, 0)
        if dbiases is not None:
            dbias += tl.sum(gradient, 0)
        if weight is not None:
            gain = tl.load(weight + columns, mask=columns < D, other=0.0).to(tl.float32)
            gradient = gradient * (gain + offset)[None, :]
        along = tl.sum(gradient * normal, 1) / D
        result = gradient - normal * along[:, None]
        if CENTRED:
            result -= (tl.sum(gradient, 1) / D)[:, None]
        result = result * rstd[:, None]
        if dh is not None:
            from_dh = dh + rows[:, None] * dh_stride + columns[None, :]
            result += tl.load(from_dh, mask=inside, other=0.0).to(tl.float32)
        place = rows[:, None] * D + columns[None, :]
        tl.store(dx + place, result.to(dx.dtype.element_ty), mask=inside)
    if dweights is not None:
        tl.store(dweights + own, dweight, mask=columns < D)
    if dbiases is not None:
        tl.store(dbiases + own, dbias, mask=columns < D)


def forward(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    offset: float,
    *,
    centred: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The results y, h (empty without residual), mean (empty unless centred) and 1 / σ."""
    size = x.shape[-1]
    rows = rows_of(x) if size else x.reshape(0, 0)
    added = None if residual is None or not size else rows_of(residual)
    y = x.new_empty(x.shape)
    h = x.new_empty(0 if residual is None else x.shape)
    rstd = x.new_empty(rows.shape[0], dtype=torch.float32)
    mean = x.new_empty(rows.shape[0] if centred else 0, dtype=torch.float32)
    if y.numel():
        block, block_rows, warps = _tile(size, rows.shape[0])
        forward_kernel[(triton.cdiv(rows.shape[0], block_rows),)](
            y,
            None if added is None else h,
            mean if centred else None,
            rstd,
            rows,
            added,
            dense(weight),
            dense(bias),
            rows.shape[0],
            rows.stride(0),
            0 if added is None else added.stride(0),
            eps,
            offset,
            D=size,
            CENTRED=centred,
            BLOCK_ROWS=block_rows,
            BLOCK=block,
            num_warps=warps,
            enable_fp_fusion=True,
        )
    return y, h, mean, rstd


def backward(
    dy: Tensor,
    dh: Tensor | None,
    h: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    offset: float,
    *,
    centred: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x (and of the residual), of the weight and of the bias."""
    size = h.shape[-1]
    like = h if weight is None else weight
    dx = h.new_empty(h.shape)
    if not dx.numel():
        return dx, like.new_zeros(size), like.new_zeros(size)
    rows, upper = rows_of(h), rows_of(dy)
    added = None if dh is None else rows_of(dh)
    wanted = num_processors(h.device) * _PROGRAMS_PER_PROCESSOR
    block, block_rows, warps = _backward_tile(size, rows.shape[0], wanted, centred=centred)
    programs = min(triton.cdiv(rows.shape[0], block_rows), wanted)
    dweights = h.new_empty((programs, size), dtype=torch.float32)
    dbiases = h.new_empty((programs, size), dtype=torch.float32) if centred else None
    backward_kernel[(programs,)](
        dx,
        dweights,
        dbiases,
        upper,
        added,
        rows,
        dense(weight),
        mean if centred else None,
        rstd,
        rows.shape[0],
        upper.stride(0),
        0 if added is None else added.stride(0),
        rows.stride(0),
        offset,
        programs,
        D=size,
        CENTRED=centred,
        BLOCK_ROWS=block_rows,
        BLOCK=block,
        num_warps=warps,
        enable_fp_fusion=True,
    )
    dweight = dweights.sum(0).to(like.dtype)
    dbias = like.new_zeros(size) if dbiases is None else dbiases.sum(0).to(like.dtype)
    return dx, dweight, dbias


def _tile(size: int, num_rows: int) -> tuple[int, int, int]:
    """Columns, rows and warps of a program."""
    block = triton.next_power_of_2(size)
    block_rows = min(max(1, _ELEMENTS_OF_A_TILE // block), triton.next_power_of_2(num_rows))
    return block, block_rows, min(max(block * block_rows // 512, 1), _MOST_WARPS)


def _backward_tile(
    size: int, num_rows: int, programs: int, *, centred: bool
) -> tuple[int, int, int]:
    """The tile of the backward: more rows, since their sums stay in registers.

    The fastest of those timed on an H200 for rows of 1,024, 4,096 and 8,192 (docs/results/gpu.md).
    """
    block = triton.next_power_of_2(size)
    alone = centred and block > _LONGEST_SHARED_ROW
    block_rows = 1 if alone else max(1, _ELEMENTS_OF_A_BACKWARD // block)
    # Where rows are few, every program has some.
    block_rows = min(block_rows, triton.next_power_of_2(max(1, num_rows // programs)))
    fewest = min(max(block * block_rows // 512, 1), 4)
    return block, block_rows, min(max(block // 512, fewest), _MOST_WARPS)
