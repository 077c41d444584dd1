"""Paged attention with PyTorch's own operators, for machines whose C++ kernels cannot be compiled.

The blocks of a sequence are gathered into one tensor and go through scaled dot-product attention;
sequences with as many queries and about as much context go together. What the operator promises
beyond its numbers (the same bits alone and in a batch) does not hold here.

Shapes as in `paged_attention.py`; G sequences of a group, t queries of each, J keys gathered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

KEYS_AT_ONCE = 1 << 14
"""The keys of all sequences of a group, so that what is gathered stays small beside the cache."""
SCORES_AT_ONCE = 1 << 22
"""Numbers; where scores are soft-capped, which no fused operator does."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Sequences that are computed together."""

    sequences: Tensor
    """The numbers of the sequences, [G]."""
    num_queries: int
    """The queries of each sequence."""
    num_blocks: int
    """The most blocks that a sequence has."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """Which keys of a group are there, and which query sees them."""

    table: Tensor
    """[G, J / B] blocks; 0 where nothing is seen."""
    alive: Tensor
    """Which keys some query may see, [G, J]; others may hold anything."""
    visible: Tensor
    """[G, 1, t, J]"""


def gathered_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    key_scales: Tensor | None,
    value_scales: Tensor | None,
    query_starts: Tensor,
    context_lengths: Tensor,
    block_tables: Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
    seen: Tensor | None,
    first: int,
) -> Tensor:
    """The operator `ridgeline::paged_attention`, argument by argument."""
    out = torch.zeros(queries.shape, dtype=queries.dtype, device=queries.device)
    starts, lengths = query_starts.long(), context_lengths.long()
    # A window does not say what need not be gathered where first tokens are seen beside it.
    reach = None if first else window
    for group in _groups(starts, lengths, keys.shape[2], reach):
        rows = starts[group.sequences, None] + torch.arange(group.num_queries)
        paths = None if seen is None else seen[rows]
        shown = _seen(group, lengths, block_tables, keys, window, first, paths)
        exact = queries.dtype if keys.dtype.itemsize == 1 else keys.dtype
        wide = torch.promote_types(queries.dtype, exact)
        found = _attend(
            queries[rows].transpose(1, 2).to(wide),
            _gathered(keys, key_scales, shown).to(wide),
            _gathered(values, value_scales, shown).to(wide),
            shown.visible,
            scale,
            softcap,
            sinks,
        )
        out[rows] = found.transpose(1, 2).to(out.dtype)
    return out


def _groups(starts: Tensor, lengths: Tensor, block: int, window: int | None) -> Iterator[_Group]:
    counts = (starts[1:] - starts[:-1]).tolist()
    alike: dict[tuple[int, int], list[int]] = defaultdict(list)
    blocks: list[int] = []
    for sequence, (count, length) in enumerate(zip(counts, lengths.tolist(), strict=True)):
        first = max(0, length - count - window + 1) // block if window else 0
        blocks.append(-(-length // block) - first)
        if count > 0:
            alike[count, blocks[-1].bit_length()].append(sequence)
    for (count, _), sequences in alike.items():
        most = max(blocks[sequence] for sequence in sequences)
        at_once = max(1, KEYS_AT_ONCE // (most * block))
        for first in range(0, len(sequences), at_once):
            taken = torch.tensor(sequences[first : first + at_once])
            yield _Group(taken, count, most)


def _seen(
    group: _Group,
    lengths: Tensor,
    block_tables: Tensor,
    keys: Tensor,
    window: int | None,
    first: int,
    paths: Tensor | None,
) -> _Seen:
    """Which keys a group reads; `paths` are the bits of its queries that stand in trees, [G, t].

    Raises:
        RuntimeError: A block that is not in the cache.
    """
    block = keys.shape[2]
    ends = lengths[group.sequences, None]
    root = ends - group.num_queries
    lowest = ends * 0 if window is None or first else (root - window + 1).clamp_min(0)
    places = lowest // block + torch.arange(group.num_blocks)
    held = places < -(-ends // block)
    table = block_tables[group.sequences[:, None], places.clamp_max(block_tables.shape[1] - 1)]
    table = torch.where(held, table, 0).long()
    if int(table.min()) < 0 or int(table.max()) >= len(keys):
        wrong = table[(table < 0) | (table >= len(keys))][0]
        raise RuntimeError(f"paged_attention: block {int(wrong)} of {len(keys)}")
    at = (places[..., None] * block + torch.arange(block)).flatten(1)
    own = root + torch.arange(group.num_queries)
    visible = at[:, None] <= own[..., None]
    placed = at[:, None]
    if paths is not None:
        own, visible, placed = _in_trees(at, root, own, visible, paths)
    if window:
        visible &= (placed > own[..., None] - window) | (placed < first)
    return _Seen(table, (at >= lowest) & (at < ends), visible[:, None])


def _in_trees(
    at: Tensor, root: Tensor, own: Tensor, visible: Tensor, paths: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Places of queries [G, t], what they see and the places of that, [G, t, J], with trees."""
    bits = at - root  # of keys, [G, J]
    reached = bits.clamp(0, 63)[:, None]
    there = ((paths[..., None] >> reached) & 1).bool() & (bits >= 0)[:, None]
    there &= (bits < 64)[:, None]
    depth = there.cumsum(-1) - 1
    trees = (paths != 0)[..., None]
    before = (bits < 0)[:, None]
    placed = torch.where(trees & ~before, root[..., None] + depth, at[:, None])
    visible = torch.where(trees, before | there, visible)
    own = torch.where(paths != 0, root + there.sum(-1) - 1, own)
    return own, visible, placed


