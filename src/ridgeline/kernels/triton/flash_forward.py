"""The forward kernel of FlashAttention, and what its backward shares with it.

A program attends one tile of queries of one head to the keys that they see, tile by tile, with a
running softmax (Dao et al., 2205.14135, algorithm 1). Tiles of keys that every query sees whole are
computed without a mask, the others at both ends of the band with one; where blocks are given, a
list names the tiles. Scores are taken times log₂ e, so that exp2 does.
"""

# ruff: noqa: N803, PLR0915  (Triton's constants are upper case; a kernel is one function)

from __future__ import annotations

import triton
import triton.language as tl

from ridgeline.kernels.triton.tiles import matmul, tanh

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
    first, behind = keys_of(
        rows, inside, num_keys, shift, bounds, batch, total_queries, LEFT, RIGHT
    )
    k_at = keys + row_batch.to(tl.int64) * key_batch + (head // GROUP).to(tl.int64) * key_head
    v_at = values + row_batch.to(tl.int64) * value_batch + (head // GROUP).to(tl.int64) * value_head
    k_at += key_start.to(tl.int64) * key_token
    v_at += key_start.to(tl.int64) * value_token

    largest = tl.full((BLOCK_QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_QUERIES,), tl.float32)
    sums = tl.zeros((BLOCK_QUERIES, BLOCK_D), tl.float32)
    begin, whole_begin, whole_end, end = tiles_of(first, behind, BLOCK_KEYS)
    which = head + batch * tl.num_programs(1)
    if listed is not None:
        list_row = batch * list_batch + head * list_head + tile
        listed += list_row.to(tl.int64) * list_length
        begin, whole_begin, whole_end, end = 0, 0, 0, tl.load(counts + list_row)
    for step in range(begin, end):
        start = place_of(listed, step) * BLOCK_KEYS
        key = start + tl.arange(0, BLOCK_KEYS)
        there = key < num_keys
        k = load_rows(k_at + start.to(tl.int64) * key_token, key_token, dims, there, D, BLOCK_KEYS)
        scores, _slope = scores_of(q, tl.trans(k), scale, SOFTCAP)
        if (step < whole_begin) | (step >= whole_end):
            seen = (key[None, :] >= first[:, None]) & (key[None, :] < behind[:, None])
            scores = tl.where(seen, scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        # A row that has seen nothing yet stays at -inf; 0 in its place keeps NaN out.
        reference = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        weights = tl.exp2(scores - reference[:, None])
        shrunk = tl.exp2(largest - reference)
        total = total * shrunk + tl.sum(weights, 1)
        if DROPPED:
            stays = kept(seed, rows[:, None], key[None, :], which, DROPPED)
            weights = tl.where(stays, weights * KEPT_SCALE, 0.0)
        v = load_rows(
            v_at + start.to(tl.int64) * value_token, value_token, dims, there, D, BLOCK_KEYS
        )
        sums = sums * shrunk[:, None] + matmul(weights.to(q.dtype), v)
        largest = new_largest

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
def span_of(
    starts: tl.tensor, batch: tl.tensor, total: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The first token of a sequence, how many there are, and the row of the batch they lie in."""
    if starts is None:
        start = batch * 0
        length = total + batch * 0
        row = batch
    else:
        start = tl.load(starts + batch)
        length = tl.load(starts + batch + 1) - start
        row = batch * 0
    return start, length, row


@triton.jit
def keys_of(
    rows: tl.tensor,
    inside: tl.tensor,
    num_keys: tl.tensor,
    shift: tl.tensor,
    bounds: tl.tensor,
    batch: tl.tensor,
    total: tl.tensor,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """The first key that each row sees, and one behind the last; of none, 2³⁰ and 0."""
    first = rows * 0
    behind = first + num_keys
    if LEFT is not None:
        first = tl.maximum(first, rows + (shift - LEFT))
    if RIGHT is not None:
        behind = tl.minimum(behind, rows + (shift + RIGHT + 1))
    if bounds is not None:
        place = batch.to(tl.int64) * total + rows
        other = tl.num_programs(2).to(tl.int64) * total
        first = tl.maximum(first, tl.load(bounds + place, mask=inside, other=2**30))
        behind = tl.minimum(behind, tl.load(bounds + other + place, mask=inside, other=0))
    some = inside & (behind > first)
    return tl.where(some, first, 2**30), tl.where(some, behind, 0)


@triton.jit
def tiles_of(
    first: tl.tensor, behind: tl.tensor, BLOCK: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """The tiles that any row sees: first, first that all see whole, behind those, behind all."""
    begin = tl.min(first, 0) // BLOCK
    end = tl.maximum(tl.cdiv(tl.max(behind, 0), BLOCK), begin)
    whole_begin = tl.minimum(tl.maximum(tl.cdiv(tl.max(first, 0), BLOCK), begin), end)
    whole_end = tl.maximum(tl.minimum(tl.min(behind, 0) // BLOCK, end), whole_begin)
    return begin, whole_begin, whole_end, end


@triton.jit
def place_of(listed: tl.tensor, step: tl.tensor) -> tl.tensor:
    """Which tile comes at a step."""
    place = step
    if listed is not None:
        place = tl.load(listed + step)
    return place


@triton.jit
def scores_of(
    left: tl.tensor, right: tl.tensor, scale: tl.tensor, SOFTCAP: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Scores times log₂ e, and what the soft cap multiplies their gradient with."""
    scores = matmul(left, right)
    if SOFTCAP is None:
        found = scores * (scale * LOG2_E)
        slope = scores
    else:
        capped = tanh(scores * (scale / SOFTCAP))
        found = capped * (SOFTCAP * LOG2_E)
        slope = 1.0 - capped * capped
    return found, slope


@triton.jit
def kept(
    seed: tl.tensor, row: tl.tensor, key: tl.tensor, which: tl.tensor, DROPPED: tl.constexpr
) -> tl.tensor:
    """Which weights stay, as `kernels/philox.py` has it; rows and keys broadcast."""
    nothing = row * 0 + key * 0
    word, _, _, _ = tl.philox(tl.load(seed), nothing + key, nothing + row, nothing + which, nothing)
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
    """Load [ROWS, BLOCK_D], with zeros where no row or no dimension is."""
    places = at + tl.arange(0, ROWS)[:, None] * stride + dims[None, :]
    if dims.shape[0] == D:
        found = tl.load(places, mask=inside[:, None], other=0.0)
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
