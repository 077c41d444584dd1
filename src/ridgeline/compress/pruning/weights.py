"""One weight matrix pruned by the criterion that a scheme names."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.compress.pruning import magnitude, sparsegpt, taylor, wanda
from ridgeline.compress.watching.hessian import inverse_factor
from ridgeline.compress.watching.seen import Seen
from ridgeline.errors import InputError
from ridgeline.records.scheme import Pruning

NEEDS = {
    "magnitude": frozenset[str](),
    "wanda": frozenset({"square_norm"}),
    "sparsegpt": frozenset({"hessian"}),
    "taylor": frozenset[str](),
}
"""Fields of `Seen` that calibration has to gather, by criterion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What came of a weight."""

    weight: Tensor
    """[out, in] in the dtype that it had, zero where weights went."""
    mask: Tensor
    """[out, in] bool: True stays."""
    error: float
    """‖(W - Ŵ) X‖² / ‖W X‖² over calibration where the Hessian is known, else over weights."""
    notices: tuple[str, ...] = ()


@torch.no_grad()
def prune(
    weight: Tensor, pruning: Pruning, seen: Seen | None = None, importance: Tensor | None = None
) -> Pruned:
    """Set weights to zero.

    Args:
        weight: [out, in].
        pruning: `structure` is "weights". With one share over all layers, the layer's own
            (`global_share.shares_by_layer`).
        seen: What `NEEDS` names.
        importance: [out, in], with the criterion "taylor" (`taylor.importance`).

    Raises:
        InputError: The weight is not finite, or its shape does not go with the pattern.
    """
    assert pruning.structure == "weights"
    if not bool(weight.isfinite().all()):
        raise InputError("a weight is infinite or NaN; it cannot be pruned")
    if not 0.0 <= pruning.share < 1.0:
        raise InputError(
            f"a share of {pruning.share:g} of the weights; it must be from 0 to below 1"
        )
    notices: tuple[str, ...] = ()
    match pruning.criterion:
        case "magnitude":
            mask = magnitude.mask(weight, pruning)
        case "wanda":
            assert seen is not None
            mask = wanda.mask(weight, pruning, seen)
        case "taylor":
            assert importance is not None, "taylor.importance goes through the whole model"
            mask = taylor.mask(importance, pruning)
        case "sparsegpt":
            assert seen is not None
            assert seen.hessian is not None, "calibration was to gather the Hessian"
            factor, notices = inverse_factor(seen.hessian)
            if factor is not None:
                # Activations never seen cost nothing: their weights are the first to go.
                used = weight.float() * (seen.hessian.diagonal() > 0)
                repaired = sparsegpt.prune(used, pruning, factor)
                return _pruned(weight, repaired, repaired != 0, seen, notices)
            # The Hessian's diagonal is Wanda's norm but for a factor that all columns share.
            diagonal = seen.hessian.diagonal().nan_to_num(0.0, 0.0, 0.0).clamp(min=0.0)
            mask = wanda.mask(weight, pruning, Seen(num_tokens=1, square_norm=diagonal))
            notices = (*notices, "pruned by Wanda's rule in place of SparseGPT's")
    # Not a product with the mask, which makes -0 of what was below zero.
    return _pruned(weight, weight.float().masked_fill(~mask, 0.0), mask, seen, notices)


def _pruned(
    weight: Tensor, result: Tensor, mask: Tensor, seen: Seen | None, notices: tuple[str, ...]
) -> Pruned:
    kept = result.to(weight.dtype)
    error = output_error(weight, kept, seen.hessian if seen is not None else None)
    return Pruned(weight=kept, mask=mask, error=error, notices=notices)


def output_error(weight: Tensor, result: Tensor, hessian: Tensor | None) -> float:
    """tr((W - Ŵ) H (W - Ŵ)ᵀ) / tr(W H Wᵀ), the share of the output's energy that is lost."""
    before, difference = weight.float(), weight.float() - result.float()
    if hessian is None or not bool(hessian.isfinite().all()):
        lost, whole = float(difference.square().sum()), float(before.square().sum())
    else:
        lost = float(((difference @ hessian) * difference).sum())
        whole = float(((before @ hessian) * before).sum())
    return lost / whole if whole > 0.0 else 0.0
