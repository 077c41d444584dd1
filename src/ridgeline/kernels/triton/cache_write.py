"""The kernel that stores new keys and values in the cache, quantised where that is."""

# ruff: noqa: N803  (Triton's compile-time constants are upper case, here as everywhere)

from __future__ import annotations

import triton
import triton.language as tl

from ridgeline.kernels.triton.tiles import as_e4m3, as_int8, scale_of


@triton.jit
def write_cache_kernel(
    keys: tl.tensor,
    values: tl.tensor,
    stored_keys: tl.tensor,
    stored_values: tl.tensor,
    key_scales: tl.tensor,
    value_scales: tl.tensor,
    slots: tl.tensor,
    key_token_stride: tl.tensor,
    key_head_stride: tl.tensor,
    value_token_stride: tl.tensor,
    value_head_stride: tl.tensor,
    block_stride: tl.tensor,
    head_stride: tl.tensor,
    slot_stride: tl.tensor,
    scale_block_stride: tl.tensor,
    scale_head_stride: tl.tensor,
    scale_slot_stride: tl.tensor,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    CACHE_BLOCK: tl.constexpr,
    FIXED: tl.constexpr,
) -> None:
    """One program stores one token's key and value of one head. FIXED: scales are given."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    slot = tl.load(slots + token)
    if slot < 0:
        return
    block = slot // CACHE_BLOCK
    offset = slot % CACHE_BLOCK
    dims = tl.arange(0, BLOCK_D)
    place = block * block_stride + head * head_stride + offset * slot_stride + dims
    scale_place = block * scale_block_stride + head * scale_head_stride + offset * scale_slot_stride
    key = tl.load(
        keys + token * key_token_stride + head * key_head_stride + dims, mask=dims < D, other=0.0
    )
    value = tl.load(
        values + token * value_token_stride + head * value_head_stride + dims,
        mask=dims < D,
        other=0.0,
    )
    _store(key, stored_keys, place, key_scales, scale_place, dims < D, FIXED)
    _store(value, stored_values, place, value_scales, scale_place, dims < D, FIXED)


@triton.jit
def _store(
    row: tl.tensor,
    stored: tl.tensor,
    place: tl.tensor,
    scales: tl.tensor,
    scale_place: tl.tensor,
    mask: tl.tensor,
    FIXED: tl.constexpr,
) -> None:
    if scales is None:
        tl.store(stored + place, row.to(stored.dtype.element_ty), mask=mask)
    else:
        row = row.to(tl.float32)
        e4m3: tl.constexpr = stored.dtype.element_ty == tl.uint8
        most: tl.constexpr = 448.0 if e4m3 else 127.0
        least: tl.constexpr = -448.0 if e4m3 else -128.0
        if FIXED:
            scale = tl.load(scales + scale_place)
        else:
            scale = scale_of(row, most)
            tl.store(scales + scale_place, scale)
        levels = tl.minimum(tl.maximum(tl.div_rn(row, scale + 0.0 * row), least), most)
        if e4m3:
            tl.store(stored + place, as_e4m3(levels), mask=mask)
        else:
            tl.store(stored + place, as_int8(levels), mask=mask)
