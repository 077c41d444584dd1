"""The forward kernel of FlashAttention, and what its backward shares with it.

A program attends one tile of queries of one head to the keys that they see, tile by tile, with a
running softmax (Dao et al., 2205.14135, algorithm 1). Tiles of keys that every query sees whole are
computed without a mask, the others at both ends of the band with one; where blocks are given, a
list names the tiles. Scores are taken times log₂ e, so that exp2 does.
"""

# ruff: noqa: N803, N806, PLR0915  (Triton's constants are upper case; a kernel is one function)

from __future__ import annotations

import triton
import triton.language as tl

from ridgeline.kernels.triton.tiles import matmul

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def forward_kernel(
    out: tl.tensor,
    log_sums: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    sinks: tl.tensor,
    seed: tl.tensor,
    query_starts: tl.tensor,
    key_starts: tl.tensor,
    bounds: tl.tensor,
    listed: tl.tensor,
    counts: tl.tensor,
    scale: tl.tensor,
    total_queries: tl.tensor,
    total_keys: tl.tensor,
    out_batch: tl.tensor,
    out_head: tl.tensor,
    out_token: tl.tensor,
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
    """Attend one tile of queries; the grid is tiles (last ones first), heads, batch."""
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1)
    batch = tl.program_id(2)
    query_start, num_queries, row_batch = span_of(query_starts, batch, total_queries)
    key_start, num_keys, _ = span_of(key_starts, batch, total_keys)
    start = tile * BLOCK_QUERIES
    if start >= num_queries:
        return
    shift = num_keys - num_queries
    rows = start + tl.arange(0, BLOCK_QUERIES)
    dims = tl.arange(0, BLOCK_D)
    inside = rows < num_queries
    first_row = (query_start + start).to(tl.int64)
    q_at = queries + row_batch.to(tl.int64) * query_batch + head.to(tl.int64) * query_head
    q = load_rows(q_at + first_row * query_token, query_token, dims, inside, D, BLOCK_QUERIES)
    first, last = bounds_of(bounds, batch, total_queries, rows, inside)
    k_at = keys + row_batch.to(tl.int64) * key_batch + (head // GROUP).to(tl.int64) * key_head
    v_at = values + row_batch.to(tl.int64) * value_batch + (head // GROUP).to(tl.int64) * value_head
    k_at += key_start.to(tl.int64) * key_token
    v_at += key_start.to(tl.int64) * value_token

    largest = tl.full((BLOCK_QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_QUERIES,), tl.float32)
    sums = tl.zeros((BLOCK_QUERIES, BLOCK_D), tl.float32)
    begin, full_begin, full_end, end = key_tiles(
        start, num_queries, num_keys, shift, first, last, bounds, LEFT, RIGHT,
        BLOCK_QUERIES, BLOCK_KEYS,
    )  # fmt: skip
    which = head + batch * tl.num_programs(1)
    if listed is not None:
        list_row = batch * list_batch + head * list_head + tile
        listed += list_row.to(tl.int64) * list_length
        begin, full_begin, full_end, end = 0, 0, 0, tl.load(counts + list_row)
    if listed is None and (LEFT is not None or bounds is not None):
        largest, total, sums = _attend(
            largest, total, sums, q, k_at, v_at, seed, listed, first, last, bounds, rows,
            begin, full_begin, num_keys, shift, which, scale, key_token, value_token,
            D, BLOCK_D, LEFT, RIGHT, SOFTCAP, DROPPED, KEPT_SCALE, BLOCK_KEYS, True,
        )  # fmt: skip
    if listed is None:
        largest, total, sums = _attend(
            largest, total, sums, q, k_at, v_at, seed, listed, first, last, bounds, rows,
            full_begin, full_end, num_keys, shift, which, scale, key_token, value_token,
            D, BLOCK_D, LEFT, RIGHT, SOFTCAP, DROPPED, KEPT_SCALE, BLOCK_KEYS, False,
        )  # fmt: skip
    largest, total, sums = _attend(
        largest, total, sums, q, k_at, v_at, seed, listed, first, last, bounds, rows,
        full_end, end, num_keys, shift, which, scale, key_token, value_token,
        D, BLOCK_D, LEFT, RIGHT, SOFTCAP, DROPPED, KEPT_SCALE, BLOCK_KEYS, True,
    )  # fmt: skip

    if sinks is not None:
        extra = tl.load(sinks + head).to(tl.float32) * LOG2_E
        new_largest = tl.maximum(largest, extra)
        shrunk = tl.exp2(largest - new_largest)
        total = total * shrunk + tl.exp2(extra - new_largest)
        sums = sums * shrunk[:, None]
        largest = new_largest
    seen = total > 0.0
    total = tl.where(seen, total, 1.0)
    logs = tl.where(seen, (largest + tl.log2(total)) * LN_2, float("-inf"))
    row = (row_batch.to(tl.int64) * tl.num_programs(1) + head) * total_queries + first_row
    tl.store(log_sums + row + tl.arange(0, BLOCK_QUERIES), logs, mask=inside)
    o_at = out + row_batch.to(tl.int64) * out_batch + head.to(tl.int64) * out_head
    store_rows(
        o_at + first_row * out_token, out_token, dims, inside, sums / total[:, None],
        D, BLOCK_QUERIES,
    )  # fmt: skip


@triton.jit
def _attend(
    largest: tl.tensor,
    total: tl.tensor,
    sums: tl.tensor,
    q: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    seed: tl.tensor,
    listed: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    bounds: tl.tensor,
    rows: tl.tensor,
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
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Attend to tiles `begin` … `end` of keys (of the list, where there is one)."""
    dims = tl.arange(0, BLOCK_D)
    for step in range(begin, end):
        start = place_of(listed, step) * BLOCK_KEYS
        key = start + tl.arange(0, BLOCK_KEYS)
        there = (key < num_keys) if MASKED else None
        k = load_rows(
            keys + start.to(tl.int64) * key_token, key_token, dims, there, D, BLOCK_KEYS
        )
        scores, _ = scores_of(q, tl.trans(k), scale, SOFTCAP)
        if MASKED:
            seen = there[None, :]
            seen = in_band(seen, rows[:, None], key[None, :], shift, LEFT, RIGHT)
            if bounds is not None:
                seen = seen & (key[None, :] >= first[:, None]) & (key[None, :] < last[:, None])
            scores = tl.where(seen, scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        # A row that has seen nothing yet stays at -inf; 0 in its place keeps NaN out.
        reference = tl.where(new_largest == float("-inf"), 0.0, new_largest) if MASKED else (
            new_largest
        )  # fmt: skip
        weights = tl.exp2(scores - reference[:, None])
        shrunk = tl.exp2(largest - reference)
        total = total * shrunk + tl.sum(weights, 1)
        if DROPPED:
            stays = kept(seed, rows[:, None], key[None, :], which, DROPPED)
            weights = tl.where(stays, weights * KEPT_SCALE, 0.0)
        v = load_rows(
            values + start.to(tl.int64) * value_token, value_token, dims, there, D, BLOCK_KEYS
        )
        sums = sums * shrunk[:, None] + matmul(weights.to(q.dtype), v)
        largest = new_largest
    return largest, total, sums


@triton.jit
def span_of(
    starts: tl.tensor, batch: tl.tensor, total: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The first token of a sequence, how many there are, and the row of the batch they lie in."""
    if starts is None:
        return batch * 0, total + batch * 0, batch
    start = tl.load(starts + batch)
    return start, tl.load(starts + batch + 1) - start, batch * 0


@triton.jit
def bounds_of(
    bounds: tl.tensor, batch: tl.tensor, total: tl.tensor, rows: tl.tensor, inside: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """The first key that each row sees by documents, and one behind the last."""
    if bounds is None:
        return rows, rows
    place = batch.to(tl.int64) * total + rows
    behind = tl.num_programs(2).to(tl.int64) * total
    first = tl.load(bounds + place, mask=inside, other=2**30)
    return first, tl.load(bounds + behind + place, mask=inside, other=0)


@triton.jit
def key_tiles(
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
    """The tiles of keys that a tile of queries sees: first, first whole, behind whole, behind."""
    stop = tl.minimum(start + BLOCK_QUERIES, num_queries)
    low = num_keys * 0
    high = num_keys
    whole_low = low
    whole_high = num_keys
    if LEFT is not None:
        low = tl.maximum(low, start + shift - LEFT)
        whole_low = tl.maximum(whole_low, stop - 1 + shift - LEFT)
    if RIGHT is not None:
        high = tl.minimum(high, stop + shift + RIGHT)
        whole_high = tl.minimum(whole_high, start + shift + RIGHT + 1)
    if bounds is not None:
        low = tl.maximum(low, tl.min(first, 0))
        high = tl.minimum(high, tl.max(last, 0))
        whole_low = tl.maximum(whole_low, tl.max(first, 0))
        whole_high = tl.minimum(whole_high, tl.min(last, 0))
    begin = low // BLOCK_KEYS
    end = tl.maximum(tl.cdiv(tl.maximum(high, 0), BLOCK_KEYS), begin)
    whole_begin = tl.minimum(tl.maximum(tl.cdiv(whole_low, BLOCK_KEYS), begin), end)
    whole_end = tl.minimum(tl.maximum(whole_high, 0) // BLOCK_KEYS, end)
    return begin, whole_begin, tl.maximum(whole_end, whole_begin), end


@triton.jit
def place_of(listed: tl.tensor, step: tl.tensor) -> tl.tensor:
    """Which tile comes at a step."""
    if listed is None:
        return step
    return tl.load(listed + step)


@triton.jit
def in_band(
    seen: tl.tensor,
    row: tl.tensor,
    key: tl.tensor,
    shift: tl.tensor,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
) -> tl.tensor:
    """What is seen of causality and window; rows and keys broadcast."""
    if LEFT is not None:
        seen = seen & (key >= row + (shift - LEFT))
    if RIGHT is not None:
        seen = seen & (key <= row + (shift + RIGHT))
    return seen


@triton.jit
def scores_of(
    left: tl.tensor, right: tl.tensor, scale: tl.tensor, SOFTCAP: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Scores times log₂ e, and what the soft cap multiplies their gradient with."""
    scores = matmul(left, right)
    if SOFTCAP is None:
        return scores * (scale * LOG2_E), scores
    capped = 1.0 - 2.0 / (tl.exp2(scores * (scale * (2.0 * LOG2_E / SOFTCAP))) + 1.0)
    return capped * (SOFTCAP * LOG2_E), 1.0 - capped * capped


@triton.jit
def kept(
    seed: tl.tensor, row: tl.tensor, key: tl.tensor, which: tl.tensor, DROPPED: tl.constexpr
) -> tl.tensor:
    """Which weights stay, as `kernels/philox.py` has it; rows and keys broadcast."""
    nothing = row * 0 + key * 0
    word, _, _, _ = tl.philox(
        tl.load(seed), nothing + key, nothing + row, nothing + which, nothing
    )
    return word >= DROPPED


@triton.jit
def load_rows(
    at: tl.tensor,
    stride: tl.tensor,
    dims: tl.tensor,
    inside: tl.tensor,
    D: tl.constexpr,
    ROWS: tl.constexpr,
) -> tl.tensor:
    """Load [ROWS, BLOCK_D]; `inside` None: every row is there."""
    places = at + tl.arange(0, ROWS)[:, None] * stride + dims[None, :]
    if D == dims.shape[0]:
        if inside is None:
            found = tl.load(places)
        else:
            found = tl.load(places, mask=inside[:, None], other=0.0)
    elif inside is None:
        found = tl.load(places, mask=(dims < D)[None, :], other=0.0)
    else:
        found = tl.load(places, mask=inside[:, None] & (dims < D)[None, :], other=0.0)
    return found


@triton.jit
def store_rows(
    at: tl.tensor,
    stride: tl.tensor,
    dims: tl.tensor,
    inside: tl.tensor,
    found: tl.tensor,
    D: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    """Store [ROWS, BLOCK_D], rounded to what lies there."""
    places = at + tl.arange(0, ROWS)[:, None] * stride + dims[None, :]
    mask = inside[:, None] & (dims < D)[None, :]
    tl.store(places, found.to(at.dtype.element_ty), mask=mask)
