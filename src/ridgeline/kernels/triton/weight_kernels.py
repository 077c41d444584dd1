"""The kernels of linear layers whose weights stay small: int8, float8 e4m3 or int4 in memory.

    out[m, o] = Σ_g s[g, o] · Σ_{k in g} x[m, k] (q[o, k] − z[g, o]) + b[o]

One row of x: `vector_kernel`, on ordinary arithmetic, since such a matmul is all reading. More
rows: `tile_kernel`, on tensor cores, over tiles widened in registers; where there are too few tiles
to fill the device, the depth is split and PyTorch adds the parts.

A byte becomes a float without a conversion: put into the mantissa of 2²³ it is 2²³ + byte, and one
exact subtraction leaves byte − offset (the zero point costs nothing).
"""

# ruff: noqa: N803, N806  (Triton's compile-time constants are upper case, here as everywhere)

from __future__ import annotations

import triton
import triton.language as tl

from ridgeline.kernels.triton.tiles import decoded, matmul

_MAGIC = tl.constexpr(0x4B000000)  # the bits of 2²³
_OF_MAGIC = tl.constexpr(8388608.0)


@triton.jit
def vector_kernel(
    out: tl.tensor,
    x: tl.tensor,
    weights: tl.tensor,
    scales: tl.tensor,
    zeros: tl.tensor,
    bias: tl.tensor,
    outputs: tl.tensor,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
    FORMAT: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_CHUNKS: tl.constexpr,
) -> None:
    """Multiply one row with a block of outputs, the axis of the grid.

    A chunk is the 16 bytes that one thread reads at once. The 32 weights of an int4 chunk lie as
    [parity][byte]: low nibbles are the first 16 of them.
    """
    WIDTH: tl.constexpr = 32 if FORMAT == "int4" else 16
    NUM_CHUNKS: tl.constexpr = (DEPTH + WIDTH - 1) // WIDTH
    ROW_BYTES: tl.constexpr = DEPTH // 2 if FORMAT == "int4" else DEPTH
    output = tl.program_id(0) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    in_outputs = output < outputs
    byte = tl.arange(0, 16)
    sums = tl.zeros((BLOCK_OUTPUTS, BLOCK_CHUNKS), tl.float32)
    for at in tl.range(0, NUM_CHUNKS, BLOCK_CHUNKS, num_stages=3):
        chunk = at + tl.arange(0, BLOCK_CHUNKS)
        place = chunk[:, None] * 16 + byte[None, :]
        in_row = place < ROW_BYTES
        stored = tl.load(
            weights + output.to(tl.int64)[:, None, None] * ROW_BYTES + place[None, :, :],
            mask=in_outputs[:, None, None] & in_row[None, :, :],
            other=0,
        )
        cell = chunk[None, :] * WIDTH // GROUP * outputs + output[:, None]
        in_cells = in_outputs[:, None] & (chunk < NUM_CHUNKS)[None, :]
        offset = tl.zeros((BLOCK_OUTPUTS, BLOCK_CHUNKS), tl.float32)
        if zeros is not None:
            offset += tl.load(zeros + cell, mask=in_cells, other=0).to(tl.float32)
        if FORMAT == "int4":
            depth = chunk[:, None] * 32 + byte[None, :]
            low = tl.load(x + depth, mask=in_row, other=0.0).to(tl.float32)
            high = tl.load(x + depth + 16, mask=in_row, other=0.0).to(tl.float32)
            products = low[None, :, :] * _low_nibbles(stored, offset[:, :, None])
            products += (high * 0.0625)[None, :, :] * _high_nibbles(stored, offset[:, :, None])
        else:
            row = tl.load(x + place, mask=in_row, other=0.0).to(tl.float32)
            products = row[None, :, :] * _bytes(stored, offset[:, :, None])
        scale = tl.load(scales + cell, mask=in_cells, other=0.0).to(tl.float32)
        sums += tl.sum(products, 2) * scale
    result = tl.sum(sums, 1)
    if bias is not None:
        result += tl.load(bias + output, mask=in_outputs, other=0.0).to(tl.float32)
    tl.store(out + output, result.to(out.dtype.element_ty), mask=in_outputs)


