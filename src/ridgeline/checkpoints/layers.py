"""Which modules are layers: linear ones, GPT-2's transposed ones, and experts' slices.

A `Matrix` is a view: what is written into it, the model computes with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.checkpoints.experts import are_turned, holds_experts
from ridgeline.checkpoints.skeleton import ModelSkeleton, StoredPiece


def is_transposed(module: nn.Module) -> bool:
    """Whether this is transformers' Conv1D: GPT-2's linear layer, which keeps [in, out]."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nx") and hasattr(module, "nf")


def is_linear(module: nn.Module) -> bool:
    """Whether this multiplies by one matrix: `nn.Linear`, a subclass of it, or GPT-2's."""
    return isinstance(module, nn.Linear) or is_transposed(module)


def features(module: Any) -> tuple[int, int]:
    """The numbers of inputs and outputs of anything that multiplies by a matrix.

    Raises:
        AttributeError: It is no linear layer.
    """
    if hasattr(module, "nx") and hasattr(module, "nf"):
        return int(module.nx), int(module.nf)
    return int(module.in_features), int(module.out_features)


def weight_of(module: Any) -> Tensor:
    """The weight [out, in] of a linear layer, detached, however it is kept."""
    weight: Tensor = module.weight.detach()
    return weight.T if is_transposed(module) else weight


def place_module(model: nn.Module, name: str, module: nn.Module) -> None:
    """Put a module where the model has one of that name."""
    path, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(path), leaf, module)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """One weight matrix [out, in]."""

    name: str
    """The layer's name as it is saved, without ".weight"."""
    parameter: nn.Parameter
    """The parameter that it is all or a part of."""
    piece: StoredPiece
    transposed: bool = False
    """The parameter has it as [in, out] (GPT-2, some families' experts)."""
    bias: nn.Parameter | None = None
    kept: bool = False
    """It is a gate or router, which takes scales over and is never quantised."""

    @property
    def weight(self) -> Tensor:
        """The weight [out, in], a view."""
        stored = self.piece.of(self.parameter.detach())
        return stored.T if self.transposed else stored

    @property
    def can_be_saved_packed(self) -> bool:
        """Whether compressed-tensors has a form for it, as it is saved."""
        return not self.transposed or self.piece.turned

    def seen_in(self, stored: Tensor) -> Tensor:
        """The matrix [out, in], a view of its tensor in the files."""
        return stored if self.transposed == self.piece.transposed else stored.T

    @property
    def slice_pointer(self) -> int:
        """Where the 2-D weight of its matmul begins in memory: this matrix, or more with it."""
        parameter = self.parameter.data
        return (parameter if self.piece.expert is None else parameter[self.piece.expert]).data_ptr()


def matrices_of(skeleton: ModelSkeleton, block: int) -> tuple[Matrix, ...]:
    """The matrices of a loaded block, in the order of their definition.

    Linear layers of one output (Qwen's shared_expert_gate), routers, and matrices of other modules
    are `kept`.
    """
    prefix = skeleton.block_prefix(block)
    return matrices_under(skeleton, skeleton.blocks[block], prefix)


def matrices_under(skeleton: ModelSkeleton, root: nn.Module, prefix: str) -> tuple[Matrix, ...]:
    """The matrices of any module whose parameters' names begin with `prefix`."""
    from torch.nn.modules.conv import _ConvNd

    found: list[Matrix] = []
    counts = _numbers_of_experts(skeleton.model.config)
    for path, module in root.named_modules():
        inner = f"{prefix}{path}." if path else prefix
        for leaf, parameter in module.named_parameters(recurse=False):
            pieces = skeleton.pieces.get(inner + leaf, [])
            linear = is_linear(module) and leaf == "weight"
            experts = parameter.ndim == 3 and (len(parameter) in counts or holds_experts(module))
            if isinstance(module, _ConvNd) or not (experts or parameter.ndim == 2):
                continue
            router = linear and len(parameter) in counts and _is_named_as_router(path)
            for piece in pieces:
                matrix = Matrix(
                    name=piece.saved_name.removesuffix(".weight"),
                    parameter=parameter,
                    piece=piece,
                    transposed=are_turned(module) if experts else is_transposed(module),
                    bias=getattr(module, "bias", None) if linear else None,
                    kept=router or not (experts or (linear and min(parameter.shape) > 1)),
                )
                found.append(matrix)
    return tuple(found)


def stored_dtypes(skeleton: ModelSkeleton, matrices: tuple[Matrix, ...]) -> dict[str, torch.dtype]:
    """The dtype that each matrix is stored in, by its name."""
    return {matrix.name: skeleton.checkpoint.dtype(matrix.piece.source) for matrix in matrices}


EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""The names under which configurations of transformers say how many experts a layer has."""
ROUTERS = frozenset({"gate", "router", "wg"})
"""What modules are called that choose experts; GLUs call a layer so, too, which is wider."""


def _numbers_of_experts(config: Any) -> frozenset[int]:
    found = [getattr(config, name, None) for name in EXPERTS]
    return frozenset(number for number in found if isinstance(number, int) and number > 1)


def _is_named_as_router(path: str) -> bool:
    """Whether a layer of this name may choose experts: `mlp.gate`, `router.layer`."""
    return not ROUTERS.isdisjoint(path.split(".")[-2:])
