"""One share over all layers together, as a share for each of them.

The k-th smallest score of all weights is found exactly without holding them at once. The bits of
a float32 that is not negative rank as its value does, so two sweeps of counting, first by the upper
16 bits and then by the lower ones, end at one number; a third counts what each layer loses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from ridgeline.errors import InputError

Layers = Callable[[], Iterable[tuple[str, Tensor]]]
"""Name and scores of each layer, one after another, as often as it is called."""


def shares_by_layer(layers: Layers, share: float) -> dict[str, float]:
    """Of each layer, the share of its weights that are among the lowest `share` of all.

    Of weights that tie with the last one to go, those of the first layers go.

    Raises:
        InputError: A layer would lose every weight.
    """
    total = sum(scores.numel() for _, scores in layers())
    removed = round(share * total)
    if not removed:
        return {name: 0.0 for name, _ in layers()}
    upper, before = _bucket(layers, removed, lambda bits: bits >> 16)
    lower, _ = _bucket(layers, removed - before, lambda bits: bits[bits >> 16 == upper] & 0xFFFF)
    return _shares(layers, removed, (upper << 16) | lower)


def _shares(layers: Layers, removed: int, threshold: int) -> dict[str, float]:
    counts = {}
    for name, scores in layers():
        bits = _bits(scores)
        below, equal = int((bits < threshold).sum()), int((bits == threshold).sum())
        counts[name] = (below, equal, scores.numel())
    ties = removed - sum(below for below, _, _ in counts.values())
    found = {}
    for name, (below, equal, size) in counts.items():
        taken = min(ties, equal)
        ties -= taken
        if below + taken == size:
            raise InputError(
                f"{name} would lose every weight under one share over all layers: prune fewer, or"
                " each layer by itself"
            )
        found[name] = (below + taken) / size
    return found


def _bucket(layers: Layers, rank: int, digit: Callable[[Tensor], Tensor]) -> tuple[int, int]:
    """The value of a 16-bit digit that the element of this rank has, and how many have less."""
    counts = torch.zeros(1 << 16, dtype=torch.int64)
    for _, scores in layers():
        counts += torch.bincount(digit(_bits(scores)), minlength=1 << 16).cpu()
    reached = counts.cumsum(0)
    found = int(torch.searchsorted(reached, rank))
    return found, int(reached[found] - counts[found])


def _bits(scores: Tensor) -> Tensor:
    return scores.detach().float().contiguous().view(torch.int32).reshape(-1)
