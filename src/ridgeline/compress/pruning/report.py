"""What of a model is zero, and what is gone: counted in its files.

Two shares, which are easily confused: of the weights that pruning may touch (the matrices of the
blocks), and of all parameters, embeddings and norms included. A tied weight counts once, and a
weight in few bits where its level stands for zero. What was pruned whole is no zero: it is missing,
and counted against the model it came from.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path

from torch import Tensor

from ridgeline.checkpoints.compressed_tensors import WeightReader
from ridgeline.checkpoints.files import CheckpointFiles
from ridgeline.checkpoints.layers import matrices_of
from ridgeline.checkpoints.quantised import Quantised
from ridgeline.checkpoints.skeleton import ModelSkeleton
from ridgeline.errors import InputError
from ridgeline.records.compression import Zeros


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
        """The share of its weights that are zero."""
        return self.zeros / prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sparsity:
    """The zeros of a model, matrix by matrix."""

    layers: tuple[LayerZeros, ...]
    counts: Zeros
    """Over all of them."""
    removed: int = 0
    """Parameters that the model it came from had and this one has not."""

    @property
    def share_gone(self) -> float:
        """Zeros and what was pruned whole, over the parameters that there were."""
        return (self.counts.zeros + self.removed) / (self.counts.parameters + self.removed)


def sparsity(model: Path, before: Path | None = None) -> Sparsity:
    """Count the zeros of a model directory, a tensor in memory at a time.

    Args:
        model: Dense or compressed-tensors.
        before: What it was made from; None: nothing was pruned whole.

    Raises:
        InputError: A directory cannot be read.
    """
    skeleton = ModelSkeleton(Unpacked(model))
    turned = matrix_names(skeleton)
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
                    two_of_four=two_of_four(matrix),
                )
            )
    counts = Zeros(
        parameters=parameters,
        zeros=zeros,
        matrix_weights=sum(prod(layer.shape) for layer in layers),
        matrix_zeros=sum(layer.zeros for layer in layers),
        matrices=len(layers),
        two_of_four=sum(layer.two_of_four for layer in layers),
    )
    removed = 0
    if before is not None:
        source = ModelSkeleton(Unpacked(before))
        removed = sum(prod(source.checkpoint.shape(name)) for name in _stored(source)) - parameters
    return Sparsity(layers=tuple(layers), counts=counts, removed=removed)


def counted(model: Path) -> Zeros | None:
    """The counts alone; None where a model's files are not read block by block."""
    try:
        return sparsity(model).counts
    except InputError:
        return None


def two_of_four(matrix: Tensor) -> bool:
    """Whether of every four neighbours along the depth of [out, in] two at least are zero."""
    if matrix.shape[1] % 4:
        return False
    return int((matrix.unflatten(1, (-1, 4)) != 0).sum(dim=-1).max()) <= 2


class Unpacked(CheckpointFiles):
    """A directory, dense or compressed, as if its weights were dense."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._weights = WeightReader(directory)
        self.config = {k: v for k, v in self.config.items() if k != "quantization_config"}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the weights, packed ones by what they stand for."""
        return self._weights.names

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape that a weight has unpacked."""
        return self._weights.shape(name)

    def read(self, name: str) -> Tensor:
        """A weight with its numbers, unpacked."""
        found = self._weights.read(name)
        return found.dequantised() if isinstance(found, Quantised) else found


def _stored(skeleton: ModelSkeleton) -> list[str]:
    """Names of the tensors of all parameters; a tied one stands under one name there."""
    parameters = {name for name, _ in skeleton.model.named_parameters()}
    return [
        piece.source
        for target, pieces in skeleton.pieces.items()
        if target in parameters
        for piece in pieces
    ]


def matrix_names(skeleton: ModelSkeleton) -> dict[str, bool]:
    """Stored names of the matrices of all blocks, and whether they are stored as [in, out]."""
    return {
        matrix.piece.source: matrix.transposed
        for number in range(len(skeleton.blocks))
        for matrix in matrices_of(skeleton, number)
    }
