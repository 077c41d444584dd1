"""The forward of FlashAttention for Hopper: one warp loads by TMA, two warpgroups multiply.

The algorithm is that of `kernels/triton/flash_forward.py`: a tile of queries, tiles of its keys one
after another, a running softmax in base 2. What differs is who does what (Shah et al., 2407.08608,
section 3.1): a producer fills a ring of tiles in shared memory and waits at a barrier until each
was read; consumers wait until it was filled and multiply from there (`wgmma`).

It covers causal and full attention with shared key heads; other masks stay with Triton.
"""

# ruff: noqa: N803, N806  (Triton's compile-time constants are upper case, here as everywhere)

from __future__ import annotations

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from ridgeline.errors import InputError

load_tile = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
"""Copies a tile by TMA; Triton 3.6 knows it by its older name alone, 3.9 by the newer."""
LOG2_E = gl.constexpr(1.4426950408889634)
LN_2 = gl.constexpr(0.6931471805599453)
_ROWS = 128
_STAGES = 2
_WARPS = 8
KEYS = {64: 128, 128: 128}
"""The size of a head → keys of a tile: two of each kind fill less than 227 KiB."""


@gluon.jit
def forward_kernel(
    queries: gl.tensor,
    keys: gl.tensor,
    values: gl.tensor,
    out: gl.tensor,
    log_sums: gl.tensor,
    scale: gl.tensor,
    num_queries: gl.tensor,
    num_keys: gl.tensor,
    GROUP: gl.constexpr,
    CAUSAL: gl.constexpr,
    STAGES: gl.constexpr,
) -> None:
    """Attend one tile of queries; the grid is tiles (last ones first), heads of all the batch."""
    ROWS: gl.constexpr = queries.block_type.shape[1]
    COLUMNS: gl.constexpr = keys.block_type.shape[1]
    D: gl.constexpr = queries.block_type.shape[2]
    dtype: gl.constexpr = queries.dtype
    tile = gl.num_programs(0) - 1 - gl.program_id(0)
    row = gl.program_id(1)
    start = tile * ROWS
    end = gl.cdiv(num_keys, COLUMNS)
    if CAUSAL:
        last = start + ROWS + (num_keys - num_queries)
        end = gl.minimum(end, gl.maximum(gl.cdiv(last, COLUMNS), 0))

    q_tile = gl.allocate_shared_memory(dtype, [1, ROWS, D], queries.layout)
    k_tiles = gl.allocate_shared_memory(dtype, [STAGES, 1, COLUMNS, D], keys.layout)
    v_tiles = gl.allocate_shared_memory(dtype, [STAGES, 1, COLUMNS, D], values.layout)
    # Barriers and sizes are written as every release of Triton from 3.6 on has them.
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    q_full = gl.allocate_shared_memory(gl.int64, [1], barrier)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    read = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    mbarrier.init(q_full, count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), count=1)
        mbarrier.init(v_full.index(stage), count=1)
        mbarrier.init(read.index(stage), count=1)

    gl.warp_specialize(
        [
            (
                _attend,
                (
                    q_tile, k_tiles, v_tiles, q_full, k_full, v_full, read, out, log_sums, scale,
                    num_queries, num_keys, start, row, end, ROWS, COLUMNS, D, CAUSAL, STAGES,
                ),
            ),
            (
                _load,
                (
                    queries, keys, values, q_tile, k_tiles, v_tiles, q_full, k_full, v_full, read,
                    start, row, end, GROUP, COLUMNS, STAGES,
                ),
            ),
        ],
        [1],
        [24],
    )  # fmt: skip


