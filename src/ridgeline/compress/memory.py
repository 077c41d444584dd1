"""How much memory a compression takes, said from shapes before it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ridgeline.checkpoints.files import CheckpointFiles
from ridgeline.checkpoints.layers import Matrix, matrices_of
from ridgeline.checkpoints.skeleton import ModelSkeleton
from ridgeline.compress.blocks import RESCALING, multiplied_as_stored
from ridgeline.compress.flow import HELD, chunk_sequences, computes_in_bfloat16
from ridgeline.compress.watching import byte_products
from ridgeline.compress.watching.capture import PARTS, SAMPLE_ROWS
from ridgeline.compress.watching.lanes import num_lanes

if TYPE_CHECKING:
    from ridgeline.compress.run import CompressionJob

FLOAT_BYTES = 4
"""All that is not bfloat16 is float32."""
HESSIANS = 3
"""Matrices as large as a Hessian that GPTQ holds at once: H, and the two that its factor is found
in (`inverse_factor`). Before that every lane has sums of its own."""
COPIES = 4
"""Copies of a bundle's weights that a method holds at once: as given, what is left, what was
chosen, the value judged."""


LIBRARY_BYTES = 16_000_000
"""What libraries take when they first compute: of two blocks of width 128, for which 5 MB are
counted here, the peak was 21 MB, on one thread as on two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryForecast:
    """Bytes at the peak, beside the program itself."""

    block_bytes: int
    """The largest block's weights, as they are held, and its finished tensors."""
    statistics_bytes: int
    """What calibration gathers and a method works with, for the largest layer."""
    activation_bytes: int
    """Activations of all calibration tokens between two blocks and at a stop within one, and of
    one chunk from there on."""

    @property
    def peak_bytes(self) -> int:
        """All of them at once, and what libraries take."""
        parts = self.block_bytes + self.statistics_bytes + self.activation_bytes
        return parts + LIBRARY_BYTES


def forecast(job: CompressionJob) -> MemoryForecast:
    """From the headers of the model's files.

    Raises:
        InputError: They cannot be read.
    """
    skeleton = ModelSkeleton(CheckpointFiles(job.model))
    blocks = range(len(skeleton.blocks))
    largest = max(blocks, key=lambda number: _block_bytes(job, skeleton, number))
    matrices = [matrix for matrix in matrices_of(skeleton, largest) if not matrix.kept]
    weights = _block_bytes(job, skeleton, largest)
    finished = sum(_finished_bytes(job, skeleton, matrix) for matrix in matrices)
    return MemoryForecast(
        block_bytes=weights + finished,
        statistics_bytes=_statistics_bytes(job, matrices),
        activation_bytes=_activation_bytes(job, skeleton, matrices),
    )


def _block_bytes(job: CompressionJob, skeleton: ModelSkeleton, number: int) -> int:
    narrow: frozenset[str] = frozenset()
    if job.tokens is not None and computes_in_bfloat16(skeleton):
        narrow = multiplied_as_stored(matrices_of(skeleton, number), job.schemes_of)
    # A matrix is there once more in bytes, where its products are.
    narrow_bytes = FLOAT_BYTES // 2 + (1 if narrow and byte_products.are_faster() else 0)
    return sum(
        skeleton.value(target).numel() * (narrow_bytes if target in narrow else FLOAT_BYTES)
        for target in skeleton.block_targets(number)
    )


def _finished_bytes(job: CompressionJob, skeleton: ModelSkeleton, matrix: Matrix) -> int:
    """Levels are a byte each; what is not rounded has the dtype of the file."""
    rounded = any(scheme.weights for scheme in job.schemes_of(matrix.name))
    size = 1 if rounded else skeleton.checkpoint.dtype(matrix.piece.source).itemsize
    return matrix.weight.numel() * size


def _statistics_bytes(job: CompressionJob, matrices: list[Matrix]) -> int:
    largest = 0
    for matrix in matrices:
        rows, columns = matrix.weight.shape
        schemes = job.schemes_of(matrix.name)
        walked = any(
            scheme.method in {"gptq", "aqlm"}
            or (scheme.pruning and scheme.pruning.criterion == "sparsegpt")
            for scheme in schemes
        )
        searched = any(scheme.method == "awq" for scheme in schemes)
        numbers = COPIES * rows * columns
        if job.tokens is not None and schemes:
            if walked or searched:  # the search holds XᵀX, and the sums that are held against it
                squares = max(HESSIANS, num_lanes()) if walked else 2
                numbers += squares * columns * columns
            else:
                numbers += 2 * min(2 * SAMPLE_ROWS, job.tokens.numel()) * columns
        largest = max(largest, numbers)
    return FLOAT_BYTES * largest


def _activation_bytes(job: CompressionJob, skeleton: ModelSkeleton, matrices: list[Matrix]) -> int:
    if job.tokens is None:
        return 0
    width = skeleton.model.config.hidden_size
    length = job.tokens.shape[1]
    in_bfloat16 = computes_in_bfloat16(skeleton)
    chunk = num_lanes() * chunk_sequences(length, in_bfloat16=in_bfloat16) * length
    within = chunk * sum(matrix.weight.shape[0] for matrix in matrices)
    size = FLOAT_BYTES // 2 if in_bfloat16 else FLOAT_BYTES
    # The sum that runs past a bfloat16 block's products, and its norm, are float32 all the same.
    beside = 2 * chunk * width * FLOAT_BYTES if in_bfloat16 else 0
    between = FLOAT_BYTES * width
    # Between two stops: the block's running sum, its norm, and the widest inputs of a layer.
    widest = max((matrix.weight.shape[1] for matrix in matrices), default=0)
    tokens = job.tokens.numel()
    held = tokens * min(HELD * between, 2 * between + size * widest)
    if num_lanes() > 1:  # among what a part of the chunks holds lies as much that they have freed
        held += held // PARTS
    rescaling = {
        scheme.method
        for matrix in matrices
        for scheme in job.schemes_of(matrix.name)
        if scheme.weights is not None and scheme.method in RESCALING
    }
    if rescaling:
        # What can take a scale over is tried: the block's output before and after. Then a sample
        # of every layer's inputs is there at once, and AWQ's search, all before the first stop;
        # later, two samples of a layer's inputs.
        beside += 2 * chunk * width * FLOAT_BYTES
        rows = min(2 * SAMPLE_ROWS, tokens) * FLOAT_BYTES
        searched = 2 * FLOAT_BYTES * widest**2 if "awq" in rescaling else 0
        sampled = rows * sum(matrix.weight.shape[1] for matrix in matrices)
        held = max(held + 2 * rows * widest - searched, sampled)
    return tokens * between + held + size * within + beside
