"""Gathers what flows into the matrices of a block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from ridgeline.checkpoints.layers import Matrix
from ridgeline.compress.watching import hessian
from ridgeline.compress.watching.products import Product, Products, Stop, run_with
from ridgeline.compress.watching.seen import Seen

SAMPLE_ROWS = 512
"""Rows of inputs that are kept at least, where that many came; below twice as many."""


class Gatherer:
    """Sums over the inputs of one layer, chunk by chunk.

    Args:
        wanted: Fields of `Seen`.
    """

    def __init__(self, wanted: frozenset[str]) -> None:
        self._wanted = wanted
        self._sums: dict[str, Tensor] = {}
        self._tokens = 0
        self._rows: list[Tensor] = []
        self._stride = 1

    def add(self, x: Tensor) -> None:
        """Inputs [..., in]."""
        flat = x.detach().reshape(-1, x.shape[-1]).float()
        if not len(flat):
            return
        if "rows" in self._wanted:
            self._sample(flat)
        self._tokens += len(flat)
        if "hessian" in self._wanted:
            sums = self._sums.setdefault("hessian", flat.new_zeros(flat.shape[1], flat.shape[1]))
            hessian.add_products(sums, flat)
        if "square_norm" in self._wanted:
            self._add("square_norm", flat.square().sum(0))
        if "mean_abs" in self._wanted:
            self._add("mean_abs", flat.abs().sum(0))
        if "max_abs" in self._wanted:
            largest = flat.abs().amax(0)
            before = self._sums.get("max_abs", largest)
            self._sums["max_abs"] = torch.maximum(before, largest)

    def seen(self) -> Seen:
        """Of all that was added; nothing can be added after that."""
        found: dict[str, Any] = dict(self._sums)
        count = max(self._tokens, 1)
        if "hessian" in found:
            # In place: it is the largest of all.
            hessian.mirror(found["hessian"]).mul_(2.0 / count)
        if "mean_abs" in found:
            found["mean_abs"] = found["mean_abs"] / count
        if self._rows:
            found["rows"] = torch.cat(self._rows)
        return Seen(num_tokens=self._tokens, **found)

    def _add(self, name: str, values: Tensor) -> None:
        self._sums[name] = self._sums[name] + values if name in self._sums else values

    def _sample(self, flat: Tensor) -> None:
        """Every `stride`-th token of all, the stride doubled once too many are kept."""
        first = -self._tokens % self._stride
        self._rows.append(flat[first :: self._stride].clone())
        while sum(map(len, self._rows)) >= 2 * SAMPLE_ROWS:
            self._rows = [torch.cat(self._rows)[::2].clone()]
            self._stride *= 2


def gather(
    runs: Iterable[Callable[[], Any]],
    matrices: Iterable[Matrix],
    wanted: Mapping[Product, tuple[int, frozenset[str]]],
) -> dict[int, Seen]:
    """Run and watch.

    Args:
        runs: Forward passes of the block, one per chunk.
        matrices: Of the block.
        wanted: By product: the number of the statistics (the same for products that get the same
            tensor, which is then looked at once), and what is asked for.

    Returns:
        Statistics by number.
    """
    fields: dict[int, frozenset[str]] = {}
    looking: dict[Product, int] = {}
    for product, (number, asked) in wanted.items():
        if number not in fields:
            looking[product] = number  # the first of those that get the same tensor, for all
        fields[number] = fields.get(number, frozenset()) | asked
    gatherers = {number: Gatherer(asked) for number, asked in fields.items()}
    left: set[Product] = set()

    def before(product: Product, x: Tensor) -> None:
        if product in looking:
            gatherers[looking[product]].add(x)
        left.discard(product)
        if not left:
            raise Stop

    watched = tuple(matrices)
    for run in runs:
        left = set(looking)
        run_with(Products(watched, before), run)
    return {number: gatherer.seen() for number, gatherer in gatherers.items()}
