"""Attention over a KV cache in blocks: decodes that are split over their keys, and a prompt."""

from __future__ import annotations

import torch
from torch import Tensor

from ridgeline.kernels.paged_attention import LayerCache, PackedTokens, write_cache_reference
from ridgeline.kernels.triton.paged_attention import paged_attention, write_cache

_HEADS, _KEY_HEADS, _DIM, _BLOCK, _BLOCKS = 4, 2, 48, 8, 32
_SCALE = _DIM**-0.5


def example() -> list[tuple[Tensor, Tensor]]:
    """Prompts in bfloat16, one without a context; decodes over a cache of eight bits in float32."""
    return [
        *_of([(5, 21), (0, 0), (3, 3)], None, window=None, softcap=None),
        *_of([(1, 75), (1, 1)], torch.int8, window=66, softcap=20.0),
        *_of([(1, 20)], torch.float8_e4m3fn, window=None, softcap=None),
    ]


def _of(
    lengths: list[tuple[int, int]],
    stored: torch.dtype | None,
    window: int | None,
    softcap: float | None,
) -> list[tuple[Tensor, Tensor]]:
    """Sequences of (queries, context), all of whose keys and values are written here."""
    free = torch.randperm(_BLOCKS).tolist()
    tables = torch.full((len(lengths), 17), 2**30, dtype=torch.int32)
    dtype = torch.float32 if stored else torch.bfloat16
    tokens = [torch.randn(2, context, _KEY_HEADS, _DIM).to(dtype) for _, context in lengths]
    slots = []
    for row, (_, context) in enumerate(lengths):
        for column in range(-(-context // _BLOCK)):
            tables[row, column] = free.pop()
        places = torch.arange(context)
        slots.append(tables[row][places // _BLOCK].long() * _BLOCK + places % _BLOCK)
    cache, twin = _empty(stored), _empty(stored)
    num_queries = [count for count, _ in lengths]
    packed = PackedTokens(
        query_starts=torch.tensor([0, *num_queries]).cumsum(0).int(),
        context_lengths=torch.tensor([context for _, context in lengths]).int(),
        block_tables=tables,
        slots=torch.cat(slots),
        max_queries=max(num_queries),
        max_context=max(context for _, context in lengths),
    )
    keys, values = torch.cat(tokens, 1)
    write_cache(keys, values, cache, packed)
    write_cache_reference(keys, values, twin, packed)
    queries = torch.randn(sum(num_queries), _HEADS, _DIM).to(dtype)
    sinks = torch.randn(_HEADS)
    found = paged_attention(
        queries, cache, packed, scale=_SCALE, window=window, softcap=softcap, sinks=sinks
    )
    kept = torch.stack([_read(cache, part, packed.slots) for part in ("keys", "values")])
    parts = kept.split([context for _, context in lengths], 1)
    exact = [
        _attended(one, part[0], part[1], window, softcap, sinks)
        for one, part in zip(queries.split(num_queries), parts, strict=True)
    ]
    wanted = torch.stack([_read(twin, part, packed.slots) for part in ("keys", "values")])
    return [(found, torch.cat(exact)), (kept.float(), wanted)]


def _empty(stored: torch.dtype | None) -> LayerCache:
    shape = (_BLOCKS, _KEY_HEADS, _BLOCK, _DIM)
    scaled = stored is not None
    return LayerCache(
        keys=torch.zeros(shape).to(stored or torch.bfloat16),
        values=torch.zeros(shape).to(stored or torch.bfloat16),
        key_scales=torch.zeros(shape[:3]) if scaled else None,
        value_scales=torch.zeros(shape[:3]) if scaled else None,
    )


def _read(cache: LayerCache, part: str, slots: Tensor) -> Tensor:
    """What stands at these slots, [T, KV, D] in float64."""
    numbers = getattr(cache, part).double()
    scales = cache.key_scales if part == "keys" else cache.value_scales
    if scales is not None:
        numbers = numbers * scales.double()[..., None]
    found: Tensor = numbers.transpose(1, 2).reshape(-1, _KEY_HEADS, _DIM)[slots]
    return found


def _attended(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    window: int | None,
    softcap: float | None,
    sinks: Tensor,
) -> Tensor:
    """The last tokens of one sequence over all of it, with the whole matrix in float64."""
    q, k, v = (one.double() for one in (queries, keys, values))
    k, v = (one.repeat_interleave(_HEADS // _KEY_HEADS, 1) for one in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * _SCALE
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    behind = torch.arange(len(k)) - (len(k) - len(q) + torch.arange(len(q)))[:, None]
    seen = (behind <= 0) & (behind > -(window or len(k) + 1))
    scores = scores.masked_fill(~seen, float("-inf"))
    sink = sinks.double()[:, None, None].expand(-1, len(q), 1)
    weights = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
    return torch.einsum("hqk,khd->qhd", weights, v)
