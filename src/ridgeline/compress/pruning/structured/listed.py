"""Heads that are named one by one, as pairs of layer and head.

A config.json has one number of heads for all layers. Where every layer loses as many, in whole
groups or as many of each group, they are pruned; else the columns of the output matrix that read
them are set to zero, which computes the same without being smaller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ridgeline.compress.pruning.structured import smaller
from ridgeline.compress.pruning.structured.units import Heads
from ridgeline.errors import InputError


def heads_by_layer(
    listed: Sequence[tuple[int, int]], num_layers: int, heads: Heads
) -> list[set[int]]:
    """The heads that go, layer by layer.

    Raises:
        InputError: A layer or a head is not there.

    >>> heads_by_layer([(1, 0), (1, 3)], 2, Heads(query=4, kv=2, dim=8))
    [set(), {0, 3}]
    """
    found: list[set[int]] = [set() for _ in range(num_layers)]
    for layer, head in listed:
        if layer >= num_layers or head >= heads.query:
            raise InputError(
                f"head {layer}.{head}: the model has layers 0 to {num_layers - 1} of heads 0 to"
                f" {heads.query - 1}"
            )
        found[layer].add(head)
    return found


def kept_alike(
    going: Sequence[set[int]], heads: Heads, config: Mapping[str, Any]
) -> tuple[Heads, dict[str, Any]] | None:
    """How many heads stay in every layer, and the config.json of that; None: it cannot be said so.

    Args:
        going: The heads that go, for each layer.
        heads: What there is.
        config: Of the model as it is.
    """
    per_group = [_by_group(one, heads) for one in going]
    first = sorted(per_group[0])
    if any(sorted(one) != first for one in per_group):
        return None
    whole = [count for count in first if count]
    if all(count == heads.per_group for count in whole):
        kv = heads.kv - len(whole)
        kept = Heads(query=kv * heads.per_group, kv=kv, dim=heads.dim)
    elif len(whole) == heads.kv and len(set(whole)) == 1:
        query = heads.query - sum(whole)
        kept = Heads(query=query, kv=heads.kv, dim=heads.dim)
    else:
        return None
    if not kept.query:
        return None
    try:
        return kept, smaller.without_heads(config, kept)
    except InputError:
        return None


def staying(going: set[int], heads: Heads, kept: Heads) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices of query heads and of key-value heads that stay in a layer, each in order."""
    query = [head for head in range(heads.query) if head not in going]
    if kept.kv == heads.kv:
        return torch.tensor(query), torch.arange(heads.kv)
    return torch.tensor(query), torch.tensor(sorted({head // heads.per_group for head in query}))


def _by_group(going: set[int], heads: Heads) -> list[int]:
    """How many heads of each group go."""
    groups = [head // heads.per_group for head in going]
    return [groups.count(group) for group in range(heads.kv)]
