"""Weights that the loss would hardly miss go: (w · ∂L/∂w)², summed over calibration.

Molchanov et al., "Importance estimation for neural network pruning", arXiv 1906.10771, equation 8:
the first term of the loss's Taylor expansion at w = 0, squared per batch. It takes a backward pass
through the whole model, which therefore must fit into memory with its gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from torch import Tensor, nn

from ridgeline.errors import InputError
from ridgeline.kernels.masks import keep_n_of_m, keep_share
from ridgeline.records.scheme import Pruning

Batch = TypeVar("Batch")


def importance(
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


def mask(found: Tensor, pruning: Pruning) -> Tensor:
    """True where a weight stays, from its importance; a share holds over the whole matrix."""
    if pruning.pattern is not None:
        return keep_n_of_m(found, *pruning.pattern)
    return keep_share(found, pruning.share)
