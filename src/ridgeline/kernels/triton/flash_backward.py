"""The backward kernels of FlashAttention: two passes, each of which writes what it alone owns.

`key_kernel` owns a tile of keys of one key head and goes over the queries that see it, of all the
heads that share it; `query_kernel` owns a tile of queries and goes over their keys. Both make each
tile of weights again from the sums of the forward (Dao, 2307.08691, algorithm 2). Nothing is added
atomically, so gradients are the same at every run.
"""

# ruff: noqa: N803, N806, PLR0915  (Triton's constants are upper case; a kernel is one function)

from __future__ import annotations

import triton
import triton.language as tl

from ridgeline.kernels.triton.flash_forward import (
    LOG2_E,
    bounds_of,
    in_band,
    kept,
    key_tiles,
    load_rows,
    place_of,
    scores_of,
    span_of,
    store_rows,
)
from ridgeline.kernels.triton.tiles import matmul


@triton.jit
def along_kernel(
    along: tl.tensor,
    dout: tl.tensor,
    out: tl.tensor,
    dlog_sums: tl.tensor,
    num_rows: tl.tensor,
    heads: tl.tensor,
    dout_batch: tl.tensor,
    dout_head: tl.tensor,
    dout_token: tl.tensor,
    out_batch: tl.tensor,
    out_head: tl.tensor,
    out_token: tl.tensor,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr,
) -> None:
    """What every score's gradient is less: the sum of dout · out, less the gradient of the logs."""
    start = tl.program_id(0) * BLOCK_QUERIES
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    rows = start + tl.arange(0, BLOCK_QUERIES)
    dims = tl.arange(0, BLOCK_D)
    inside = rows < num_rows
    first = start.to(tl.int64)
    up = dout + batch * dout_batch + head * dout_head + first * dout_token
    at = out + batch * out_batch + head * out_head + first * out_token
    one = load_rows(up, dout_token, dims, inside, D, BLOCK_QUERIES).to(tl.float32)
    other = load_rows(at, out_token, dims, inside, D, BLOCK_QUERIES).to(tl.float32)
    found = tl.sum(one * other, 1)
    place = (batch * heads + head) * num_rows + rows
    if dlog_sums is not None:
        found -= tl.load(dlog_sums + place, mask=inside, other=0.0)
    tl.store(along + place, found, mask=inside)


