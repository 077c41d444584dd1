"""The weight matrices of a block: linear layers, GPT-2's transposed ones, and experts' slices.

A matrix is a view: what is written into it, the model computes with.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from ridgeline.compress.streaming.skeleton import Piece, Skeleton
from ridgeline.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """One weight matrix [out, in]."""

    name: str
    """Of the layer as it is saved, without ".weight"."""
    parameter: nn.Parameter
    """That it is all or a part of."""
    piece: Piece
    transposed: bool = False
    """Stored as [in, out] (GPT-2)."""
    bias: nn.Parameter | None = None
    kept: bool = False
    """A gate or router: takes scales over, is never rounded."""

    @property
    def weight(self) -> Tensor:
        """[out, in], a view."""
        stored = self.piece.of(self.parameter.data)
        return stored.T if self.transposed else stored

    @property
    def can_be_saved_packed(self) -> bool:
        """Whether compressed-tensors has a form for it (experts are read into one tensor)."""
        return not self.transposed

    @property
    def slice_pointer(self) -> int:
        """Where the 2-D weight that a product takes begins: this matrix, or more with it."""
        parameter = self.parameter.data
        return (parameter if self.piece.expert is None else parameter[self.piece.expert]).data_ptr()


def matrices_of(skeleton: Skeleton, block: int) -> tuple[Matrix, ...]:
    """In the order of their definition; of a loaded block.

    Linear layers of one output (Qwen's shared_expert_gate) and matrices of other modules (routers)
    are `kept`.

    Raises:
        InputError: Experts are stored in one tensor.
    """
    prefix = skeleton.block_prefix(block)
    return matrices_under(skeleton, skeleton.blocks[block], prefix)


def matrices_under(skeleton: Skeleton, root: nn.Module, prefix: str) -> tuple[Matrix, ...]:
    """The same of any module whose parameters' names begin with `prefix`."""
    from torch.nn.modules.conv import _ConvNd
    from transformers.pytorch_utils import Conv1D

    found: list[Matrix] = []
    for path, module in root.named_modules():
        inner = f"{prefix}{path}." if path else prefix
        for leaf, parameter in module.named_parameters(recurse=False):
            pieces = skeleton.pieces.get(inner + leaf, [])
            linear = isinstance(module, (nn.Linear, Conv1D)) and leaf == "weight"
            experts = parameter.ndim == 3 and not isinstance(module, _ConvNd)
            if experts:
                _require_single_experts(skeleton, inner + leaf, pieces)
            elif parameter.ndim != 2:
                continue
            for piece in pieces:
                matrix = Matrix(
                    name=piece.saved_name.removesuffix(".weight"),
                    parameter=parameter,
                    piece=piece,
                    transposed=isinstance(module, Conv1D),
                    bias=getattr(module, "bias", None) if linear else None,
                    kept=not experts and not (linear and min(parameter.shape) > 1),
                )
                found.append(matrix)
    return tuple(found)


def _require_single_experts(skeleton: Skeleton, name: str, pieces: list[Piece]) -> None:
    if any(piece.expert is None for piece in pieces):
        raise InputError(
            f"{skeleton.checkpoint.directory}: {name} holds all experts in one tensor, which is "
            "not compressed here; only models that store them one by one are (Mixtral, Qwen)"
        )
