"""The kernels of serving alone, beside PyTorch's: the last table of `bench/gpu/serve.py`."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
from torch.nn.functional import linear, scaled_dot_product_attention

from ridgeline.kernels import linear_int4, linear_int8
from ridgeline.kernels.paged_attention import LayerCache, PackedTokens, paged_attention

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def kernels_alone(contexts: tuple[int, ...], most_sequences: int, layer: tuple[int, int]) -> None:
    """One table.

    Args:
        contexts: Tokens of a sequence's context.
        most_sequences: Of a batch of decodes; a single one is measured too.
        layer: Outputs and depth of the linear layers.
    """
    print("| kernel | µs | GB/s or TFLOP/s | PyTorch's | µs |\n|---|---|---|---|---|")
    for context in contexts:
        for sequences in (1, most_sequences):
            attention_row(context, sequences, 1)
        attention_row(context, 1, context)
    outputs, depth = layer
    dtype = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
    weight = torch.randn(outputs, depth, device=DEVICE, dtype=dtype)
    four, four_scales = linear_int4.quantise(weight, 32 if depth % 128 else 128)
    eight, eight_scales = linear_int8.quantise(weight)
    kinds = {
        "int8": (linear_int8, linear_int8.pack(eight), eight_scales),
        "int4": (linear_int4, linear_int4.pack(four), four_scales),
    }
    for rows in (1, 16, 512):
        x = torch.randn(rows, depth, device=DEVICE, dtype=dtype)
        theirs = seconds_of(lambda x=x: linear(x, weight))
        for kind, (kernel, packed, scales) in kinds.items():
            groups = linear_int8.pack_groups(scales)
            ours = seconds_of(
                lambda x=x, kernel=kernel, packed=packed, groups=groups: kernel.linear(
                    x, packed, groups, None, None, outputs
                )
            )
            rate = packed.nbytes / ours / 1e9
            print(
                f"| {kind} linear {outputs} × {depth}, {rows} rows | {ours * 1e6:.0f} "
                f"| {rate:,.0f} GB/s | F.linear {dtype} | {theirs * 1e6:.0f} |"
            )


def attention_row(context: int, sequences: int, queries: int) -> None:
    """32 query heads over 8 key heads of 128, beside SDPA over the same keys laid out densely."""
    heads, kv_heads, dim, block = 32, 8, 128, 16
    dtype = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
    made = {"device": DEVICE, "dtype": dtype}
    per_sequence = -(-context // block)
    blocks = sequences * per_sequence
    cache = LayerCache(*torch.randn(2, blocks, kv_heads, block, dim, **made))
    ints = {"device": DEVICE, "dtype": torch.int32}
    packed = PackedTokens(
        query_starts=torch.arange(sequences + 1, **ints) * queries,
        context_lengths=torch.full((sequences,), context, **ints),
        block_tables=torch.randperm(blocks, device=DEVICE).to(torch.int32).view(sequences, -1),
        slots=torch.zeros(sequences * queries, dtype=torch.int64, device=DEVICE),
        max_queries=queries,
        max_context=context,
    )
    q = torch.randn(sequences * queries, heads, dim, **made)
    ours = seconds_of(lambda: paged_attention(q, cache, packed, scale=dim**-0.5))
    dense = torch.randn(2, sequences, kv_heads, context, dim, **made)
    rows = q.view(sequences, queries, heads, dim).transpose(1, 2)
    theirs = seconds_of(
        lambda: scaled_dot_product_attention(
            rows, dense[0], dense[1], is_causal=queries > 1, enable_gqa=True
        )
    )
    if queries == 1:
        rate = f"{dense.nbytes / ours / 1e9:,.0f} GB/s"
        name = f"decode, {sequences} × {context}"
    else:
        rate = f"{2 * heads * dim * context**2 / ours / 1e12:,.0f} TFLOP/s"
        name = f"prompt of {context}"
    print(f"| attention, {name} | {ours * 1e6:.0f} | {rate} | SDPA | {theirs * 1e6:.0f} |")


def seconds_of(work: Callable[[], object], repeats: int = 10) -> float:
    """Median of single runs, by the device's clock on a GPU."""
    for _ in range(3):
        work()
    times = []
    for _ in range(repeats):
        if DEVICE.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in "se")
            start.record()
            work()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) / 1e3)
        else:
            began = time.perf_counter()
            work()
            times.append(time.perf_counter() - began)
    return median(times)
