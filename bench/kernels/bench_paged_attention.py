"""Paged attention on the CPU against F.scaled_dot_product_attention over the same data, dense.

    python bench/kernels/bench_paged_attention.py [--threads 2] [--seconds 0.3]

Both compute one layer; SDPA's keys are contiguous and already gathered, which a paged cache would
have to do first. Rounds of the two alternate, and each figure is the fastest round: memory
bandwidth of a shared machine varies. Ratios above 1: ours is faster.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch.nn import functional

from ridgeline.kernels.paged_attention import LayerCache, PackedTokens, paged_attention, write_cache

ROUNDS = 7
BLOCK = 16

# (sequences, queries, context, query heads, key heads, head size)
CASES = (
    (1, 1, 128, 12, 12, 64),
    (1, 1, 4096, 12, 12, 64),
    (16, 1, 128, 12, 12, 64),
    (16, 1, 512, 12, 12, 64),
    (16, 1, 512, 32, 8, 128),
    (1, 1, 8192, 32, 8, 128),
    (1, 512, 512, 12, 12, 64),
    (1, 2048, 2048, 12, 12, 64),
    (1, 512, 512, 32, 8, 128),
    (1, 256, 4096, 32, 8, 128),
)


def fastest(ours: Callable[[], object], theirs: Callable[[], object], seconds: float):
    """Seconds per call of both, from alternating rounds of about `seconds` in all."""
    counts = []
    for call in (ours, theirs):
        call()
        began = time.perf_counter()
        call()
        took = time.perf_counter() - began
        counts.append(max(1, int(seconds / ROUNDS / took)))
    best = [float("inf"), float("inf")]
    for _ in range(ROUNDS):
        for index, call in enumerate((ours, theirs)):
            began = time.perf_counter()
            for _ in range(counts[index]):
                call()
            best[index] = min(best[index], (time.perf_counter() - began) / counts[index])
    return best


def calls_of(shape: tuple[int, ...], dtype: torch.dtype):
    """One call of ours over shuffled blocks, and one of SDPA, of the same numbers."""
    sequences, queries, context, heads, kv_heads, size = shape
    per_sequence = -(-context // BLOCK)
    tables = torch.randperm(sequences * per_sequence).view(sequences, per_sequence).int()
    position = torch.arange(context)
    slots = tables.long()[:, position // BLOCK] * BLOCK + position % BLOCK
    packed = PackedTokens(
        query_starts=torch.arange(0, sequences * queries + 1, queries, dtype=torch.int32),
        context_lengths=torch.full((sequences,), context, dtype=torch.int32),
        block_tables=tables,
        slots=slots.flatten(),
        max_queries=queries,
        max_context=context,
    )
    keys, values = (torch.randn(sequences, context, kv_heads, size, dtype=dtype) for _ in range(2))
    asked = torch.randn(sequences, queries, heads, size, dtype=dtype)
    blocks = (sequences * per_sequence, kv_heads, BLOCK, size)
    cache = LayerCache(torch.empty(blocks, dtype=dtype), torch.empty(blocks, dtype=dtype))
    write_cache(keys.flatten(0, 1), values.flatten(0, 1), cache, packed)
    dense = [one.transpose(1, 2).contiguous() for one in (asked, keys, values)]
    options: dict[str, object] = {"enable_gqa": heads != kv_heads}
    if queries == context:
        options["is_causal"] = True
    elif queries > 1:
        lower = torch.ones(queries, context, dtype=torch.bool).tril(context - queries)
        options["attn_mask"] = lower
    packed_queries = asked.flatten(0, 1)

    def ours() -> torch.Tensor:
        return paged_attention(packed_queries, cache, packed, scale=size**-0.5)

    def theirs() -> torch.Tensor:
        return functional.scaled_dot_product_attention(*dense, **options)

    found = ours().view(sequences, queries, heads, size).transpose(1, 2)
    torch.testing.assert_close(found, theirs(), rtol=2e-2, atol=2e-2)
    return ours, theirs


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=0.3)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"torch {torch.__version__}, {arguments.threads} threads, blocks of {BLOCK} tokens")
    print("dtype     seqs  queries  context  heads  size     ours      SDPA   ratio  read or done")
    for dtype in (torch.bfloat16, torch.float32):
        for shape in CASES:
            sequences, queries, context, heads, kv_heads, size = shape
            ours, theirs = fastest(*calls_of(shape, dtype), arguments.seconds)
            if queries == 1:
                read = 2 * sequences * context * kv_heads * size * dtype.itemsize
                rate = f"{read / ours / 1e9:5.1f} GB/s"
            else:
                pairs = sequences * heads * (queries * context - queries * (queries - 1) / 2)
                rate = f"{4 * pairs * size / ours / 1e9:5.0f} GFLOP/s"
            print(
                f"{str(dtype)[6:]:9} {sequences:4} {queries:8} {context:8}  {heads:2}/{kv_heads:2}"
                f"  {size:4} {ours * 1e6:8.0f}us {theirs * 1e6:8.0f}us {theirs / ours:6.2f}  {rate}"
            )


if __name__ == "__main__":
    with torch.inference_mode():
        main()