# The number of rows changes from step to step: compiled once for all, not anew for 16.
@triton.jit(do_not_specialize=["num_rows", "num_splits"])
def tile_kernel(
    out: tl.tensor,
    x: tl.tensor,
    weights: tl.tensor,
    scales: tl.tensor,
    zeros: tl.tensor,
    bias: tl.tensor,
    num_rows: tl.tensor,
    num_splits: tl.tensor,
    outputs: tl.tensor,
    row_stride: tl.tensor,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
    FORMAT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_DEPTH: tl.constexpr,
) -> None:
    """Multiply a tile of rows with a tile of outputs in one split of the depth: the grid's axes.

    `out` is [rows, outputs], or [splits, rows, outputs] float32 to be added up. A step of
    BLOCK_DEPTH lies within one group.
    """
    STEPS: tl.constexpr = (DEPTH + BLOCK_DEPTH - 1) // BLOCK_DEPTH
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    output = tl.program_id(1) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    split = tl.program_id(2)
    in_rows = row < num_rows
    in_outputs = output < outputs
    x_rows = x + row.to(tl.int64)[:, None] * row_stride
    sums = tl.zeros((BLOCK_ROWS, BLOCK_OUTPUTS), tl.float32)
    share = tl.cdiv(STEPS, num_splits)
    for step in range(split * share, tl.minimum(split * share + share, STEPS)):
        cell = step * BLOCK_DEPTH // GROUP * outputs + output
        offset = tl.zeros((BLOCK_OUTPUTS,), tl.float32)
        if zeros is not None:
            offset += tl.load(zeros + cell, mask=in_outputs, other=0).to(tl.float32)
        if FORMAT == "int4":
            byte = tl.arange(0, BLOCK_DEPTH // 2)
            depth = step * BLOCK_DEPTH + byte // 16 * 32 + byte % 16
            stored = tl.load(
                weights
                + output.to(tl.int64)[None, :] * (DEPTH // 2)
                + (step * (BLOCK_DEPTH // 2) + byte)[:, None],
                mask=in_outputs[None, :],
                other=0,
            )
            low = tl.load(x_rows + depth[None, :], mask=in_rows[:, None], other=0.0)
            high = tl.load(x_rows + depth[None, :] + 16, mask=in_rows[:, None], other=0.0)
            part = matmul(low, _low_nibbles(stored, offset[None, :]).to(low.dtype))
            sixteenth = (_high_nibbles(stored, offset[None, :]) * 0.0625).to(low.dtype)
            part += matmul(high, sixteenth)
        else:
            depth = step * BLOCK_DEPTH + tl.arange(0, BLOCK_DEPTH)
            inside = depth < DEPTH
            stored = tl.load(
                weights + output.to(tl.int64)[None, :] * DEPTH + depth[:, None],
                mask=in_outputs[None, :] & inside[:, None],
                other=0,
            )
            tile = tl.load(
                x_rows + depth[None, :], mask=in_rows[:, None] & inside[None, :], other=0.0
            )
            part = matmul(tile, _bytes(stored, offset[None, :]).to(tile.dtype))
        scale = tl.load(scales + cell, mask=in_outputs, other=0.0).to(tl.float32)
        sums += part * scale[None, :]
    if bias is not None:
        sums += tl.load(bias + output, mask=in_outputs, other=0.0).to(tl.float32)[None, :]
    line = split.to(tl.int64) * num_rows + row
    tl.store(
        out + line[:, None] * outputs + output[None, :],
        sums.to(out.dtype.element_ty),
        mask=in_rows[:, None] & in_outputs[None, :],
    )


@triton.jit
def _low_nibbles(stored: tl.tensor, offset: tl.tensor) -> tl.tensor:
    """Q − z of bytes whose low nibbles are q + 8."""
    bits = (stored.to(tl.int32) & 15) | _MAGIC
    return bits.to(tl.float32, bitcast=True) - (_OF_MAGIC + 8.0 + offset)


@triton.jit
def _high_nibbles(stored: tl.tensor, offset: tl.tensor) -> tl.tensor:
    """16 (q − z) of bytes whose high nibbles are q + 8."""
    bits = (stored.to(tl.int32) & 240) | _MAGIC
    return bits.to(tl.float32, bitcast=True) - (_OF_MAGIC + 128.0 + 16.0 * offset)


@triton.jit
def _bytes(stored: tl.tensor, offset: tl.tensor) -> tl.tensor:
    """Q − z of int8 q, or the value of e4m3 bits (which have no zero point)."""
    if stored.dtype == tl.int8:
        bits = ((stored.to(tl.int32) & 255) ^ 128) | _MAGIC
        value = bits.to(tl.float32, bitcast=True) - (_OF_MAGIC + 128.0 + offset)
    else:
        value = decoded(stored).to(tl.float32)
    return value
