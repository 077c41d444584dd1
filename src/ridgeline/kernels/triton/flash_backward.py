"""The backward kernels of FlashAttention: two passes, each of which writes what it alone owns.

`key_kernel` owns a tile of keys of one key head and goes over the queries that see it, of all the
heads that share it; `query_kernel` owns a tile of queries and goes over their keys. Both make each
tile of weights again from the sums of the forward (Dao, 2307.08691, algorithm 2). Nothing is added
atomically, so gradients are the same at every run.
"""

# ruff: noqa: N803, PLR0915  (Triton's constants are upper case; a kernel is one function)

from __future__ import annotations

import triton
import triton.language as tl

from ridgeline.kernels.triton.flash_forward import (
    LOG2_E,
    kept,
    keys_of,
    load_rows,
    place_of,
    scores_of,
    span_of,
    store_rows,
    tiles_of,
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
    # A document is a run of tokens, which it sees and by which it is seen; the band turns around.
    first, behind = keys_of(key, there, num_queries, -shift, bounds, batch, total_keys, RIGHT, LEFT)
    begin, whole_begin, whole_end, end = tiles_of(first, behind, BLOCK_QUERIES)
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
            begin, whole_begin, whole_end, end = 0, 0, 0, tl.load(counts + list_row)
        for step in range(begin, end):
            at = place_of(tiles, step) * BLOCK_QUERIES
            row = at + tl.arange(0, BLOCK_QUERIES)
            inside = row < num_queries
            q = load_rows(
                q_at + at.to(tl.int64) * query_token, query_token, dims, inside, D, BLOCK_QUERIES
            )
            up = load_rows(
                up_at + at.to(tl.int64) * dout_token, dout_token, dims, inside, D, BLOCK_QUERIES
            )
            logs = _logs(log_sums + rows_at, row, inside)
            scores, slope = scores_of(k, tl.trans(q), scale, SOFTCAP)
            weights = tl.exp2(scores - logs[None, :])
            if (step < whole_begin) | (step >= whole_end):
                seen = (row[None, :] >= first[:, None]) & (row[None, :] < behind[:, None])
                weights = tl.where(seen, weights, 0.0)
            change = matmul(v, tl.trans(up))
            if DROPPED:
                stays = kept(seed, row[None, :], key[:, None], which, DROPPED)
                change = tl.where(stays, change * KEPT_SCALE, 0.0)
                dv += matmul(tl.where(stays, weights * KEPT_SCALE, 0.0).to(q.dtype), up)
            else:
                dv += matmul(weights.to(q.dtype), up)
            change -= tl.load(along + rows_at + row, mask=inside, other=0.0)[None, :]
            change *= weights
            if SOFTCAP is not None:
                change *= slope
            dk += matmul(change.to(q.dtype), q)
    dk_at = dkeys + row_batch * dkey_batch + owned * dkey_head + first_key * dkey_token
    dv_at = dvalues + row_batch * dvalue_batch + owned * dvalue_head + first_key * dvalue_token
    store_rows(dk_at, dkey_token, dims, there, dk * scale, D, BLOCK_KEYS)
    store_rows(dv_at, dvalue_token, dims, there, dv, D, BLOCK_KEYS)


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
    first, behind = keys_of(row, inside, num_keys, shift, bounds, batch, total_queries, LEFT, RIGHT)
    which = head + batch * tl.num_programs(1)
    begin, whole_begin, whole_end, end = tiles_of(first, behind, BLOCK_KEYS)
    if listed is not None:
        list_row = batch * list_batch + head * list_head + tile
        listed += list_row.to(tl.int64) * list_length
        begin, whole_begin, whole_end, end = 0, 0, 0, tl.load(counts + list_row)
    dq = tl.zeros((BLOCK_QUERIES, BLOCK_D), tl.float32)
    for step in range(begin, end):
        at = place_of(listed, step) * BLOCK_KEYS
        key = at + tl.arange(0, BLOCK_KEYS)
        there = key < num_keys
        k = load_rows(k_at + at.to(tl.int64) * key_token, key_token, dims, there, D, BLOCK_KEYS)
        v = load_rows(v_at + at.to(tl.int64) * value_token, value_token, dims, there, D, BLOCK_KEYS)
        scores, slope = scores_of(q, tl.trans(k), scale, SOFTCAP)
        weights = tl.exp2(scores - logs[:, None])
        if (step < whole_begin) | (step >= whole_end):
            seen = (key[None, :] >= first[:, None]) & (key[None, :] < behind[:, None])
            weights = tl.where(seen, weights, 0.0)
        change = matmul(up, tl.trans(v))
        if DROPPED:
            stays = kept(seed, row[:, None], key[None, :], which, DROPPED)
            change = tl.where(stays, change * KEPT_SCALE, 0.0)
        change = (change - less[:, None]) * weights
        if SOFTCAP is not None:
            change *= slope
        dq += matmul(change.to(k.dtype), k)
    dq_at = dqueries + row_batch * dquery_batch + owned * dquery_head + first_row * dquery_token
    store_rows(dq_at, dquery_token, dims, inside, dq * scale, D, BLOCK_QUERIES)


@triton.jit
def _logs(log_sums: tl.tensor, row: tl.tensor, inside: tl.tensor) -> tl.tensor:
    """The sums' logs to base 2; ∞ for rows that see nothing, whose weights are so 0."""
    found = tl.load(log_sums + row, mask=inside, other=float("inf")) * LOG2_E
    return tl.where(found == float("-inf"), float("inf"), found)
