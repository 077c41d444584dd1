"""The tensors of one step: what `engine/` hands to a model."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ridgeline.kernels.paged_attention import PackedTokens


@dataclass(frozen=True, slots=True)
class Batch:
    """Packed tokens of all slices, in the step's order; T in all."""

    tokens: Tensor
    """[T] int64"""
    positions: Tensor
    """[T] int64"""
    packed: PackedTokens
    logit_rows: Tensor
    """[R] int64: the rows whose logits are wanted (every draft's too)."""
    adapters: Tensor | None = None
    """[T] int64 index of each token's LoRA adapter, 0: none; None: no token has one."""
