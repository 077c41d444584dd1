"""Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) on sharded matrices.

    M ← μ M + (1-μ) G
    U = NewtonSchulz(G + μ (M - G))        orthogonal, by torch's own iteration
    W ← (1 - ηλ) W - η s U

`s` is √max(1, rows/columns) (Jordan), or 0.2 √max(rows, columns), which gives updates of AdamW's
size, so that one learning rate serves both kinds of parameter (Liu et al., arXiv 2502.16982,
eq. 4).
The iteration needs whole matrices: see `whole_matrices.py`. It works in bf16, and so do the
exchanges, which therefore lose nothing. All that is no matrix inside a block has AdamW. Stacks of
matrices (experts) are treated matrix by matrix.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim._muon import (
    DEFAULT_A,
    DEFAULT_B,
    DEFAULT_C,
    DEFAULT_NS_STEPS,
    EPS,
    _zeropower_via_newtonschulz,
)

from ridgeline.train.optimizers.adamw import adamw_update
from ridgeline.train.optimizers.shards import Group, Rounding, ShardedOptimizer, local, zeros_for
from ridgeline.train.optimizers.whole_matrices import WholeMatrices

_ADAMW_SIZE = 0.2


class Muon(ShardedOptimizer):
    """Muon for groups with `orthogonal`, AdamW for the others.

    Args:
        groups: With `lr`, `orthogonal`, and `weight_decay` where it differs.
        momentum: Of the orthogonal groups.
        betas: Of the others.
        epsilon: Of the others.
        weight_decay: Default of the groups.
        match_adamw: Scale updates to AdamW's size.
        rounding: How updates of bf16 matrices are rounded; None: to nearest.
    """

    def __init__(
        self,
        groups: Iterable[Group],
        *,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.95),
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        match_adamw: bool = False,
        rounding: Rounding | None = None,
    ) -> None:
        settings = {
            "momentum": momentum,
            "betas": betas,
            "eps": epsilon,
            "weight_decay": weight_decay,
        }
        self._matrices = WholeMatrices()
        self._match_adamw = match_adamw
        super().__init__(groups, settings, rounding)

    def tensors_kept(self, group: Group) -> int:
        """One moment of what is made orthogonal, AdamW's two of the rest."""
        return 1 if group["orthogonal"] else 2

    def update(self, group: Group, parameters: list[nn.Parameter], gradients: list[Tensor]) -> None:
        """One step of a group."""
        if not group["orthogonal"]:
            adamw_update(self, group, parameters, gradients)
            return
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = zeros_for(parameter)
        momentum = group["momentum"]
        buffers = [local(self.state[p]["momentum_buffer"]) for p in parameters]
        torch._foreach_lerp_(buffers, gradients, 1.0 - momentum)
        directions = torch._foreach_lerp(gradients, buffers, momentum)
        updates = self._matrices.apply(
            parameters, [direction.bfloat16() for direction in directions], orthogonalised
        )
        for parameter, update in zip(parameters, updates, strict=True):
            with self.wide(group, parameter) as weight:
                weight.mul_(1.0 - group["lr"] * group["weight_decay"])
                weight.add_(update, alpha=-group["lr"] * self._scale(parameter.shape))

    def _scale(self, shape: torch.Size) -> float:
        rows, columns = shape[-2:]
        if self._match_adamw:
            return _ADAMW_SIZE * math.sqrt(max(rows, columns))
        return math.sqrt(max(1.0, rows / columns))


def orthogonalised(matrices: Tensor) -> Tensor:
    """Nearly U Vᵀ of a matrix U S Vᵀ, or of each of a stack of them."""
    if matrices.ndim > 2:
        return torch.stack([orthogonalised(matrix) for matrix in matrices])
    coefficients = (DEFAULT_A, DEFAULT_B, DEFAULT_C)
    return _zeropower_via_newtonschulz(matrices, coefficients, DEFAULT_NS_STEPS, EPS)
