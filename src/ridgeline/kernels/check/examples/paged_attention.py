"""Attention over a KV cache in blocks: decodes that are split over their keys, prompts, trees."""

from __future__ import annotations

import torch
from torch import Tensor

from ridgeline.kernels.paged_attention import LayerCache, PackedTokens, write_cache_reference
from ridgeline.kernels.triton.paged_attention import paged_attention, write_cache

_HEADS, _KEY_HEADS, _DIM, _BLOCK = 6, 2, 40, 8
_USED, _BLOCKS = 32, 160
"""The last blocks of a cache are used, whose numbers need more than eight bits."""
_RUBBISH = 3.0
"""What stands in a cache before anything is written."""
_SCALE = _DIM**-0.5


def example() -> list[tuple[Tensor, Tensor]]:
    """Prompts in bfloat16, one without a context; decodes over a cache of eight bits in float32.

    As many sequences as the processors of the GPU that it is told of: so no decode is split.
    """
    return [
        *_of([(5, 21), (0, 0), (3, 3)], None),
        *_of([(1, 75), (1, 1)], torch.int8, window=66, softcap=2.0),
        *_of([(1, 20)], torch.float8_e4m3fn, size=0.05, sinks=False),
        *_of([(2, 9)], torch.int8, fixed=True),
        *_of([(1, 9)], torch.float8_e4m3fn, fixed=True),
        *_of([(6, 30), (4, 11)], None, window=3, first=2, seen=[1, 3, 5, 11, 27, 33, 0, 0, 0, 0]),
        *_of([(4, 12)], None, seen=[1, 3, 5, 13]),
        *_of([(1, 75)], None, against=6.0),
        *_of([(1, 0), (2, 9)], None, sinks=False),
        *_of([(1, 75), *[(0, 0)] * 131], torch.int8, tokens_of=torch.bfloat16),
    ]


