"""The kernels of inference are linear layers with small weights, and decode over a paged cache.

One row of inputs reads every weight once, so bytes are counted; more rows are counted in FLOPs,
beside the same product of 16-bit weights. A decode reads every key and value of the contexts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ridgeline.kernels.bench.timing import MADE, BenchRow
from ridgeline.kernels.paged_attention import LayerCache, PackedTokens

GEMV_GOAL = 0.75
DECODE_GOAL = 0.88
_GROUP = 128
_BLOCK = 16
Multiply = Callable[[Tensor], Tensor]


def inference_rows() -> Iterator[BenchRow]:
    """The MLP's first layer of an 8B model, and a decode of 64 contexts of 4,096 tokens."""
    yield from weight_rows(outputs=14336, depth=4096)
    yield decode_row(sequences=64, context=4096, heads=32, key_heads=8, dim=128)


def weight_rows(
    *, outputs: int, depth: int, batches: tuple[int, ...] = (1, 16, 512)
) -> Iterator[BenchRow]:
    """Products with int4, int8 and fp8 weights, each beside the same weights in 16 bits."""
    for kind, (multiply, wide, stored_bytes) in _stored(outputs, depth).items():
        for rows in batches:
            x = torch.randn(rows, depth, **MADE)
            moved = stored_bytes + x.nbytes + rows * outputs * x.itemsize
            single = rows == 1
            yield BenchRow(
                name=f"{kind} weights {rows} × {depth} × {outputs}",
                ways={
                    "ours": partial(multiply, x),
                    "16-bit weights": partial(torch.nn.functional.linear, x, wide),
                },
                moved_bytes=moved if single else 0,
                flops=0 if single else 2 * rows * depth * outputs,
                goals={"copy": GEMV_GOAL} if single else {},
            )


def _stored(outputs: int, depth: int) -> dict[str, tuple[Multiply, Tensor, int]]:
    """What multiplies with each format, the same weights in 16 bits, and its bytes."""
    from ridgeline.kernels.triton import linear_int4, linear_int8

    device = MADE["device"]
    four = torch.randint(-8, 8, (outputs, depth), dtype=torch.int8, device=device)
    eight = torch.randint(-127, 128, (outputs, depth), dtype=torch.int8, device=device)
    floats = (torch.randn(outputs, depth, device=device) * 8).to(torch.float8_e4m3fn)
    grouped = torch.rand(depth // _GROUP, outputs, **MADE) / depth
    single = torch.rand(1, outputs, **MADE) / depth
    found: dict[str, tuple[Multiply, Tensor, int]] = {}
    for kind, quantised, scales in (
        ("int4", four, grouped), ("int8", eight, single), ("fp8", floats, single)
    ):  # fmt: skip
        room = linear_int4 if kind == "int4" else linear_int8
        packed = room.pack(quantised)
        each = scales.repeat_interleave(depth // scales.shape[0], 0).T
        wide = (quantised.float() * each.float()).to(MADE["dtype"])
        multiply = partial(_multiplied, room.linear, packed, scales)
        found[kind] = multiply, wide, packed.nbytes + scales.nbytes
    return found


def _multiplied(linear: Callable[..., Tensor], packed: Tensor, scales: Tensor, x: Tensor) -> Tensor:
    return linear(x, packed, scales, None, None)


def decode_row(*, sequences: int, context: int, heads: int, key_heads: int, dim: int) -> BenchRow:
    """One token of each sequence over its context, beside torch over the same cache, dense."""
    from ridgeline.kernels.triton.paged_attention import paged_attention

    device = MADE["device"]
    blocks = context // _BLOCK
    cache = LayerCache(
        *(torch.randn(sequences * blocks, key_heads, _BLOCK, dim, **MADE) for _ in "kv")
    )
    tables = torch.randperm(sequences * blocks, device=device).view(sequences, blocks).int()
    packed = PackedTokens(
        query_starts=torch.arange(sequences + 1, dtype=torch.int32, device=device),
        context_lengths=torch.full((sequences,), context, dtype=torch.int32, device=device),
        block_tables=tables,
        slots=torch.full((sequences,), -1, device=device),
        max_queries=1,
        max_context=context,
    )
    queries = torch.randn(sequences, heads, dim, **MADE)
    keys, values = (
        one[tables.long()].transpose(1, 2).reshape(sequences, key_heads, context, dim)
        for one in (cache.keys, cache.values)
    )
    scale = dim**-0.5
    return BenchRow(
        name=f"paged decode {sequences} × {context}, {heads} heads on {key_heads}",
        ways={
            "ours": lambda: paged_attention(queries, cache, packed, scale=scale),
            "torch, dense cache": lambda: scaled_dot_product_attention(
                queries[:, :, None], keys, values, enable_gqa=True
            )[:, :, 0],
        },
        moved_bytes=keys.nbytes + values.nbytes + 2 * queries.nbytes,
        goals={"copy": DECODE_GOAL},
    )
