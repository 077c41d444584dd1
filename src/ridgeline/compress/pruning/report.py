"""What of a model is zero, and what is gone: counted in its files.

Two shares, which are easily confused: of the weights that pruning may touch (the matrices of the
blocks), and of all parameters, embeddings and norms included. A tied weight counts once. What was
taken out is no zero: it is missing, and counted against the model it came from.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path

from torch import Tensor

from ridgeline.compress.streaming.checkpoint import Checkpoint
from ridgeline.compress.streaming.matrices import matrices_of
from ridgeline.compress.streaming.skeleton import Skeleton


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerZeros:
    """One matrix of a block."""

    name: str
    shape: tuple[int, ...]
    zeros: int
    two_of_four: bool
    """No four neighbours along the depth have more than two weights that are not zero."""

    @property
    def share(self) -> float:
        """Of its weights that are zero."""
        return self.zeros / prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sparsity:
    """Of a model."""

    layers: tuple[LayerZeros, ...]
    parameters: int
    """All of them, tied ones once."""
    zeros: int
    """Of all parameters."""
    removed: int = 0
    """Parameters that the model it came from had and this one has not."""

    @property
    def prunable(self) -> int:
        """Weights of the matrices of the blocks."""
        return sum(prod(layer.shape) for layer in self.layers)

    @property
    def share_of_prunable(self) -> float:
        """Zeros in the matrices of the blocks, over their weights."""
        return sum(layer.zeros for layer in self.layers) / self.prunable

    @property
    def share_of_all(self) -> float:
        """Zeros over all parameters that are left."""
        return self.zeros / self.parameters

    @property
    def share_gone(self) -> float:
        """Zeros and what was taken out, over the parameters that there were."""
        return (self.zeros + self.removed) / (self.parameters + self.removed)


def sparsity(model: Path, before: Path | None = None) -> Sparsity:
    """Count the zeros of a model directory, a tensor in memory at a time.

    Args:
        model: With weights as they are (not quantised).
        before: What it was made from; None: nothing was taken out.

    Raises:
        InputError: A directory cannot be read, or is quantised.
    """
    skeleton = Skeleton(Checkpoint(model))
    turned = _matrices(skeleton)
    layers: list[LayerZeros] = []
    parameters = zeros = 0
    for name in _stored(skeleton):
        tensor = skeleton.checkpoint.read(name)
        found = int((tensor == 0).sum())
        parameters += tensor.numel()
        zeros += found
        if name in turned:
            matrix = tensor.T if turned[name] else tensor
            layers.append(
                LayerZeros(
                    name=name.removesuffix(".weight"),
                    shape=tuple(matrix.shape),
                    zeros=found,
                    two_of_four=_two_of_four(matrix),
                )
            )
    removed = 0
    if before is not None:
        source = Skeleton(Checkpoint(before))
        removed = sum(prod(source.checkpoint.shape(name)) for name in _stored(source)) - parameters
    return Sparsity(layers=tuple(layers), parameters=parameters, zeros=zeros, removed=removed)


def _stored(skeleton: Skeleton) -> list[str]:
    """Names of the tensors of all parameters; a tied one stands under one name there."""
    parameters = {name for name, _ in skeleton.model.named_parameters()}
    return [
        piece.source
        for target, pieces in skeleton.pieces.items()
        if target in parameters
        for piece in pieces
    ]


def _matrices(skeleton: Skeleton) -> dict[str, bool]:
    """Stored names of the matrices of all blocks, and whether they are stored as [in, out]."""
    return {
        matrix.piece.source: matrix.transposed
        for number in range(len(skeleton.blocks))
        for matrix in matrices_of(skeleton, number)
    }


def _two_of_four(matrix: Tensor) -> bool:
    if matrix.shape[1] % 4:
        return False
    return int((matrix.unflatten(1, (-1, 4)) != 0).sum(dim=-1).max()) <= 2