def _of(
    lengths: list[tuple[int, int]],
    stored: torch.dtype | None,
    window: int | None = None,
    softcap: float | None = None,
    size: float = 1.0,
    first: int = 0,
    seen: list[int] | None = None,
    against: float = 0.0,
    *,
    fixed: bool = False,
    sinks: bool = True,
    tokens_of: torch.dtype | None = None,
) -> list[tuple[Tensor, Tensor]]:
    """Sequences of (queries, context), all of whose keys and values are written here.

    With fixed scales, many of these lie in the middle between two numbers of the cache, and some
    beyond the largest. Where queries and keys point against each other, scores and sinks are so far
    below zero that no weight is left unless the largest is taken off.
    """
    free = (_BLOCKS - _USED + torch.randperm(_USED)).tolist()
    tables = torch.full((len(lengths), 17), 2**30, dtype=torch.int32)
    dtype = torch.float32 if stored else torch.bfloat16
    tokens = [
        (size * torch.randn(2, context, _KEY_HEADS, _DIM)).to(tokens_of or dtype)
        for _, context in lengths
    ]
    if fixed:
        tokens = [(one * 16).round() / 16 for one in tokens]
        for one in tokens:
            one[:, 0, :, :2] = torch.tensor([1000.0, -1000.0])
    for one in tokens:
        one[0] += against
    slots = []
    for row, (_, context) in enumerate(lengths):
        for column in range(-(-context // _BLOCK)):
            tables[row, column] = free.pop()
        places = torch.arange(context)
        slots.append(tables[row][places // _BLOCK].long() * _BLOCK + places % _BLOCK)
    cache, twin = _empty(stored, fixed=fixed), _empty(stored, fixed=fixed)
    num_queries = [count for count, _ in lengths]
    packed = PackedTokens(
        query_starts=_in_steps(torch.tensor([0, *num_queries]).cumsum(0).int()),
        context_lengths=_in_steps(torch.tensor([context for _, context in lengths]).int()),
        block_tables=tables,
        slots=_in_steps(torch.cat([*slots, torch.tensor([-1])])),
        max_queries=max(num_queries),
        max_context=max(context for _, context in lengths),
        seen=None if seen is None else _in_steps(torch.tensor(seen)),
        recent=window if first else None,
        first=first,
    )
    padding = torch.ones(2, 1, _KEY_HEADS, _DIM, dtype=tokens_of or dtype)
    keys, values = torch.cat([*tokens, padding], 1)
    values = values.transpose(0, 1).contiguous().transpose(0, 1)  # in other steps than keys
    write_cache(keys, values, cache, packed)
    write_cache_reference(keys, values, twin, packed)
    queries = (torch.randn(sum(num_queries), _HEADS, _DIM) - against).to(dtype)
    extra = _in_steps(torch.randn(_HEADS) - _DIM * _SCALE * against**2) if sinks else None
    found = paged_attention(
        queries,
        cache,
        packed,
        scale=_SCALE,
        window=None if first else window,
        softcap=softcap,
        sinks=extra,
    )
    filled = packed.slots[:-1]
    kept = torch.stack([_read(cache, part, filled) for part in ("keys", "values")])
    parts = kept.split([context for _, context in lengths], 1)
    paths = torch.tensor(seen or [0] * sum(num_queries)).split(num_queries)
    exact = [
        _attended(one, part[0], part[1], _sight(len(part[0]), path, window, first), softcap, extra)
        for one, part, path in zip(queries.split(num_queries), parts, paths, strict=True)
    ]
    wanted = torch.stack([_read(twin, part, filled) for part in ("keys", "values")])
    return [
        (found, torch.cat(exact)),
        (kept.float(), wanted),
        (_everything(cache), _everything(twin)),
    ]


def _in_steps(numbers: Tensor) -> Tensor:
    """The same numbers, which no longer lie side by side."""
    return torch.stack([numbers, numbers + 1], -1)[..., 0]


def _sight(context: int, paths: Tensor, window: int | None, first: int) -> Tensor:
    """Which keys the last tokens of a sequence see, [Q, K]: one after the other, one by one."""
    root = context - len(paths)
    found = torch.zeros(len(paths), context, dtype=torch.bool)
    for query, path in enumerate(paths.tolist() if context else []):
        line = [bit for bit in range(len(paths)) if path >> bit & 1] or list(range(query + 1))
        for depth, key in enumerate([*range(root), *(root + one for one in line)]):
            behind = root + len(line) - 1 - depth
            found[query, key] = window is None or behind < window or depth < first
    return found


def _empty(stored: torch.dtype | None, *, fixed: bool) -> LayerCache:
    shape = (_BLOCKS, _KEY_HEADS, _BLOCK, _DIM)
    scales: list[Tensor | None] = [None, None]
    if fixed:
        scales = [torch.tensor([0.5, 0.25]), torch.tensor([0.25, 0.125])]
    elif stored is not None:
        scales = [torch.full(shape[:3], _RUBBISH), torch.full(shape[:3], _RUBBISH)]
    return LayerCache(
        torch.full(shape, _RUBBISH).to(stored or torch.bfloat16),
        torch.full(shape, _RUBBISH).to(stored or torch.bfloat16),
        *scales,
    )


def _everything(cache: LayerCache) -> Tensor:
    """All that a cache stores, as float64."""
    return torch.cat([cache.keys.double().flatten(), cache.values.double().flatten()])


def _read(cache: LayerCache, part: str, slots: Tensor) -> Tensor:
    """What stands at these slots, [T, KV, D] in float64."""
    numbers = getattr(cache, part).double()
    scales = cache.key_scales if part == "keys" else cache.value_scales
    if scales is not None:
        numbers = numbers * scales.double().view(*scales.shape[-3:-2] or (1,), _KEY_HEADS, -1, 1)
    found: Tensor = numbers.transpose(1, 2).reshape(-1, _KEY_HEADS, _DIM)[slots]
    return found


def _attended(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    seen: Tensor,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """The last tokens of one sequence over what they see, with the whole matrix in float64."""
    if not len(keys):
        return torch.zeros_like(queries)
    q, k, v = (one.double() for one in (queries, keys, values))
    k, v = (one.repeat_interleave(_HEADS // _KEY_HEADS, 1) for one in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * _SCALE
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    scores = scores.masked_fill(~seen, float("-inf"))
    none = torch.full((_HEADS,), float("-inf"))
    sink = (none if sinks is None else sinks).double()[:, None, None].expand(-1, len(q), 1)
    weights = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
    return torch.einsum("hqk,khd->qhd", weights, v)
