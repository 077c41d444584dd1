"""The kernels of attention over a KV cache in blocks.

One program attends a tile of rows (queries × the heads that share one key head) to a share of their
keys, with the running softmax of FlashAttention (2205.14135, algorithm 1). Where there are too few
tiles to fill the device, the keys are split among programs, whose parts `reduce_kernel` joins
(Flash-Decoding, Dao et al. 2023; equally FlashAttention's rescaling, once more).

Tiles of a packed batch need no table: sequence s owns the tiles from `starts[s] // Q + s` on, with
Q queries a tile, which leaves it at least as many as it needs; the surplus tiles end at once.
"""

# ruff: noqa: N803, N806, PLR0915  (Triton's constants are upper case; a kernel is one function)

from __future__ import annotations

import triton
import triton.language as tl

from ridgeline.kernels.triton.tiles import decoded, matmul, tanh

_LOG2_E = tl.constexpr(1.4426950408889634)


# What changes from step to step is compiled once for all its values, not anew for 1 or for 16.
@triton.jit(do_not_specialize=["num_sequences", "num_splits", "table_stride"])
def attention_kernel(
    out: tl.tensor,
    parts: tl.tensor,
    part_maxima: tl.tensor,
    part_sums: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    key_scales: tl.tensor,
    value_scales: tl.tensor,
    sinks: tl.tensor,
    query_starts: tl.tensor,
    context_lengths: tl.tensor,
    block_tables: tl.tensor,
    seen: tl.tensor,
    num_sequences: tl.tensor,
    num_splits: tl.tensor,
    scale: tl.tensor,
    query_token_stride: tl.tensor,
    query_head_stride: tl.tensor,
    block_stride: tl.tensor,
    head_stride: tl.tensor,
    slot_stride: tl.tensor,
    scale_block_stride: tl.tensor,
    scale_head_stride: tl.tensor,
    scale_slot_stride: tl.tensor,
    table_stride: tl.tensor,
    NUM_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    CACHE_BLOCK: tl.constexpr,
    WINDOW: tl.constexpr,
    FIRST: tl.constexpr,
    SOFTCAP: tl.constexpr,
    DECODE: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
) -> None:
    """Attend within one tile, key head and split, which are the axes of the grid.

    DECODE: one query a sequence, so a tile is a sequence. FIRST: keys that are seen beside the
    window. `seen`, or None: the paths of queries that stand in trees (`PackedTokens.seen`).

    `out` [T, H, D] is written unless SPLIT, then `parts` [T, H, splits, D] (not divided by their
    sums), `part_maxima` and `part_sums` [T, H, splits], all float32.
    """
    QUERIES: tl.constexpr = BLOCK_ROWS // GROUP
    tile = tl.program_id(0)
    key_head = tl.program_id(1)
    split = tl.program_id(2)
    if DECODE:
        sequence = tile
        first_query = 0
    else:
        sequence = _sequence_of(tile, query_starts, num_sequences, QUERIES)
        first_query = (tile - tl.load(query_starts + sequence) // QUERIES - sequence) * QUERIES
    start = tl.load(query_starts + sequence)
    num_queries = tl.load(query_starts + sequence + 1) - start
    if first_query >= num_queries:
        return
    context = tl.load(context_lengths + sequence)

    rows = tl.arange(0, BLOCK_ROWS)
    query = first_query + rows // GROUP
    used = (rows < QUERIES * GROUP) & (query < num_queries)
    token = (start + query).to(tl.int64)
    head = key_head * GROUP + rows % GROUP
    root = context - num_queries
    position = root + query
    if seen is not None:
        path = tl.load(seen + token, mask=used, other=0)
        depth = tl.zeros((BLOCK_ROWS,), tl.int32) - 1
        for bit in range(tl.minimum(num_queries, 64)):
            depth += ((path >> bit) & 1).to(tl.int32)
        position = tl.where(path != 0, root + depth, position)
    dims = tl.arange(0, BLOCK_D)
    in_row = used[:, None] & (dims < D)[None, :]
    q = tl.load(
        queries
        + token[:, None] * query_token_stride
        + head[:, None] * query_head_stride
        + dims[None, :],
        mask=in_row,
        other=0.0,
    )

    # The keys that any row of the tile sees, and this program's share of them.
    last_query = tl.minimum(first_query + QUERIES, num_queries)
    high = root + last_query
    low = 0
    if WINDOW is not None:
        # A query in a tree may stand as high as its root.
        highest = root if seen is not None else root + first_query
        low = tl.maximum(highest - WINDOW + 1, 0) if FIRST == 0 else 0
        low = low // BLOCK_KEYS * BLOCK_KEYS
    share = tl.cdiv(tl.cdiv(high - low, BLOCK_KEYS), num_splits) * BLOCK_KEYS
    begin = low + split * share
    end = tl.minimum(begin + share, high)

    largest = tl.full((BLOCK_ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_ROWS,), tl.float32)
    sums = tl.zeros((BLOCK_ROWS, BLOCK_D), tl.float32)
    for at in range(begin, end, BLOCK_KEYS):
        key = at + tl.arange(0, BLOCK_KEYS)
        inside = key < end
        block = tl.load(
            block_tables + sequence.to(tl.int64) * table_stride + key // CACHE_BLOCK,
            mask=inside,
            other=0,
        ).to(tl.int64)
        slot = key % CACHE_BLOCK
        place = block * block_stride + key_head * head_stride + slot * slot_stride
        scale_place = (
            block * scale_block_stride + key_head * scale_head_stride + slot * scale_slot_stride
        )
        k = tl.load(
            keys + place[None, :] + dims[:, None],
            mask=inside[None, :] & (dims < D)[:, None],
            other=0,
        )
        scores = matmul(q, decoded(k).to(q.dtype)) * scale
        if key_scales is not None:
            scores *= tl.load(key_scales + scale_place, mask=inside, other=0.0)[None, :]
        if SOFTCAP is not None:
            scores = SOFTCAP * tanh(scores / SOFTCAP)
        bits = key - root
        stands = key[None, :]
        visible = inside[None, :] & (stands <= position[:, None])
        if seen is not None:
            tree = (path != 0)[:, None] & (bits >= 0)[None, :]
            reached = tl.minimum(tl.maximum(bits, 0), 63)[None, :].to(tl.int64)
            there = (((path[:, None] >> reached) & 1) != 0) & (bits < 64)[None, :]
            visible = tl.where(tree, inside[None, :] & there, visible)
            if WINDOW is not None:
                # An ancestor stands as deep as it has ancestors, wherever its key lies.
                before = tl.zeros((BLOCK_ROWS, BLOCK_KEYS), tl.int32)
                for bit in range(tl.minimum(num_queries, 64)):
                    on = ((path >> bit) & 1).to(tl.int32)
                    before += tl.where((bits > bit)[None, :], on[:, None], 0)
                stands = tl.where(tree, root + before, stands)
        if WINDOW is not None:
            in_window = stands > position[:, None] - WINDOW
            visible &= in_window | (stands < FIRST)
        scores = tl.where(visible, scores * _LOG2_E, float("-inf"))

        new_largest = tl.maximum(largest, tl.max(scores, 1))
        # A row that has seen nothing yet stays at -inf; 0 in its place keeps NaN out.
        reference = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        weights = tl.exp2(scores - reference[:, None])
        shrunk = tl.exp2(largest - reference)
        total = total * shrunk + tl.sum(weights, 1)
        if value_scales is not None:
            weights *= tl.load(value_scales + scale_place, mask=inside, other=0.0)[None, :]
        v = tl.load(
            values + place[:, None] + dims[None, :],
            mask=inside[:, None] & (dims < D)[None, :],
            other=0,
        )
        sums = sums * shrunk[:, None] + matmul(weights.to(q.dtype), decoded(v).to(q.dtype))
        largest = new_largest

    row = token * NUM_HEADS + head
    if not SPLIT:
        if sinks is not None:
            extra = tl.load(sinks + head, mask=used, other=0.0).to(tl.float32) * _LOG2_E
            new_largest = tl.maximum(largest, extra)
            shrunk = tl.exp2(largest - new_largest)
            total = total * shrunk + tl.exp2(extra - new_largest)
            sums = sums * shrunk[:, None]
        result = sums / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(
            out + row[:, None] * D + dims[None, :], result.to(out.dtype.element_ty), mask=in_row
        )
    else:
        part = row * num_splits + split
        tl.store(parts + part[:, None] * D + dims[None, :], sums, mask=in_row)
        tl.store(part_maxima + part, largest, mask=used)
        tl.store(part_sums + part, total, mask=used)


@triton.jit(do_not_specialize=["num_splits"])
def reduce_kernel(
    out: tl.tensor,
    parts: tl.tensor,
    part_maxima: tl.tensor,
    part_sums: tl.tensor,
    sinks: tl.tensor,
    num_splits: tl.tensor,
    NUM_HEADS: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
) -> None:
    """Join the parts of one token and head, the axes of the grid, as if computed at once."""
    head = tl.program_id(1)
    row = tl.program_id(0).to(tl.int64) * NUM_HEADS + head
    splits = tl.arange(0, BLOCK_SPLITS)
    dims = tl.arange(0, BLOCK_D)
    part = row * num_splits + splits
    maxima = tl.load(part_maxima + part, mask=splits < num_splits, other=float("-inf"))
    totals = tl.load(part_sums + part, mask=splits < num_splits, other=0.0)
    largest = tl.max(maxima, 0)
    if sinks is not None:
        extra = tl.load(sinks + head).to(tl.float32) * _LOG2_E
        largest = tl.maximum(largest, extra)
    reference = tl.where(largest == float("-inf"), 0.0, largest)
    weights = tl.exp2(maxima - reference)
    total = tl.sum(totals * weights, 0)
    if sinks is not None:
        total += tl.exp2(extra - reference)
    sums = tl.load(
        parts + part[:, None] * D + dims[None, :],
        mask=(splits < num_splits)[:, None] & (dims < D)[None, :],
        other=0.0,
    )
    result = tl.sum(sums * weights[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out + row * D + dims, result.to(out.dtype.element_ty), mask=dims < D)


@triton.jit
def _sequence_of(
    tile: tl.tensor, query_starts: tl.tensor, num_sequences: tl.tensor, QUERIES: tl.constexpr
) -> tl.tensor:
    """The last sequence whose first tile is not after this one, by bisection."""
    low = 0
    high = num_sequences
    while low < high:
        middle = (low + high) // 2
        if tl.load(query_starts + middle) // QUERIES + middle <= tile:
            low = middle + 1
        else:
            high = middle
    return low - 1
