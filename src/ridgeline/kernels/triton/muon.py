"""Products that are symmetric on a GPU: what `kernels/muon.py` calls."""

# ruff: noqa: N803  (Triton's compile-time constants are upper case, here as everywhere)

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ridgeline.kernels.triton.tiles import matmul

_TILE, _DEPTH = 128, 64


@triton.jit
def symmetric_kernel(
    out: tl.tensor,
    x: tl.tensor,
    size: tl.tensor,
    depth: tl.tensor,
    x_batch: tl.tensor,
    x_row: tl.tensor,
    x_column: tl.tensor,
    plus: tl.tensor,
    product: tl.tensor,
    ADDS: tl.constexpr,
    TILE: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    """One tile of product · X Xᵀ + plus · X on or below the diagonal, and its mirror image."""
    below = tl.program_id(0)
    beside = tl.program_id(1)
    batch = tl.program_id(2).to(tl.int64)
    if beside <= below:
        rows = (below * TILE + tl.arange(0, TILE)).to(tl.int64)
        columns = (beside * TILE + tl.arange(0, TILE)).to(tl.int64)
        inside = (rows < size)[:, None] & (columns < size)[None, :]
        source = x + batch * x_batch
        total = tl.zeros((TILE, TILE), tl.float32)
        for done in range(0, depth, DEPTH):
            steps = (done + tl.arange(0, DEPTH)).to(tl.int64)
            from_rows = source + rows[:, None] * x_row + steps[None, :] * x_column
            left = tl.load(
                from_rows, mask=(rows < size)[:, None] & (steps < depth)[None, :], other=0.0
            )
            from_columns = source + columns[None, :] * x_row + steps[:, None] * x_column
            right = tl.load(
                from_columns, mask=(steps < depth)[:, None] & (columns < size)[None, :], other=0.0
            )
            total += matmul(left, right)
        total = total * product
        if ADDS:
            own = source + rows[:, None] * x_row + columns[None, :] * x_column
            total += plus * tl.load(own, mask=inside, other=0.0).to(tl.float32)
        found = total.to(out.dtype.element_ty)
        target = out + batch * size * size
        tl.store(target + rows[:, None] * size + columns[None, :], found, mask=inside)
        if beside < below:
            mirrored = target + columns[:, None] * size + rows[None, :]
            across = (columns < size)[:, None] & (rows < size)[None, :]
            tl.store(mirrored, tl.trans(found), mask=across)


def symmetric_product(x: Tensor, plus: float, product: float) -> Tensor:
    """The symmetric matrices [B, m, m] of product · X Xᵀ + plus · X."""
    batch, size, depth = x.shape
    out = x.new_empty(batch, size, size)
    if out.numel():
        wide = x.itemsize > 2
        tile, step = (_TILE // 2, _DEPTH // 2) if wide else (_TILE, _DEPTH)
        tiles = triton.cdiv(size, tile)
        symmetric_kernel[(tiles, tiles, batch)](
            out,
            x,
            size,
            depth,
            *x.stride(),
            float(plus),
            float(product),
            ADDS=plus != 0,
            TILE=tile,
            DEPTH=step,
            num_warps=8,
            num_stages=2,
            enable_fp_fusion=True,
        )
    return out
