"""How keys and values are kept: as the model computes them, or in 8 bits with scales."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

KvDtype = Literal["model", "fp8", "int8"]
KvShape = tuple[int, int]
"""Of one layer: key-value heads, head size."""
STORED = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
SCALE_BYTES = 4


@dataclass(frozen=True, slots=True)
class FixedScales:
    """Of one layer, from calibration: [KV] float32 each."""

    keys: Tensor
    values: Tensor

    def same(self, other: FixedScales) -> bool:
        """Whether levels mean the same number."""
        return torch.equal(self.keys, other.keys) and torch.equal(self.values, other.values)


@dataclass(frozen=True, slots=True)
class KvForm:
    """Of all layers."""

    dtype: torch.dtype
    fixed: tuple[FixedScales, ...] = ()
    """By layer; empty: in 8 bits, every token and head has a scale of its own."""

    @property
    def scaled_by_token(self) -> bool:
        """Whether scales are stored beside the keys and values."""
        return self.dtype in STORED.values() and not self.fixed

    @property
    def name(self) -> str:
        """As a ledger says it."""
        name = str(self.dtype).removeprefix("torch.")
        if self.fixed:
            return f"{name}, scales of the checkpoint"
        return f"{name}, a scale per token and head" if self.scaled_by_token else name

    def bytes_per_token(self, shapes: Sequence[KvShape]) -> int:
        """Keys and values of all layers, and the scales beside them."""
        scale = SCALE_BYTES if self.scaled_by_token else 0
        return sum(2 * heads * (size * self.dtype.itemsize + scale) for heads, size in shapes)


def form_of(asked: KvDtype, model_dtype: torch.dtype, stored: KvForm | None = None) -> KvForm:
    """What `--kv-dtype` means for a model.

    Args:
        asked: `model`: as the checkpoint says. int8 and fp8: with a scale per token and head, also
            where the checkpoint has scales, since those may be of the other type.
        model_dtype: In which keys and values are computed.
        stored: What the checkpoint says of them, if it does.
    """
    if asked != "model":
        return KvForm(STORED[asked])
    return stored or KvForm(model_dtype)
