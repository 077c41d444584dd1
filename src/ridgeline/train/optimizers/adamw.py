"""AdamW (Loshchilov and Hutter, arXiv 1711.05101, algorithm 2), by torch's fused kernel.

With 8-bit moments (Dettmers et al., arXiv 2110.02861) and with bf16 weights that are rounded by
chance, torchao's update is used, one parameter at a time: its fp32 copies are of one parameter.
Moments of fewer than 4096 local elements, or not of whole blocks of 256, stay wide, as in torchao.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.adam import adam

from ridgeline.errors import MissingExtra
from ridgeline.train.optimizers.shards import (
    Group,
    Rounding,
    ShardedOptimizer,
    local,
    zeros_for,
)

_BLOCK = 256
_LEAST_QUANTISED = 4096
_FUSED_ON = ("cpu", "cuda")


class AdamW(ShardedOptimizer):
    """AdamW on any placement of the parameters.

    Args:
        groups: With `lr`, and `weight_decay` where it differs.
        betas: Decay of the two moments.
        epsilon: Added to the root of the second.
        weight_decay: Default of the groups.
        rounding: How updates of bf16 weights are rounded; None: to nearest.
        eight_bit: Keep the moments in 8 bits.
    """

    def __init__(
        self,
        groups: Iterable[Group],
        *,
        betas: tuple[float, float] = (0.9, 0.95),
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        rounding: Rounding | None = None,
        eight_bit: bool = False,
    ) -> None:
        self._eight_bit = eight_bit
        settings = {"betas": betas, "eps": epsilon, "weight_decay": weight_decay}
        super().__init__(groups, settings, rounding)

    def tensors_kept(self, group: Group) -> int:
        """Two moments; of 8-bit ones none is like its parameter."""
        del group
        return 0 if self._eight_bit else 2

    def update(self, group: Group, parameters: list[nn.Parameter], gradients: list[Tensor]) -> None:
        """One step of a group."""
        if self._eight_bit or self._rounding is not None:
            self._update_one_by_one(group, parameters, gradients)
        else:
            adamw_update(self, group, parameters, gradients)

    def _update_one_by_one(
        self, group: Group, parameters: list[nn.Parameter], gradients: list[Tensor]
    ) -> None:
        rule = _torchao_rule(gradients[0].device)
        rate = torch.tensor(group["lr"], dtype=torch.float32)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            state = self.state[parameter]
            if not state:
                state["step"] = torch.tensor(0.0)
                for name, signed in (("exp_avg", True), ("exp_avg_sq", False)):
                    quantised = _zeros_8bit(parameter, signed=signed) if self._eight_bit else None
                    state[name] = zeros_for(parameter) if quantised is None else quantised
            state["step"] += 1
            with self.wide(group, parameter) as weight:
                rule(
                    weight,
                    gradient,
                    state["step"],
                    local(state["exp_avg"]),
                    local(state["exp_avg_sq"]),
                    None,
                    rate,
                    *group["betas"],
                    group["weight_decay"],
                    group["eps"],
                    True,
                    False,
                )


def adamw_update(
    optimizer: torch.optim.Optimizer,
    group: Group,
    parameters: list[nn.Parameter],
    gradients: list[Tensor],
) -> None:
    """AdamW of torch on local shards, fused where the device has the kernel."""
    weights = [local(parameter) for parameter in parameters]
    fused = all(weight.device.type in _FUSED_ON for weight in weights)
    states = []
    for parameter, weight in zip(parameters, weights, strict=True):
        state = optimizer.state[parameter]
        if not state:
            state["step"] = torch.zeros((), device=weight.device if fused else "cpu")
            state["exp_avg"] = zeros_for(parameter)
            state["exp_avg_sq"] = zeros_for(parameter)
        states.append(state)
    adam(
        weights,
        gradients,
        [local(state["exp_avg"]) for state in states],
        [local(state["exp_avg_sq"]) for state in states],
        [],
        [state["step"] for state in states],
        fused=fused,
        foreach=not fused,
        decoupled_weight_decay=True,
        amsgrad=False,
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=False,
    )


def _torchao_rule(device: torch.device):  # type: ignore[no-untyped-def]  # noqa: ANN202
    """Compiled on CUDA, as torchao runs it; on the host compiling costs more than it gains."""
    try:
        from torchao.optim.adam import single_param_adam
    except ImportError:
        raise MissingExtra("torchao", "train") from None
    if device.type != "cuda":
        return single_param_adam
    return torch.compile(single_param_adam, fullgraph=True, dynamic=False)


def _zeros_8bit(parameter: Tensor, *, signed: bool) -> Tensor | None:
    """A quantised moment, or None where it is too small or not of whole blocks."""
    from torchao.optim.subclass_8bit import OptimState8bit

    weight = local(parameter)
    if weight.numel() < _LEAST_QUANTISED or weight.numel() % _BLOCK:
        return None
    moment = OptimState8bit.zeros(weight.shape, signed, _BLOCK, weight.device, dtype=weight.dtype)
    if not isinstance(parameter, DTensor):
        return moment
    return DTensor.from_local(
        moment,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    ).to(weight.device)
