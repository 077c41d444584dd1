"""Weights go column by column, and those to the right make up for them.

Frantar and Alistarh, "SparseGPT", arXiv 2301.00774, algorithm 1. With U the upper Cholesky factor
of H⁻¹, a weight in column j that goes costs w² / Uⱼⱼ², and the columns after it take over

    W[:, j:] -= (w / Uⱼⱼ) · U[j, j:]

The mask is chosen anew for every block of columns, from the weights as they stand by then
(section 3.3, "adaptive mask selection"): the cheapest share of the block over all rows, or the
n of every m (section 3.4).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ridgeline.kernels.masks import keep_n_of_m, keep_share
from ridgeline.records.scheme import Pruning

BLOCK = 128
"""Columns that share a choice of mask (section 4 of the paper)."""


@torch.no_grad()
def prune(weight: Tensor, pruning: Pruning, factor: Tensor, block: int = BLOCK) -> Tensor:
    """The weight [out, in] in float32, with zeros where weights went and the rest repaired.

    Args:
        weight: [out, in]; is not changed.
        pruning: Its pattern, or its share of every block.
        factor: [in, in], U of `watching.statistics.inverse_factor`.
        block: Columns at a time.
    """
    rest = weight.detach().float().clone()
    columns = rest.shape[1]
    n, m = pruning.pattern or (0, 1)
    # A block that cut a group of m in two would choose each half for itself.
    block = max(m, block // m * m)
    for start in range(0, columns, block):
        part = slice(start, min(start + block, columns))
        errors = _prune_block(rest[:, part], factor[part, part], _chooser(pruning), m if n else 0)
        rest[:, part.stop :] -= errors @ factor[part, part.stop :]
    return rest


def _chooser(pruning: Pruning) -> Callable[[Tensor], Tensor]:
    if pruning.pattern is not None:
        n, m = pruning.pattern
        return lambda costs: keep_n_of_m(costs, n, m)
    return lambda costs: keep_share(costs, pruning.share)


def _prune_block(
    rest: Tensor, factor: Tensor, choose: Callable[[Tensor], Tensor], group: int
) -> Tensor:
    """Prune some columns in place; what the columns after the block are to take over [out, block].

    Args:
        rest: [out, block].
        factor: [block, block].
        choose: From costs, True where a weight stays.
        group: Columns whose mask is chosen together; 0: the whole block.
    """
    diagonal = factor.diagonal()
    width = group or rest.shape[1]
    errors = torch.zeros_like(rest)
    stays = torch.ones_like(rest, dtype=torch.bool)
    for column in range(rest.shape[1]):
        if column % width == 0:
            here = slice(column, column + width)
            stays[:, here] = choose((rest[:, here] / diagonal[here]).square())
        error = torch.where(stays[:, column], 0.0, rest[:, column]) / diagonal[column]
        rest[:, column:] -= error[:, None] * factor[column, column:]
        errors[:, column] = error
    # What went is zero up to rounding: now exactly.
    rest *= stays
    return errors
