"""What of a model is zero, and what is gone: counted in its files.

Two shares, which are easily confused: of the weights that pruning may touch (the matrices of the
blocks), and of all parameters, embeddings and norms included. A tied weight counts once, and a
weight in few bits where its level stands for zero. What was pruned whole is no zero: it is missing,
and counted against the model it came from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

from torch import Tensor

from ridgeline.checkpoints.compressed_tensors import WeightReader
from ridgeline.checkpoints.files import CheckpointFiles
from ridgeline.checkpoints.layers import Matrix, matrices_of
from ridgeline.checkpoints.quantised import Quantised
from ridgeline.checkpoints.skeleton import ModelSkeleton, StoredPiece
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
    matrices = {matrix.piece: matrix for matrix in matrices_in_blocks(skeleton)}
    layers: list[LayerZeros] = []
    parameters = zeros = 0
    for piece in _of_parameters(skeleton):
        tensor = skeleton.checkpoint.read(piece.source, piece.inside)
        found = tensor.numel() - int(tensor.count_nonzero())
        parameters += tensor.numel()
        zeros += found
        if piece in matrices:
            matrix = matrices[piece].seen_in(tensor)
            layers.append(
                LayerZeros(
                    name=matrices[piece].name,
                    shape=tuple(matrix.shape),
                    zeros=found,
                    two_of_four=2 * found >= tensor.numel() and two_of_four(matrix),
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
        removed = sum(map(source.size, _of_parameters(source))) - parameters
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

    def read(self, name: str, inside: int | None = None) -> Tensor:
        """A weight with its numbers, unpacked; `inside`: as the base class has it."""
        if inside is not None:
            return super().read(name, inside)
        found = self._weights.read(name)
        return found.dequantised() if isinstance(found, Quantised) else found


def _of_parameters(skeleton: ModelSkeleton) -> list[StoredPiece]:
    """What fills all parameters; a tied one stands under one name there."""
    parameters = {name for name, _ in skeleton.model.named_parameters()}
    return [
        piece
        for target, pieces in skeleton.pieces.items()
        if target in parameters
        for piece in pieces
    ]


def matrices_in_blocks(skeleton: ModelSkeleton) -> Iterator[Matrix]:
    """The matrices of all blocks, in order."""
    for number in range(len(skeleton.blocks)):
        yield from matrices_of(skeleton, number)
