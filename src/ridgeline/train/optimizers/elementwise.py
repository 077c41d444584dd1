"""Optimizers that see each weight by itself: Lion and SGD with momentum.

Lion (Chen et al., "Symbolic discovery of optimization algorithms", arXiv 2302.06675, alg. 2).

    c = β₁ m + (1-β₁) g
    θ ← θ - η (sign c + λ θ)
    m ← β₂ m + (1-β₂) g

One moment instead of two. The paper takes a learning rate 3 to 10 times smaller than AdamW's and a
weight decay as many times larger (section 5).

SGD with momentum (Polyak 1964, as torch has it) and weight decay apart from the gradient:

    m ← μ m + g
    θ ← (1 - ηλ) θ - η m

torch's `SGD` adds λθ to the gradient; here decay is decoupled as in every other rule of this
folder, so that one `weight_decay` means one thing (Loshchilov and Hutter, arXiv
1711.05101, algorithm 1).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ridgeline.train.optimizers.shards import Group, Rounding, ShardedOptimizer, local, zeros_for


class Lion(ShardedOptimizer):
    """Lion on any placement of the parameters."""

    def __init__(
        self,
        groups: Iterable[Group],
        *,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        rounding: Rounding | None = None,
    ) -> None:
        super().__init__(groups, {"betas": betas, "weight_decay": weight_decay}, rounding)

    def tensors_kept(self, group: Group) -> int:
        """One moment of each parameter."""
        del group
        return 1

    def update(self, group: Group, parameters: list[nn.Parameter], gradients: list[Tensor]) -> None:
        """One step of a group, all its tensors in one kernel per operation."""
        beta1, beta2 = group["betas"]
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter]["exp_avg"] = zeros_for(parameter)
        moments = [local(self.state[parameter]["exp_avg"]) for parameter in parameters]
        for chosen, weights in self.batches(group, parameters):
            direction = torch._foreach_lerp(moments[chosen], gradients[chosen], 1.0 - beta1)
            torch._foreach_sign_(direction)
            if group["weight_decay"]:
                torch._foreach_mul_(weights, 1.0 - group["lr"] * group["weight_decay"])
            _add(weights, direction, -group["lr"])
        torch._foreach_lerp_(moments, gradients, 1.0 - beta2)


def _add(weights: list[Tensor], updates: list[Tensor], rate: float) -> None:
    torch._foreach_add_(
        weights,
        [update.to(w.dtype) for w, update in zip(weights, updates, strict=True)],
        alpha=rate,
    )


class Sgd(ShardedOptimizer):
    """SGD with momentum on any placement of the parameters."""

    def __init__(
        self,
        groups: Iterable[Group],
        *,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        rounding: Rounding | None = None,
    ) -> None:
        super().__init__(groups, {"momentum": momentum, "weight_decay": weight_decay}, rounding)

    def tensors_kept(self, group: Group) -> int:
        """One moment, where there is momentum."""
        return int(bool(group["momentum"]))

    def update(self, group: Group, parameters: list[nn.Parameter], gradients: list[Tensor]) -> None:
        """One step of a group."""
        directions = gradients
        if group["momentum"]:
            for parameter in parameters:
                if not self.state[parameter]:
                    self.state[parameter]["momentum_buffer"] = zeros_for(parameter)
            directions = [local(self.state[p]["momentum_buffer"]) for p in parameters]
            torch._foreach_mul_(directions, group["momentum"])
            torch._foreach_add_(directions, gradients)
        for chosen, weights in self.batches(group, parameters):
            if group["weight_decay"]:
                torch._foreach_mul_(weights, 1.0 - group["lr"] * group["weight_decay"])
            wide = [d.to(w.dtype) for d, w in zip(directions[chosen], weights, strict=True)]
            torch._foreach_add_(weights, wide, alpha=-group["lr"])
