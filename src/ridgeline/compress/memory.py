"""How much memory a compression will take, said before it starts, from shapes alone."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ridgeline.checkpoints.files import CheckpointFiles
from ridgeline.checkpoints.layers import Matrix, matrices_of
from ridgeline.checkpoints.skeleton import ModelSkeleton
from ridgeline.compress.run import Job
from ridgeline.compress.streaming.flow import CHUNK_TOKENS

FLOAT_BYTES = 4
"""All is computed in float32."""
HESSIANS = 5
"""As large as one, that GPTQ holds at once: the sums, H, the damped copy, its factor, the inverse's
factor (`hessian.inverse_factor`)."""
COPIES = 5
"""Of a bundle's weights that a method holds at once: as given, what is left, what was chosen, the
errors, the value judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Bytes at the peak, beside the program itself."""

    block_bytes: int
    """The largest block's weights, in float32, and its finished tensors."""
    statistics_bytes: int
    """What calibration gathers and a method works with, for the largest layer."""
    activation_bytes: int
    """Of all calibration tokens between two blocks, and of one chunk within one."""

    @property
    def peak_bytes(self) -> int:
        """All of it."""
        return self.block_bytes + self.statistics_bytes + self.activation_bytes


def forecast(job: Job) -> Forecast:
    """From the headers of the model's files.

    Raises:
        InputError: They cannot be read.
    """
    skeleton = ModelSkeleton(CheckpointFiles(job.model))
    blocks = range(len(skeleton.blocks))
    largest = max(blocks, key=lambda number: _block_bytes(skeleton, number))
    matrices = [matrix for matrix in matrices_of(skeleton, largest) if not matrix.kept]
    weights = _block_bytes(skeleton, largest)
    finished = sum(_finished_bytes(job, skeleton, matrix) for matrix in matrices)
    return Forecast(
        block_bytes=weights + finished,
        statistics_bytes=_statistics_bytes(job, matrices),
        activation_bytes=_activation_bytes(job, skeleton, matrices),
    )


def _block_bytes(skeleton: ModelSkeleton, number: int) -> int:
    targets = skeleton.block_targets(number)
    return FLOAT_BYTES * sum(skeleton.value(target).numel() for target in targets)


def _finished_bytes(job: Job, skeleton: ModelSkeleton, matrix: Matrix) -> int:
    """Levels are a byte each; what is not rounded has the dtype of the file."""
    rounded = any(scheme.weights for scheme in job.schemes_of(matrix.name))
    size = 1 if rounded else skeleton.checkpoint.dtype(matrix.piece.source).itemsize
    return matrix.weight.numel() * size


def _statistics_bytes(job: Job, matrices: list[Matrix]) -> int:
    largest = 0
    for matrix in matrices:
        rows, columns = matrix.weight.shape
        schemes = job.schemes_of(matrix.name)
        walked = any(
            scheme.method == "gptq" or (scheme.pruning and scheme.pruning.criterion == "sparsegpt")
            for scheme in schemes
        )
        squares = HESSIANS if walked else 2
        looked_at = job.tokens is not None and bool(schemes)
        numbers = COPIES * rows * columns + (squares * columns * columns if looked_at else 0)
        largest = max(largest, numbers)
    return FLOAT_BYTES * largest


def _activation_bytes(job: Job, skeleton: ModelSkeleton, matrices: list[Matrix]) -> int:
    if job.tokens is None:
        return 0
    width = skeleton.model.config.hidden_size
    length = job.tokens.shape[1]
    chunk = max(1, CHUNK_TOKENS // length) * length
    within = chunk * sum(matrix.weight.shape[0] for matrix in matrices)
    return FLOAT_BYTES * (prod(job.tokens.shape) * width + within)
