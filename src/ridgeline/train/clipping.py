"""One norm over gradients that lie on several meshes, and clipping by it.

`torch.nn.utils.clip_grad_norm_` stacks norms, which DTensors of different meshes do not allow, and
knows nothing of pipeline stages. Here each rank sums the squares of its own elements, each divided
by how many ranks hold a copy of it, and one all-reduce over all ranks gives the square of the norm
(Megatron-LM counts the same way, leaving copies out). Ranks with the same gradient then scale it
by the same factor.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate

from ridgeline.train.ranks import Ranks


def clip_gradients(
    parameters: Iterable[nn.Parameter], limit: float, ranks: Ranks, *, alone: bool = False
) -> float:
    """Scale all gradients so that their common norm is at most `limit`; 0 clips nothing.

    Every rank must call it. Equals `torch.nn.utils.clip_grad_norm_` of one process.

    Args:
        parameters: This rank's. What has `counted_elsewhere` (a head that is the embedding of
            another pipeline stage) is scaled and not counted.
        limit: The largest norm that is left as it is.
        ranks: This process's place.
        alone: This rank's whole gradients are its own (local SGD); no other rank is asked.

    Returns:
        The norm before clipping.
    """
    kept = [one for one in parameters if one.grad is not None]
    counted = [one.grad for one in kept if not getattr(one, "counted_elsewhere", False)]
    norm = gradient_norm(counted, None if alone else ranks)
    if limit > 0.0:
        # The same small number as torch's: a norm of 0 divides nothing.
        factor = min(1.0, limit / (norm + 1e-6))
        if factor < 1.0:
            torch._foreach_mul_([_local(one.grad) for one in kept], factor)
    return norm


def gradient_norm(gradients: Iterable[Tensor], ranks: Ranks | None) -> float:
    """The L2 norm of all ranks' gradients together, each element counted once.

    Without `ranks`, of this one's alone.
    """
    by_copies: dict[int, list[Tensor]] = {}
    for gradient in gradients:
        local = _local(gradient)
        if local.numel():
            copies = 1 if ranks is None else _copies(gradient, ranks)
            by_copies.setdefault(copies, []).append(local)
    device = torch.device("cpu") if ranks is None else ranks.device
    total = torch.zeros((), dtype=torch.float64, device=device)
    for copies, locals_ in by_copies.items():
        norms = torch._foreach_norm(locals_, 2, dtype=torch.float32)
        squares = torch.stack([norm.to(device, torch.float64) for norm in norms]).square()
        total += squares.sum() / copies
    if ranks is not None and ranks.world > 1:
        dist.all_reduce(total)
    return float(total.sqrt())


def _copies(gradient: Tensor, ranks: Ranks) -> int:
    """Ranks of the world that hold these same elements.

    A pipeline stage is held by world / pp ranks. What a DTensor does not spread over a mesh it
    repeats there; a plain tensor is repeated on all of the stage's ranks.
    """
    stage = ranks.world // ranks.size("pp")
    if not isinstance(gradient, DTensor):
        return stage
    spread = 1
    for axis, placement in enumerate(gradient.placements):
        assert not isinstance(placement, Partial), "backward completes sums"
        if not isinstance(placement, Replicate):
            spread *= gradient.device_mesh.size(axis)
    return stage // spread


def _local(gradient: Tensor) -> Tensor:
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient
