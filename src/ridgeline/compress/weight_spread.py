"""How the weights of each matrix of a model are spread, as a saved model holds them.

Weights are counted in units of their matrix's root mean square, so that layers of any size stand
beside one another: zeros of a pruning are a peak in the middle, few levels are teeth, and outliers
fill the outermost bins, which take all that lies beyond. One matrix is in memory at a time.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ridgeline.checkpoints.skeleton import ModelSkeleton
from ridgeline.compress.pruning.report import Unpacked, matrices_in_blocks
from ridgeline.errors import InputError
from ridgeline.records.compression import LayerSpread

BINS = 41
REACH = 5.125
"""Where the outermost bins end, in root mean squares: bins are a quarter wide, one around 0."""


def weight_spreads(model: Path) -> tuple[LayerSpread, ...]:
    """The spread of each matrix of the blocks; none where files are not read block by block."""
    try:
        skeleton = ModelSkeleton(Unpacked(model))
        matrices = tuple(matrices_in_blocks(skeleton))
    except InputError:
        return ()
    return tuple(
        spread(one.name, skeleton.checkpoint.read(one.piece.source, one.piece.inside))
        for one in matrices
    )


def spread(layer: str, weight: Tensor) -> LayerSpread:
    """The spread of one matrix.

    >>> spread("up", torch.tensor([[0.0, 1.0, -1.0, 0.0]])).shares[20]
    0.5
    """
    values = weight.detach().float().flatten()
    count = max(values.numel(), 1)
    rms = float(torch.linalg.vector_norm(values)) / count**0.5
    largest = max(map(abs, map(float, values.aminmax()))) if values.numel() else 0.0
    scaled = (values / (rms or 1.0)).clamp_(-REACH, REACH)
    counts = torch.histc(scaled, BINS, -REACH, REACH)
    return LayerSpread(
        layer=layer,
        rms=rms,
        largest=largest,
        shares=tuple(round(one, 5) for one in (counts / count).tolist()),
    )