@gluon.jit
def _load(
    queries: gl.tensor,
    keys: gl.tensor,
    values: gl.tensor,
    q_tile: gl.tensor,
    k_tiles: gl.tensor,
    v_tiles: gl.tensor,
    q_full: gl.tensor,
    k_full: gl.tensor,
    v_full: gl.tensor,
    read: gl.tensor,
    start: gl.tensor,
    row: gl.tensor,
    end: gl.tensor,
    GROUP: gl.constexpr,
    COLUMNS: gl.constexpr,
    STAGES: gl.constexpr,
) -> None:
    """Fill the tile of queries once, then the ring of keys and values as it is read."""
    mbarrier.expect(q_full, queries.block_type.nbytes)
    load_tile(queries, [row, start, 0], q_full, q_tile)
    for step in range(end):
        stage = step % STAGES
        # A barrier that nobody has passed lets a wait for the phase before its first one through.
        mbarrier.wait(read.index(stage), ((step // STAGES) & 1) ^ 1)
        mbarrier.expect(k_full.index(stage), keys.block_type.nbytes)
        load_tile(
            keys, [row // GROUP, step * COLUMNS, 0], k_full.index(stage), k_tiles.index(stage)
        )
        mbarrier.expect(v_full.index(stage), values.block_type.nbytes)
        load_tile(
            values, [row // GROUP, step * COLUMNS, 0], v_full.index(stage), v_tiles.index(stage)
        )


@gluon.jit
def _attend(
    q_tile: gl.tensor,
    k_tiles: gl.tensor,
    v_tiles: gl.tensor,
    q_full: gl.tensor,
    k_full: gl.tensor,
    v_full: gl.tensor,
    read: gl.tensor,
    out: gl.tensor,
    log_sums: gl.tensor,
    scale: gl.tensor,
    num_queries: gl.tensor,
    num_keys: gl.tensor,
    start: gl.tensor,
    row: gl.tensor,
    end: gl.tensor,
    ROWS: gl.constexpr,
    COLUMNS: gl.constexpr,
    D: gl.constexpr,
    CAUSAL: gl.constexpr,
    STAGES: gl.constexpr,
) -> None:
    """Multiply tile by tile with the running softmax, and store what comes out."""
    of_scores: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[gl.num_warps(), 1], instr_shape=[16, COLUMNS, 16]
    )
    of_sums: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[gl.num_warps(), 1], instr_shape=[16, D, 16]
    )
    of_weights: gl.constexpr = gl.DotOperandLayout(0, of_sums, 2)
    by_row: gl.constexpr = gl.SliceLayout(1, of_scores)
    query = start + gl.arange(0, ROWS, by_row)
    key = gl.arange(0, COLUMNS, gl.SliceLayout(0, of_scores))
    shift = num_keys - num_queries
    largest = gl.full([ROWS], float("-inf"), gl.float32, by_row)
    total = gl.zeros([ROWS], gl.float32, by_row)
    sums = gl.zeros([ROWS, D], gl.float32, of_sums)
    nothing = gl.zeros([ROWS, COLUMNS], gl.float32, of_scores)
    q = q_tile.reshape([ROWS, D])
    mbarrier.wait(q_full, 0)
    for step in range(end):
        stage = step % STAGES
        phase = (step // STAGES) & 1
        mbarrier.wait(k_full.index(stage), phase)
        k = k_tiles.index(stage).reshape([COLUMNS, D])
        scores = warpgroup_mma(q, k.permute((1, 0)), nothing, use_acc=False, is_async=True)
        scores = warpgroup_mma_wait(0, deps=[scores]) * (scale * LOG2_E)
        place = step * COLUMNS + key
        seen = (place < num_keys)[None, :] & (query < num_queries)[:, None]
        if CAUSAL:
            seen = seen & (place[None, :] <= (query + shift)[:, None])
        scores = gl.where(seen, scores, float("-inf"))
        new_largest = gl.maximum(largest, gl.max(scores, 1))
        # A row that has seen nothing yet stays at -inf; 0 in its place keeps NaN out.
        reference = gl.where(new_largest == float("-inf"), 0.0, new_largest)
        weights = gl.exp2(scores - reference[:, None])
        shrunk = gl.exp2(largest - reference)
        total = total * shrunk + gl.sum(weights, 1)
        largest = new_largest
        factor = gl.convert_layout(shrunk, gl.SliceLayout(1, of_sums))
        sums = sums * factor[:, None]
        narrow = gl.convert_layout(weights.to(v_tiles.dtype), of_weights)
        mbarrier.wait(v_full.index(stage), phase)
        v = v_tiles.index(stage).reshape([COLUMNS, D])
        sums = warpgroup_mma(narrow, v, sums, is_async=True)
        sums = warpgroup_mma_wait(0, deps=[sums])
        mbarrier.arrive(read.index(stage), count=1)

    some = total > 0.0
    divisor = gl.where(some, total, 1.0)
    logs = gl.where(some, (largest + gl.log2(divisor)) * LN_2, float("-inf"))
    first = row.to(gl.int64) * num_queries
    gl.store(log_sums + first + query, logs, mask=query < num_queries)
    result = sums / gl.convert_layout(divisor, gl.SliceLayout(1, of_sums))[:, None]
    token = start + gl.arange(0, ROWS, gl.SliceLayout(1, of_sums))
    dim = gl.arange(0, D, gl.SliceLayout(0, of_sums))
    places = out + (first + token)[:, None] * D + dim[None, :]
    gl.store(places, result.to(out.dtype.element_ty), mask=(token < num_queries)[:, None])


def forward(
    queries: Tensor, keys: Tensor, values: Tensor, *, scale: float, causal: bool
) -> tuple[Tensor, Tensor]:
    """The result [B, H, T, D] and the logarithms of the rows' sums, float32 [B, H, T].

    Args:
        queries: [B, H, T, D] in bfloat16 or float16, contiguous; D is 64 or 128.
        keys: [B, KV, S, D], of which KV divides H.
        values: As keys.
        scale: The factor of the scores.
        causal: Queries see no key behind them; the last query stands beside the last key.

    Raises:
        InputError: A size of heads that this kernel was not made for.
    """
    batch, heads, length, dim = queries.shape
    key_heads, num_keys = keys.shape[1:3]
    if dim not in KEYS:
        raise InputError(f"heads of {dim}: the Hopper kernel takes {' and '.join(map(str, KEYS))}")
    out = torch.empty_like(queries)
    log_sums = torch.empty(batch, heads, length, dtype=torch.float32, device=queries.device)
    forward_kernel[(triton.cdiv(length, _ROWS), batch * heads)](
        tiles_of(queries, _ROWS),
        tiles_of(keys, KEYS[dim]),
        tiles_of(values, KEYS[dim]),
        out,
        log_sums,
        scale,
        length,
        num_keys,
        GROUP=heads // key_heads,
        CAUSAL=causal,
        STAGES=_STAGES,
        num_warps=_WARPS,
        enable_fp_fusion=True,
    )
    return out, log_sums


def tiles_of(heads: Tensor, rows: int) -> TensorDescriptor:
    """A descriptor of [B · H, T, D] in tiles of so many rows of one head."""
    flat = heads.flatten(0, 1)
    block = [1, rows, heads.shape[-1]]
    kind = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}[heads.dtype]
    layout = gl.NVMMASharedLayout.get_default_for(block, kind)
    return TensorDescriptor(flat, list(flat.shape), list(flat.stride()), block, layout)
