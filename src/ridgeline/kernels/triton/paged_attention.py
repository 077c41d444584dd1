"""Attention over the KV cache in blocks on a GPU: what `kernels/paged_attention.py` calls.

Same arguments and results as there. All that shapes a launch (tiles, splits) follows from tensor
shapes, `max_queries` and `max_context`, which are on the host: nothing waits for the device, and a
CUDA graph captured with the same shapes stays right for any contents, contexts up to its
`max_context` and beyond included (only the number of splits is chosen by it).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
from torch import Tensor

from ridgeline.kernels.triton import dense, num_processors
from ridgeline.kernels.triton.attention_kernels import attention_kernel, reduce_kernel
from ridgeline.kernels.triton.cache_write import write_cache_kernel

if TYPE_CHECKING:
    from ridgeline.kernels.paged_attention import LayerCache, PackedTokens

_MOST_SPLITS = 64
_SMALLEST_TILE = 16
"""Rows of a matmul on tensor cores."""
_LARGEST_TILE = 64
_PROGRAMS_PER_PROCESSOR = 2
"""Below this many, the keys are split: enough loads in flight to fill the memory's bandwidth."""


@dataclass(frozen=True, slots=True)
class AttentionLaunch:
    """Every constant of a launch that does not follow from the model: part of a graph's key."""

    decode: bool
    num_tiles: int
    splits: int
    block_rows: int
    block_keys: int


def write_cache(keys: Tensor, values: Tensor, cache: LayerCache, packed: PackedTokens) -> None:
    """Store [T, KV, D] keys and values at `packed.slots`; those at -1 nowhere."""
    keys, values = _rows_together(keys), _rows_together(values)
    num_tokens, num_kv, head_dim = keys.shape
    if num_tokens == 0:
        return
    write_cache_kernel[(num_tokens, num_kv)](
        keys,
        values,
        _bits(cache.keys),
        _bits(cache.values),
        cache.key_scales,
        cache.value_scales,
        dense(packed.slots),
        *keys.stride()[:2],
        *values.stride()[:2],
        *_cache_strides(cache),
        *_scale_strides(cache),
        D=head_dim,
        BLOCK_D=triton.next_power_of_2(head_dim),
        CACHE_BLOCK=cache.keys.shape[2],
        FIXED=cache.key_scales is not None and cache.key_scales.ndim == 1,
        num_warps=1,
        enable_fp_fusion=True,
    )


def paged_attention(
    queries: Tensor,
    cache: LayerCache,
    packed: PackedTokens,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """[T, H, D] queries to [T, H, D] outputs; rows of sequences without context become zeros."""
    queries = _rows_together(queries)
    window, first = packed.sight(window)
    num_tokens, num_heads, head_dim = queries.shape
    num_kv = cache.keys.shape[1]
    out = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
    if num_tokens == 0:
        return out
    launch = launch_of(queries, cache, packed, None if first else window)
    block_dim = max(triton.next_power_of_2(head_dim), _SMALLEST_TILE)
    parts = maxima = sums = None
    if launch.splits > 1:
        shape = (num_tokens, num_heads, launch.splits)
        parts = torch.empty((*shape, head_dim), dtype=torch.float32, device=queries.device)
        maxima = torch.empty(shape, dtype=torch.float32, device=queries.device)
        sums = torch.empty(shape, dtype=torch.float32, device=queries.device)
    attention_kernel[(launch.num_tiles, num_kv, launch.splits)](
        out,
        parts,
        maxima,
        sums,
        queries,
        _bits(cache.keys),
        _bits(cache.values),
        cache.key_scales,
        cache.value_scales,
        dense(sinks),
        dense(packed.query_starts),
        dense(packed.context_lengths),
        _rows_together(packed.block_tables),
        dense(packed.seen),
        packed.context_lengths.shape[0],
        launch.splits,
        float(scale),
        *queries.stride()[:2],
        *_cache_strides(cache),
        *_scale_strides(cache),
        _rows_together(packed.block_tables).stride(0),
        NUM_HEADS=num_heads,
        GROUP=num_heads // num_kv,
        D=head_dim,
        BLOCK_D=block_dim,
        CACHE_BLOCK=cache.keys.shape[2],
        WINDOW=window,
        FIRST=first,
        SOFTCAP=softcap,
        DECODE=launch.decode,
        SPLIT=launch.splits > 1,
        BLOCK_ROWS=launch.block_rows,
        BLOCK_KEYS=launch.block_keys,
        num_warps=4,
        enable_fp_fusion=True,
        num_stages=2 if block_dim > 128 or queries.dtype == torch.float32 else 3,
    )
    if launch.splits > 1:
        reduce_kernel[(num_tokens, num_heads)](
            out,
            parts,
            maxima,
            sums,
            dense(sinks),
            launch.splits,
            NUM_HEADS=num_heads,
            D=head_dim,
            BLOCK_D=block_dim,
            BLOCK_SPLITS=triton.next_power_of_2(launch.splits),
            num_warps=4,
            enable_fp_fusion=True,
        )
    return out


def launch_of(
    queries: Tensor, cache: LayerCache, packed: PackedTokens, window: int | None
) -> AttentionLaunch:
    """How the work is cut, from shapes and the host's numbers alone."""
    num_tokens, num_heads, head_dim = queries.shape
    num_kv = cache.keys.shape[1]
    group = num_heads // num_kv
    num_sequences = packed.context_lengths.shape[0]
    wide = head_dim > 128 or queries.dtype == torch.float32
    block_keys = 32 if wide else 64
    if queries.dtype == torch.float32 and cache.keys.dtype == torch.float8_e4m3fn:
        block_keys = 16  # widened from 8 bits to 32, more do not fit into an SM's registers
    fitting = triton.next_power_of_2(packed.max_queries * group)
    largest = _LARGEST_TILE // 2 if wide else _LARGEST_TILE
    block_rows = max(min(fitting, largest), triton.next_power_of_2(group), _SMALLEST_TILE)
    decode = packed.max_queries == 1
    num_tiles = num_sequences if decode else num_tokens // (block_rows // group) + num_sequences
    programs = num_tiles * num_kv
    wanted = -(-_PROGRAMS_PER_PROCESSOR * num_processors(queries.device) // programs)
    reach = packed.max_context if window is None else min(packed.max_context, window)
    splits = max(1, min(wanted, -(-reach // block_keys), _MOST_SPLITS))
    return AttentionLaunch(decode, num_tiles, splits, block_rows, block_keys)


def _rows_together(tensor: Tensor) -> Tensor:
    """Heads and tokens may lie anywhere (a slice of a fused projection), a row may not."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _cache_strides(cache: LayerCache) -> tuple[int, int, int]:
    strides = cache.keys.stride()
    assert strides == cache.values.stride()
    assert strides[3] == 1
    return strides[0], strides[1], strides[2]


def _scale_strides(cache: LayerCache) -> tuple[int, int, int]:
    """From block to block, head to head, slot to slot; scales [KV] are those of every slot."""
    scales = cache.key_scales
    if scales is None:
        return 0, 0, 0
    strides = scales.stride()
    return (0, strides[0], 0) if scales.ndim == 1 else (strides[0], strides[1], strides[2])


def _bits(stored: Tensor) -> Tensor:
    return stored.view(torch.uint8) if stored.dtype == torch.float8_e4m3fn else stored
