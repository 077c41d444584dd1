"""Adafactor (Shazeer and Stern, arXiv 1804.04235, algorithm 4) on sharded matrices.

    α_t = max(ε₂, RMS θ) min(η, 1/√t)            β̂₂ = 1 - t^-0.8
    R ← β̂₂ R + (1-β̂₂) row means of G²           C ← β̂₂ C + (1-β̂₂) column means of G²
    V = R Cᵀ / mean R,  U = G / √V,  θ ← (1 - ηλ) θ - α_t U / max(1, RMS(U)/d)

The formulas and their ε are those of `torch.optim.Adafactor`, which takes no sharded parameter: its
norms must be of the whole matrix. Here every sum over a cut dimension is completed over the ranks
that share it; sums of all parameters travel together, three times a step.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from ridgeline.train.optimizers.shards import Group, Rounding, ShardedOptimizer, local, zeros_for

_BETA2_DECAY = -0.8
_LEAST_SCALE = 1e-3
"""ε₂ of the paper, section 6."""
_CLIP = 1.0
"""d of the paper, section 6."""


@dataclass(slots=True, kw_only=True)
class _Factors:
    """What one step keeps of one parameter; means of the whole parameter once completed."""

    gradient: Tensor
    epsilon: float
    rows: Tensor
    """Σ G² over the last dimension; unused for a vector."""
    columns: Tensor
    update: Tensor
    weight_squares: Tensor
    update_squares: Tensor


class Adafactor(ShardedOptimizer):
    """Adafactor with factored second moments of whole matrices, on any placement."""

    def __init__(
        self,
        groups: Iterable[Group],
        *,
        weight_decay: float = 0.0,
        rounding: Rounding | None = None,
    ) -> None:
        super().__init__(groups, {"weight_decay": weight_decay}, rounding)

    def tensors_kept(self, group: Group) -> int:
        """Sums of rows and columns alone."""
        del group
        return 0

    def update(self, group: Group, parameters: list[nn.Parameter], gradients: list[Tensor]) -> None:
        """One step of a group."""
        steps = [self._state(parameter) for parameter in parameters]
        kept = [self._sums(p, g) for p, g in zip(parameters, gradients, strict=True)]
        matrices = [index for index, p in enumerate(parameters) if p.ndim > 1]
        of_matrices = [parameters[index] for index in matrices]
        _complete(parameters, [factors.weight_squares for factors in kept], None)
        _complete(of_matrices, [kept[index].rows for index in matrices], -1)
        _complete(of_matrices, [kept[index].columns for index in matrices], -2)
        row_sums = []
        for parameter, factors, step in zip(parameters, kept, steps, strict=True):
            self._average(parameter, factors, step)
        for parameter in of_matrices:
            row_sums.append(local(self.state[parameter]["row_var"]).sum(dim=-2, keepdim=True))
        _complete(of_matrices, row_sums, -2)
        for index, row_sum in zip(matrices, row_sums, strict=True):
            self._factored(parameters[index], kept[index], row_sum)
        for parameter, factors in zip(parameters, kept, strict=True):
            factors.update_squares = factors.update.square().sum(dtype=_wide(parameter))
        _complete(parameters, [factors.update_squares for factors in kept], None)
        for parameter, factors, step in zip(parameters, kept, steps, strict=True):
            rms = math.sqrt(float(factors.weight_squares) / parameter.numel())
            size = max(_LEAST_SCALE, rms) * min(group["lr"], step**-0.5)
            clip = max(1.0, math.sqrt(float(factors.update_squares) / parameter.numel()) / _CLIP)
            with self.wide(group, parameter) as weight:
                weight.mul_(1.0 - group["lr"] * group["weight_decay"])
                weight.add_(factors.update, alpha=-size / clip)

    def _state(self, parameter: nn.Parameter) -> float:
        """Make the state where there is none; the number of this step, from 1."""
        state = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            if parameter.ndim > 1:
                state["row_var"] = _reduced_zeros(parameter, -1)
                state["col_var"] = _reduced_zeros(parameter, -2)
            else:
                state["variance"] = zeros_for(parameter)
        state["step"] += 1
        return float(state["step"])

    def _sums(self, parameter: nn.Parameter, gradient: Tensor) -> _Factors:
        """Local sums; `rows` and `columns` have one number for each local row and column."""
        squares = gradient.square()
        nothing = gradient.new_zeros(())
        matrix = parameter.ndim > 1
        return _Factors(
            gradient=gradient,
            epsilon=torch.finfo(parameter.dtype).eps,
            rows=squares.sum(dim=-1, keepdim=True) if matrix else nothing,
            columns=squares.sum(dim=-2, keepdim=True) if matrix else nothing,
            update=nothing,
            weight_squares=local(parameter).square().sum(dtype=_wide(parameter)),
            update_squares=nothing,
        )

    def _average(self, parameter: nn.Parameter, factors: _Factors, step: float) -> None:
        """Move the second moments; of a vector, also its update."""
        share = step**_BETA2_DECAY
        state = self.state[parameter]
        if parameter.ndim > 1:
            local(state["row_var"]).lerp_(factors.rows / parameter.shape[-1], share)
            local(state["col_var"]).lerp_(factors.columns / parameter.shape[-2], share)
            return
        variance = local(state["variance"]).lerp_(factors.gradient.square(), share)
        factors.update = variance.clamp(min=factors.epsilon**2).rsqrt() * factors.gradient

    def _factored(self, parameter: nn.Parameter, factors: _Factors, row_sum: Tensor) -> None:
        """The update of a matrix, from its rows, its columns and the sum of all rows."""
        state = self.state[parameter]
        mean = (row_sum / parameter.shape[-2]).clamp(min=factors.epsilon)
        variance = local(state["row_var"]) * local(state["col_var"]) / mean
        factors.update = variance.clamp_(min=factors.epsilon**2).rsqrt_() * factors.gradient


def _wide(parameter: Tensor) -> torch.dtype:
    """The dtype of sums over a whole parameter, at least fp32."""
    return torch.promote_types(parameter.dtype, torch.float32)


def _complete(parameters: Sequence[Tensor], sums: list[Tensor], dim: int | None) -> None:
    """Finish sums over a dimension of the parameters (None: over all), in place.

    Each travels over the mesh axes that cut that dimension; those of one axis travel together.
    """
    by_group: dict[dist.ProcessGroup, list[Tensor]] = defaultdict(list)
    for parameter, partial in zip(parameters, sums, strict=True):
        if not isinstance(parameter, DTensor):
            continue
        for axis, placement in enumerate(parameter.placements):
            if _cuts(placement, parameter.ndim, dim):
                by_group[parameter.device_mesh.get_group(axis)].append(partial)
    for group, members in by_group.items():
        whole = torch.cat([member.flatten() for member in members])
        dist.all_reduce(whole, group=group)
        for member, part in zip(members, whole.split([m.numel() for m in members]), strict=True):
            member.copy_(part.view_as(member))


def _cuts(placement: Placement, ndim: int, dim: int | None) -> bool:
    assert not isinstance(placement, Partial), "parameters are never partial sums"
    if not isinstance(placement, Shard | _StridedShard):
        return False
    return dim is None or placement.dim == ndim + dim


def _reduced_zeros(parameter: Tensor, dim: int) -> Tensor:
    """Zeros of the parameter's shape with 1 along `dim`, placed as the parameter otherwise."""
    weight = local(parameter)
    shape = list(weight.shape)
    shape[dim] = 1
    zeros = weight.new_zeros(shape)
    if not isinstance(parameter, DTensor):
        return zeros
    whole = list(parameter.shape)
    whole[dim] = 1
    placements = [
        Replicate() if _cuts(placement, parameter.ndim, dim) else placement
        for placement in parameter.placements
    ]
    strides = [1] * len(whole)
    for axis in reversed(range(len(whole) - 1)):
        strides[axis] = strides[axis + 1] * whole[axis + 1]
    return DTensor.from_local(
        zeros,
        parameter.device_mesh,
        placements,
        run_check=False,
        shape=torch.Size(whole),
        stride=tuple(strides),
    )