@triton.jit
def key_kernel(
    dkeys: tl.tensor,
    dvalues: tl.tensor,
    dout: tl.tensor,
    log_sums: tl.tensor,
    along: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    seed: tl.tensor,
    query_starts: tl.tensor,
    key_starts: tl.tensor,
    bounds: tl.tensor,
    listed: tl.tensor,
    counts: tl.tensor,
    scale: tl.tensor,
    total_queries: tl.tensor,
    total_keys: tl.tensor,
    dkey_batch: tl.tensor,
    dkey_head: tl.tensor,
    dkey_token: tl.tensor,
    dvalue_batch: tl.tensor,
    dvalue_head: tl.tensor,
    dvalue_token: tl.tensor,
    dout_batch: tl.tensor,
    dout_head: tl.tensor,
    dout_token: tl.tensor,
    query_batch: tl.tensor,
    query_head: tl.tensor,
    query_token: tl.tensor,
    key_batch: tl.tensor,
    key_head: tl.tensor,
    key_token: tl.tensor,
    value_batch: tl.tensor,
    value_head: tl.tensor,
    value_token: tl.tensor,
    list_batch: tl.tensor,
    list_head: tl.tensor,
    list_length: tl.tensor,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    SOFTCAP: tl.constexpr,
    DROPPED: tl.constexpr,
    KEPT_SCALE: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
) -> None:
    """Gradients of one tile of keys and values; the grid is tiles, key heads, batch."""
    tile = tl.program_id(0)
    key_heads = tl.num_programs(1)
    owner = tl.program_id(1)
    batch = tl.program_id(2)
    query_start, num_queries, row_batch = span_of(query_starts, batch, total_queries)
    key_start, num_keys, _ = span_of(key_starts, batch, total_keys)
    start = tile * BLOCK_KEYS
    if start >= num_keys:
        return
    shift = num_keys - num_queries
    key = start + tl.arange(0, BLOCK_KEYS)
    dims = tl.arange(0, BLOCK_D)
    there = key < num_keys
    row_batch = row_batch.to(tl.int64)
    first_key = (key_start + start).to(tl.int64)
    owned = owner.to(tl.int64)
    k_at = keys + row_batch * key_batch + owned * key_head + first_key * key_token
    v_at = values + row_batch * value_batch + owned * value_head + first_key * value_token
    k = load_rows(k_at, key_token, dims, there, D, BLOCK_KEYS)
    v = load_rows(v_at, value_token, dims, there, D, BLOCK_KEYS)
    # A document is a run of tokens, which it sees and by which it is seen.
    first, last = bounds_of(bounds, batch, total_keys, key, there)
    begin, full_begin, full_end, end = _query_tiles(
        start, num_queries, num_keys, shift, first, last, bounds, LEFT, RIGHT,
        BLOCK_QUERIES, BLOCK_KEYS,
    )  # fmt: skip
    dk = tl.zeros((BLOCK_KEYS, BLOCK_D), tl.float32)
    dv = tl.zeros((BLOCK_KEYS, BLOCK_D), tl.float32)
    for member in range(GROUP):
        head = owner * GROUP + member
        which = head + batch * (key_heads * GROUP)
        rows_at = (row_batch * (key_heads * GROUP) + head) * total_queries + query_start
        q_at = queries + row_batch * query_batch + head.to(tl.int64) * query_head
        q_at += query_start.to(tl.int64) * query_token
        up_at = dout + row_batch * dout_batch + head.to(tl.int64) * dout_head
        up_at += query_start.to(tl.int64) * dout_token
        tiles = listed
        if listed is not None:
            list_row = batch * list_batch + head * list_head + tile
            tiles = listed + list_row.to(tl.int64) * list_length
            full_end = 0
            end = tl.load(counts + list_row)
        if listed is None and (RIGHT is not None or bounds is not None):
            dk, dv = _collect(
                dk, dv, k, v, q_at, up_at, log_sums + rows_at, along + rows_at, seed, tiles,
                first, last, bounds, key, begin, full_begin, num_queries, num_keys, shift, which,
                scale, query_token, dout_token, D, BLOCK_D, LEFT, RIGHT, SOFTCAP, DROPPED,
                KEPT_SCALE, BLOCK_QUERIES, True,
            )  # fmt: skip
        if listed is None:
            dk, dv = _collect(
                dk, dv, k, v, q_at, up_at, log_sums + rows_at, along + rows_at, seed, tiles,
                first, last, bounds, key, full_begin, full_end, num_queries, num_keys, shift,
                which, scale, query_token, dout_token, D, BLOCK_D, LEFT, RIGHT, SOFTCAP, DROPPED,
                KEPT_SCALE, BLOCK_QUERIES, False,
            )  # fmt: skip
        dk, dv = _collect(
            dk, dv, k, v, q_at, up_at, log_sums + rows_at, along + rows_at, seed, tiles,
            first, last, bounds, key, full_end, end, num_queries, num_keys, shift, which,
            scale, query_token, dout_token, D, BLOCK_D, LEFT, RIGHT, SOFTCAP, DROPPED,
            KEPT_SCALE, BLOCK_QUERIES, True,
        )  # fmt: skip
    dk_at = dkeys + row_batch * dkey_batch + owned * dkey_head + first_key * dkey_token
    dv_at = dvalues + row_batch * dvalue_batch + owned * dvalue_head + first_key * dvalue_token
    store_rows(dk_at, dkey_token, dims, there, dk * scale, D, BLOCK_KEYS)
    store_rows(dv_at, dvalue_token, dims, there, dv, D, BLOCK_KEYS)


