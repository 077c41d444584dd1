"""Weights whose product with their inputs is small go: |Wᵢⱼ| · ‖xⱼ‖₂, compared within a row.

Sun et al., "A simple and effective pruning approach for large language models", arXiv 2306.11695,
equation 1 and section 3. Nothing is changed in what stays.
"""

from __future__ import annotations

from torch import Tensor

from ridgeline.compress.pruning import magnitude
from ridgeline.compress.watching.seen import Seen
from ridgeline.kernels.masks import keep_largest, keep_n_of_m
from ridgeline.records.scheme import Pruning


def scores(weight: Tensor, seen: Seen) -> Tensor:
    """[out, in] float32, from `seen.square_norm`."""
    assert seen.square_norm is not None, "calibration was to gather square_norm"
    return magnitude.scores(weight) * seen.square_norm.float().sqrt()


def mask(weight: Tensor, pruning: Pruning, seen: Seen) -> Tensor:
    """True where a weight stays; the share holds in each output row."""
    found = scores(weight, seen)
    if pruning.pattern is not None:
        return keep_n_of_m(found, *pruning.pattern)
    return keep_largest(found, round(pruning.share * weight.shape[1]))
