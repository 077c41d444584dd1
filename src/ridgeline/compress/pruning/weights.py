"""One weight matrix pruned by the criterion that a scheme names.

magnitude   the smallest |W| go (Han et al., arXiv 1506.02626)
wanda       |Wᵢⱼ| · ‖xⱼ‖₂, compared within a row; nothing is changed in what stays (Sun et al.,
            arXiv 2306.11695, equation 1 and section 3)
taylor      (w · ∂L/∂w)², summed over calibration: the first term of the loss's Taylor expansion
            at w = 0, squared per batch (Molchanov et al., arXiv 1906.10771, equation 8). It
            takes a backward pass through the whole model, which must fit into memory
sparsegpt   with what stays repaired (`sparsegpt.py`)
random      by chance, drawn from the weight itself so that each call draws the same: the baseline
            of all criteria

Where the scheme names a block of outputs by inputs, its score is the mean of its weights' (of
magnitudes its L1 norm: Narang et al., arXiv 1711.02782, section 3), and the lowest blocks go whole.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from ridgeline.compress.pruning import sparsegpt
from ridgeline.compress.watching.statistics import (
    CalibrationStatistics,
    inverse_factor,
    output_error,
)
from ridgeline.errors import InputError
from ridgeline.kernels.masks import keep_blocks, keep_largest, keep_n_of_m, keep_share
from ridgeline.records.scheme import Pruning

Batch = TypeVar("Batch")
NEEDS = {
    "magnitude": frozenset[str](),
    "wanda": frozenset({"square_norm"}),
    "sparsegpt": frozenset({"hessian"}),
    "taylor": frozenset[str](),
    "random": frozenset[str](),
}
"""Fields of `CalibrationStatistics` that calibration has to gather, by criterion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What came of a weight."""

    weight: Tensor
    """[out, in] in the dtype that it had, zero where weights went."""
    mask: Tensor
    """Which weights stay, [out, in] bool."""
    error: float
    """‖(W - Ŵ) X‖² / ‖W X‖² over calibration where the Hessian is known, else over weights."""
    notices: tuple[str, ...] = ()


@torch.no_grad()
def prune(
    weight: Tensor,
    pruning: Pruning,
    seen: CalibrationStatistics | None = None,
    importance: Tensor | None = None,
) -> Pruned:
    """Set weights to zero.

    Args:
        weight: [out, in].
        pruning: `structure` is "weights". With one share over all layers, the layer's own
            (`ahead.shares_by_layer`).
        seen: What `NEEDS` names.
        importance: [out, in], with the criterion "taylor" (`importance_of`).

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
    criterion = pruning.criterion
    if NEEDS[criterion] and seen is not None and not seen.num_tokens:
        criterion, notices = "magnitude", ("calibration never reached it: pruned by magnitude",)
    match criterion:
        case "magnitude":
            mask = _mask(magnitudes_of(weight), pruning)
        case "wanda":
            assert seen is not None
            assert seen.square_norm is not None, "calibration was to gather square_norm"
            mask = _wanda_mask(weight, pruning, seen.square_norm)
        case "taylor":
            assert importance is not None, "`importance_of` goes through the whole model"
            mask = _mask(importance, pruning)
        case "random":
            mask = _mask(drawn(weight), pruning)
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
            mask = _wanda_mask(weight, pruning, diagonal)
            notices = (*notices, "pruned by Wanda's rule in place of SparseGPT's")
    # Not a product with the mask, which makes -0 of what was below zero.
    return _pruned(weight, weight.float().masked_fill(~mask, 0.0), mask, seen, notices)


def _pruned(
    weight: Tensor,
    result: Tensor,
    mask: Tensor,
    seen: CalibrationStatistics | None,
    notices: tuple[str, ...],
) -> Pruned:
    kept = result.to(weight.dtype)
    error = output_error(weight, kept, seen.hessian if seen is not None else None)
    return Pruned(weight=kept, mask=mask, error=error, notices=notices)


def magnitudes_of(weight: Tensor) -> Tensor:
    """The magnitudes |W| in float32."""
    return weight.detach().float().abs()


def _mask(scores: Tensor, pruning: Pruning) -> Tensor:
    """True where a weight stays; a share holds over the whole matrix."""
    if pruning.pattern is not None:
        return keep_n_of_m(scores, *pruning.pattern)
    if pruning.block is not None:
        return keep_blocks(scores, pruning.share, *pruning.block)
    return keep_share(scores, pruning.share)


def drawn(weight: Tensor) -> Tensor:
    """A random score for each weight, the same for the same weights."""
    seed = zlib.crc32(weight.detach().float().contiguous().cpu().numpy().tobytes())
    draw = torch.Generator().manual_seed(seed)
    return torch.rand(weight.shape, generator=draw).to(weight.device)


def _wanda_mask(weight: Tensor, pruning: Pruning, square_norm: Tensor) -> Tensor:
    """True where a weight stays; the share holds in each output row, or over all blocks."""
    scores = magnitudes_of(weight) * square_norm.float().sqrt()
    if pruning.pattern is not None:
        return keep_n_of_m(scores, *pruning.pattern)
    if pruning.block is not None:
        return keep_blocks(scores, pruning.share, *pruning.block)
    return keep_largest(scores, round(pruning.share * weight.shape[1]))


def importance_of(
    model: nn.Module,
    batches: Iterable[Batch],
    loss_of: Callable[[nn.Module, Batch], Tensor],
    names: Iterable[str],
) -> dict[str, Tensor]:
    """Σ over batches of (w · ∂L/∂w)² of the parameters named, each float32 of the weight's shape.

    Args:
        model: In memory, on one device; its gradients are dropped afterwards.
        batches: Of calibration; each gives one gradient.
        loss_of: A scalar.
        names: Of parameters of the model.

    Raises:
        InputError: There was no batch, or a loss is no number.
    """
    wanted = {name: model.get_parameter(name) for name in names}
    found = {name: torch.zeros(p.shape, device=p.device) for name, p in wanted.items()}
    count = 0
    for count, batch in enumerate(batches, start=1):
        loss = loss_of(model, batch)
        if not bool(loss.isfinite()):
            raise InputError(f"the loss of calibration batch {count} is {float(loss)}")
        gradients = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
        for (name, parameter), gradient in zip(wanted.items(), gradients, strict=True):
            if gradient is not None:
                found[name] += (parameter.detach().float() * gradient.float()).square()
    if not count:
        raise InputError("Taylor importance needs calibration text")
    return found