@triton.jit
def _collect(
    dk: tl.tensor,
    dv: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    queries: tl.tensor,
    dout: tl.tensor,
    log_sums: tl.tensor,
    along: tl.tensor,
    seed: tl.tensor,
    listed: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    bounds: tl.tensor,
    key: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    num_queries: tl.tensor,
    num_keys: tl.tensor,
    shift: tl.tensor,
    which: tl.tensor,
    scale: tl.tensor,
    query_token: tl.tensor,
    dout_token: tl.tensor,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    SOFTCAP: tl.constexpr,
    DROPPED: tl.constexpr,
    KEPT_SCALE: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr,
    MASKED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Add what tiles `begin` … `end` of queries give; tiles of weights are [keys, queries]."""
    dims = tl.arange(0, BLOCK_D)
    for step in range(begin, end):
        start = place_of(listed, step) * BLOCK_QUERIES
        row = start + tl.arange(0, BLOCK_QUERIES)
        inside = row < num_queries
        there = inside if MASKED else None
        q = load_rows(
            queries + start.to(tl.int64) * query_token, query_token, dims, there, D, BLOCK_QUERIES
        )
        up = load_rows(
            dout + start.to(tl.int64) * dout_token, dout_token, dims, there, D, BLOCK_QUERIES
        )
        logs = _logs(log_sums, row, inside)
        scores, slope = scores_of(k, tl.trans(q), scale, SOFTCAP)
        weights = tl.exp2(scores - logs[None, :])
        if MASKED:
            seen = inside[None, :] & (key < num_keys)[:, None]
            seen = in_band(seen, row[None, :], key[:, None], shift, LEFT, RIGHT)
            if bounds is not None:
                seen = seen & (row[None, :] >= first[:, None]) & (row[None, :] < last[:, None])
            weights = tl.where(seen, weights, 0.0)
        change = matmul(v, tl.trans(up))
        if DROPPED:
            stays = kept(seed, row[None, :], key[:, None], which, DROPPED)
            change = tl.where(stays, change * KEPT_SCALE, 0.0)
            dv += matmul(tl.where(stays, weights * KEPT_SCALE, 0.0).to(q.dtype), up)
        else:
            dv += matmul(weights.to(q.dtype), up)
        change -= tl.load(along + row, mask=inside, other=0.0)[None, :]
        change *= weights
        if SOFTCAP is not None:
            change *= slope
        dk += matmul(change.to(q.dtype), q)
    return dk, dv


@triton.jit
def query_kernel(
    dqueries: tl.tensor,
    dout: tl.tensor,
    log_sums: tl.tensor,
    along: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    seed: tl.tensor,
    query_starts: tl.tensor,
    key_starts: tl.tensor,
    bounds: tl.tensor,
    listed: tl.tensor,
    counts: tl.tensor,
    scale: tl.tensor,
    total_queries: tl.tensor,
    total_keys: tl.tensor,
    dquery_batch: tl.tensor,
    dquery_head: tl.tensor,
    dquery_token: tl.tensor,
    dout_batch: tl.tensor,
    dout_head: tl.tensor,
    dout_token: tl.tensor,
    query_batch: tl.tensor,
    query_head: tl.tensor,
    query_token: tl.tensor,
    key_batch: tl.tensor,
    key_head: tl.tensor,
    key_token: tl.tensor,
    value_batch: tl.tensor,
    value_head: tl.tensor,
    value_token: tl.tensor,
    list_batch: tl.tensor,
    list_head: tl.tensor,
    list_length: tl.tensor,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    SOFTCAP: tl.constexpr,
    DROPPED: tl.constexpr,
    KEPT_SCALE: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
) -> None:
    """Gradients of one tile of queries; the grid is tiles (last ones first), heads, batch."""
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1)
    batch = tl.program_id(2)
    query_start, num_queries, row_batch = span_of(query_starts, batch, total_queries)
    key_start, num_keys, _ = span_of(key_starts, batch, total_keys)
    start = tile * BLOCK_QUERIES
    if start >= num_queries:
        return
    shift = num_keys - num_queries
    row = start + tl.arange(0, BLOCK_QUERIES)
    dims = tl.arange(0, BLOCK_D)
    inside = row < num_queries
    row_batch = row_batch.to(tl.int64)
    first_row = (query_start + start).to(tl.int64)
    owned = head.to(tl.int64)
    shared = (head // GROUP).to(tl.int64)
    q_at = queries + row_batch * query_batch + owned * query_head + first_row * query_token
    up_at = dout + row_batch * dout_batch + owned * dout_head + first_row * dout_token
    k_at = keys + row_batch * key_batch + shared * key_head + key_start.to(tl.int64) * key_token
    v_at = values + row_batch * value_batch + shared * value_head
    v_at += key_start.to(tl.int64) * value_token
    q = load_rows(q_at, query_token, dims, inside, D, BLOCK_QUERIES)
    up = load_rows(up_at, dout_token, dims, inside, D, BLOCK_QUERIES)
    rows_at = (row_batch * tl.num_programs(1) + head) * total_queries + query_start
    logs = _logs(log_sums + rows_at, row, inside)
    less = tl.load(along + rows_at + row, mask=inside, other=0.0)
    first, last = bounds_of(bounds, batch, total_queries, row, inside)
    which = head + batch * tl.num_programs(1)
    begin, full_begin, full_end, end = key_tiles(
        start, num_queries, num_keys, shift, first, last, bounds, LEFT, RIGHT,
        BLOCK_QUERIES, BLOCK_KEYS,
    )  # fmt: skip
    if listed is not None:
        list_row = batch * list_batch + head * list_head + tile
        listed += list_row.to(tl.int64) * list_length
        full_end = 0
        end = tl.load(counts + list_row)
    dq = tl.zeros((BLOCK_QUERIES, BLOCK_D), tl.float32)
    if listed is None and (LEFT is not None or bounds is not None):
        dq = _descend(
            dq, q, up, logs, less, k_at, v_at, seed, listed, first, last, bounds, row,
            begin, full_begin, num_keys, shift, which, scale, key_token, value_token,
            D, BLOCK_D, LEFT, RIGHT, SOFTCAP, DROPPED, KEPT_SCALE, BLOCK_KEYS, True,
        )  # fmt: skip
    if listed is None:
        dq = _descend(
            dq, q, up, logs, less, k_at, v_at, seed, listed, first, last, bounds, row,
            full_begin, full_end, num_keys, shift, which, scale, key_token, value_token,
            D, BLOCK_D, LEFT, RIGHT, SOFTCAP, DROPPED, KEPT_SCALE, BLOCK_KEYS, False,
        )  # fmt: skip
    dq = _descend(
        dq, q, up, logs, less, k_at, v_at, seed, listed, first, last, bounds, row,
        full_end, end, num_keys, shift, which, scale, key_token, value_token,
        D, BLOCK_D, LEFT, RIGHT, SOFTCAP, DROPPED, KEPT_SCALE, BLOCK_KEYS, True,
    )  # fmt: skip
    dq_at = dqueries + row_batch * dquery_batch + owned * dquery_head + first_row * dquery_token
    store_rows(dq_at, dquery_token, dims, inside, dq * scale, D, BLOCK_QUERIES)


@triton.jit
def _descend(
    dq: tl.tensor,
    q: tl.tensor,
    up: tl.tensor,
    logs: tl.tensor,
    less: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    seed: tl.tensor,
    listed: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    bounds: tl.tensor,
    row: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    num_keys: tl.tensor,
    shift: tl.tensor,
    which: tl.tensor,
    scale: tl.tensor,
    key_token: tl.tensor,
    value_token: tl.tensor,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    SOFTCAP: tl.constexpr,
    DROPPED: tl.constexpr,
    KEPT_SCALE: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    MASKED: tl.constexpr,
) -> tl.tensor:
    """Add what tiles `begin` … `end` of keys give."""
    dims = tl.arange(0, BLOCK_D)
    for step in range(begin, end):
        start = place_of(listed, step) * BLOCK_KEYS
        key = start + tl.arange(0, BLOCK_KEYS)
        there = (key < num_keys) if MASKED else None
        k = load_rows(
            keys + start.to(tl.int64) * key_token, key_token, dims, there, D, BLOCK_KEYS
        )
        v = load_rows(
            values + start.to(tl.int64) * value_token, value_token, dims, there, D, BLOCK_KEYS
        )
        scores, slope = scores_of(q, tl.trans(k), scale, SOFTCAP)
        weights = tl.exp2(scores - logs[:, None])
        if MASKED:
            seen = there[None, :]
            seen = in_band(seen, row[:, None], key[None, :], shift, LEFT, RIGHT)
            if bounds is not None:
                seen = seen & (key[None, :] >= first[:, None]) & (key[None, :] < last[:, None])
            weights = tl.where(seen, weights, 0.0)
        change = matmul(up, tl.trans(v))
        if DROPPED:
            stays = kept(seed, row[:, None], key[None, :], which, DROPPED)
            change = tl.where(stays, change * KEPT_SCALE, 0.0)
        change = (change - less[:, None]) * weights
        if SOFTCAP is not None:
            change *= slope
        dq += matmul(change.to(k.dtype), k)
    return dq


@triton.jit
def _logs(log_sums: tl.tensor, row: tl.tensor, inside: tl.tensor) -> tl.tensor:
    """The sums' logs to base 2; ∞ for rows that see nothing, whose weights are so 0."""
    found = tl.load(log_sums + row, mask=inside, other=float("inf")) * LOG2_E
    return tl.where(found == float("-inf"), float("inf"), found)


@triton.jit
def _query_tiles(
    start: tl.tensor,
    num_queries: tl.tensor,
    num_keys: tl.tensor,
    shift: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    bounds: tl.tensor,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """The tiles of queries that see a tile of keys: first, first whole, behind whole, behind."""
    stop = tl.minimum(start + BLOCK_KEYS, num_keys)
    low = num_queries * 0
    high = num_queries
    whole_low = low
    whole_high = num_queries
    if RIGHT is not None:
        low = tl.maximum(low, start - shift - RIGHT)
        whole_low = tl.maximum(whole_low, stop - 1 - shift - RIGHT)
    if LEFT is not None:
        high = tl.minimum(high, stop - shift + LEFT)
        whole_high = tl.minimum(whole_high, start - shift + LEFT + 1)
    if bounds is not None:
        low = tl.maximum(low, tl.min(first, 0))
        high = tl.minimum(high, tl.max(last, 0))
        whole_low = tl.maximum(whole_low, tl.max(first, 0))
        whole_high = tl.minimum(whole_high, tl.min(last, 0))
    begin = low // BLOCK_QUERIES
    end = tl.maximum(tl.cdiv(tl.maximum(high, 0), BLOCK_QUERIES), begin)
    whole_begin = tl.minimum(tl.maximum(tl.cdiv(whole_low, BLOCK_QUERIES), begin), end)
    whole_end = tl.minimum(tl.maximum(whole_high, 0) // BLOCK_QUERIES, end)
    return begin, whole_begin, tl.maximum(whole_end, whole_begin), end
