"""Ranges of the keys and values that a block would keep in a cache.

They are taken where torch computes attention (`scaled_dot_product_attention`), after rotary
embeddings, with the block compressed already.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ridgeline.checkpoints.quantised import ActivationScales
from ridgeline.compress.inputs import inputs_of
from ridgeline.compress.streaming.loaded_block import LoadedBlock
from ridgeline.compress.watching.products import Product, Products, run_with
from ridgeline.compress.watching.seen import Seen
from ridgeline.records.scheme import NumberFormat


class _Attention(Products):
    """Notes the largest key and value of each attention layer."""

    def __init__(self, block: LoadedBlock) -> None:
        super().__init__(block.matrices, self._enter)
        self.largest: dict[str, tuple[Tensor, Tensor]] = {}
        self._layer = ""

    def _enter(self, product: Product, _: Tensor) -> None:
        """Attention comes after the products of its own module."""
        self._layer = product[0].name.rpartition(".")[0]

    def _other(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is functional.scaled_dot_product_attention:
            most = args[1].abs().amax().reshape(1), args[2].abs().amax().reshape(1)
            before = self.largest.get(self._layer, most)
            self.largest[self._layer] = (
                torch.maximum(before[0], most[0]),
                torch.maximum(before[1], most[1]),
            )
        return func(*args, **kwargs)


def cache_of(
    block: LoadedBlock, form: NumberFormat
) -> dict[str, tuple[ActivationScales, ActivationScales]]:
    """By attention layer, what its keys and values are rounded to."""
    watch = _Attention(block)
    for run in block.runs:
        run_with(watch, run)
    found = {}
    for layer, both in watch.largest.items():
        keys, values = (inputs_of(form, Seen(num_tokens=1, max_abs=most)) for most in both)
        assert keys is not None
        assert values is not None
        found[layer] = (keys, values)
    return found
