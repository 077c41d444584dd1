"""The smallest weights go (Han et al., arXiv 1506.02626): the baseline of all criteria."""

from __future__ import annotations

from torch import Tensor

from ridgeline.compress.watching.seen import Seen
from ridgeline.kernels.masks import keep_n_of_m, keep_share
from ridgeline.records.scheme import Pruning


def scores(weight: Tensor) -> Tensor:
    """|W| in float32."""
    return weight.detach().float().abs()


def mask(weight: Tensor, pruning: Pruning, seen: Seen | None = None) -> Tensor:  # noqa: ARG001 - as all criteria
    """True where a weight [out, in] stays; a share holds over the whole matrix."""
    if pruning.pattern is not None:
        return keep_n_of_m(scores(weight), *pruning.pattern)
    return keep_share(scores(weight), pruning.share)