def _gathered(stored: Tensor, scales: Tensor | None, seen: _Seen) -> Tensor:
    """[G, KV, J, D]; zeros where nothing is seen, whatever lies there."""
    taken = stored.transpose(0, 1)[:, seen.table]
    if scales is not None:
        by_slot = scales.transpose(0, 1)[:, seen.table] if scales.ndim > 1 else None
        factors = scales[:, None, None, None] if by_slot is None else by_slot
        taken = taken.float() * factors[..., None]
    return taken.flatten(2, 3).transpose(0, 1).masked_fill(~seen.alive[:, None, :, None], 0.0)


def _attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    visible: Tensor,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """[G, H, t, D] over [G, KV, J, D]."""
    mask = visible
    if sinks is not None:  # a key of zeros, whose score is 0, with a value of zeros
        keys, values = (functional.pad(one, (0, 0, 0, 1)) for one in (keys, values))
        allowed = torch.zeros_like(visible, dtype=queries.dtype)
        allowed = allowed.masked_fill(~visible, float("-inf")).expand(-1, len(sinks), -1, -1)
        extra = sinks.to(queries.dtype)[:, None, None].expand(*allowed.shape[:3], 1)
        mask = torch.cat((allowed, extra), -1)
    if softcap is None:
        return functional.scaled_dot_product_attention(
            queries, keys, values, mask, scale=scale, enable_gqa=True
        )
    at_once = max(1, SCORES_AT_ONCE // (len(queries) * queries.shape[1] * keys.shape[2]))
    pieces = zip(queries.split(at_once, 2), mask.split(at_once, 2), strict=True)
    return torch.cat(
        [_soft_capped(some, keys, values, of, scale, softcap) for some, of in pieces], 2
    )


def _soft_capped(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float, softcap: float
) -> Tensor:
    by_key = queries.float().unflatten(1, (keys.shape[1], -1))  # [G, KV, H / KV, t, D]
    scores = (by_key @ keys.float()[:, :, None].mT * scale).flatten(1, 2)
    scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    weights = scores.softmax(-1).unflatten(1, (keys.shape[1], -1))
    return (weights @ values.float()[:, :, None]).flatten(1, 2)
