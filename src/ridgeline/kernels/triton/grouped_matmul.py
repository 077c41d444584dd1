"""Matmuls of experts on a GPU: what `kernels/grouped_matmul.py` calls.

The grid has as many tiles of rows as the groups can need together, T / rows of a tile + E; each
program finds on the device which group its tile is of, and those that are of none stop at once.
Of `grouped_tiles.csv` the first tile is taken that the device has room for; that of compute
capability 9 is the fastest of 42 timed on an H200 (`docs/results/gpu.md`).
"""

# ruff: noqa: N803  (Triton's compile-time constants are upper case, here as everywhere)

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ridgeline.errors import InputError
from ridgeline.kernels.triton import dense, shared_bytes
from ridgeline.kernels.triton.tile_table import first_tile_that_fits
from ridgeline.kernels.triton.tiles import matmul

TABLE = Path(__file__).with_name("grouped_tiles.csv")


class ProductTile(NamedTuple):
    """How a kernel cuts its work: a tile of its result, and how much it sums at once."""

    rows: int
    columns: int
    step: int
    warps: int
    stages: int


@triton.jit
def _within(places: tl.tensor, num_rows: tl.tensor) -> tl.tensor:
    """Ends of groups, none of them outside of the rows whatever was given."""
    return tl.minimum(tl.maximum(places, 0), num_rows)


@triton.jit
def product_kernel(
    y: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    ends: tl.tensor,
    num_groups: tl.tensor,
    num_rows: tl.tensor,
    depth: tl.tensor,
    outputs: tl.tensor,
    x_row: tl.tensor,
    x_column: tl.tensor,
    weight_group: tl.tensor,
    weight_row: tl.tensor,
    weight_column: tl.tensor,
    GROUPS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    """One tile of [ROWS, OUTPUTS] of one group; GROUPS is the next power of two."""
    tile = tl.program_id(0)
    groups = tl.arange(0, GROUPS)
    known = groups < num_groups
    last = _within(tl.load(ends + groups, mask=known, other=0), num_rows)
    first = _within(tl.load(ends + groups - 1, mask=known & (groups > 0), other=0), num_rows)
    tiles = tl.where(known, (last - first + ROWS - 1) // ROWS, 0)
    tile_ends = tl.cumsum(tiles, 0)
    group = tl.sum((known & (tile_ends <= tile)).to(tl.int32), 0)
    if group < num_groups:
        own = groups == group
        start = tl.sum(tl.where(own, first, 0), 0)
        end = tl.sum(tl.where(own, last, 0), 0)
        before = tl.sum(tl.where(own, tile_ends - tiles, 0), 0)
        rows = (start + (tile - before) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        columns = (tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)).to(tl.int64)
        steps = tl.arange(0, DEPTH).to(tl.int64)
        from_x = x + rows[:, None] * x_row + steps[None, :] * x_column
        from_weight = weight + group.to(tl.int64) * weight_group
        from_weight += steps[:, None] * weight_row + columns[None, :] * weight_column
        total = tl.zeros((ROWS, OUTPUTS), tl.float32)
        for done in range(0, depth, DEPTH):
            inside = steps < depth - done
            left = tl.load(from_x, mask=(rows < end)[:, None] & inside[None, :], other=0.0)
            right = tl.load(
                from_weight, mask=inside[:, None] & (columns < outputs)[None, :], other=0.0
            )
            total += matmul(left, right)
            from_x += DEPTH * x_column
            from_weight += DEPTH * weight_row
        place = y + rows[:, None] * outputs + columns[None, :]
        inside = (rows < end)[:, None] & (columns < outputs)[None, :]
        tl.store(place, total.to(y.dtype.element_ty), mask=inside)


@triton.jit
def weight_kernel(
    dweight: tl.tensor,
    x: tl.tensor,
    dy: tl.tensor,
    ends: tl.tensor,
    num_rows: tl.tensor,
    depth: tl.tensor,
    outputs: tl.tensor,
    x_row: tl.tensor,
    x_column: tl.tensor,
    dy_row: tl.tensor,
    dy_column: tl.tensor,
    DEPTH: tl.constexpr,
    OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    """One tile of [DEPTH, OUTPUTS] of one group's gradient, summed over the group's rows."""
    group = tl.program_id(2)
    start = _within(tl.load(ends + group - 1, mask=group > 0, other=0), num_rows)
    end = _within(tl.load(ends + group), num_rows)
    inputs = (tl.program_id(0) * DEPTH + tl.arange(0, DEPTH)).to(tl.int64)
    columns = (tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)).to(tl.int64)
    total = tl.zeros((DEPTH, OUTPUTS), tl.float32)
    for done in range(start, end, ROWS):
        rows = (done + tl.arange(0, ROWS)).to(tl.int64)
        from_x = x + rows[None, :] * x_row + inputs[:, None] * x_column
        left = tl.load(from_x, mask=(inputs < depth)[:, None] & (rows < end)[None, :], other=0.0)
        from_dy = dy + rows[:, None] * dy_row + columns[None, :] * dy_column
        right = tl.load(
            from_dy, mask=(rows < end)[:, None] & (columns < outputs)[None, :], other=0.0
        )
        total += matmul(left, right)
    place = dweight + group.to(tl.int64) * depth * outputs
    place += inputs[:, None] * outputs + columns[None, :]
    inside = (inputs < depth)[:, None] & (columns < outputs)[None, :]
    tl.store(place, total.to(dweight.dtype.element_ty), mask=inside)


def multiply(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """The products, [T, N]; rows of no group are zeros."""
    (num_rows, depth), (num_groups, _, outputs) = x.shape, weight.shape
    y = x.new_zeros(num_rows, outputs)
    if y.numel() and num_groups:
        tile = _tile("product", x.itemsize, x.device)
        grid = triton.cdiv(num_rows, tile.rows) + num_groups, triton.cdiv(outputs, tile.columns)
        product_kernel[grid](
            y,
            x,
            weight,
            dense(ends),
            num_groups,
            num_rows,
            depth,
            outputs,
            *x.stride(),
            *weight.stride(),
            GROUPS=triton.next_power_of_2(num_groups),
            ROWS=tile.rows,
            OUTPUTS=tile.columns,
            DEPTH=tile.step,
            num_warps=tile.warps,
            num_stages=tile.stages,
            enable_fp_fusion=True,
        )
    return y


def gradient_of_weight(x: Tensor, dy: Tensor, ends: Tensor) -> Tensor:
    """The gradient of every group's matrix, [E, K, N]."""
    depth, outputs = x.shape[1], dy.shape[1]
    dweight = x.new_empty(len(ends), depth, outputs)
    if dweight.numel():
        tile = _tile("weight", x.itemsize, x.device)
        grid = triton.cdiv(depth, tile.rows), triton.cdiv(outputs, tile.columns), len(ends)
        weight_kernel[grid](
            dweight,
            x,
            dy,
            dense(ends),
            x.shape[0],
            depth,
            outputs,
            *x.stride(),
            *dy.stride(),
            DEPTH=tile.rows,
            OUTPUTS=tile.columns,
            ROWS=tile.step,
            num_warps=tile.warps,
            num_stages=tile.stages,
            enable_fp_fusion=True,
        )
    return dweight


def _tile(kernel: str, element_bytes: int, device: torch.device) -> ProductTile:
    """The first of the table that the device has room for."""
    numbers = first_tile_that_fits(TABLE, kernel, element_bytes, device)
    if numbers is None:
        room = shared_bytes(device)
        raise InputError(f"no tile of {kernel} for {element_bytes}-byte numbers fits {room} bytes")
    return ProductTile(**numbers)
