"""The range of each group of numbers that rounds them to integers with the least error.

    share = argmin Σᵢ cᵢ (xᵢ − q(xᵢ))²

with q(x) the nearest number on the grid that reaches from share · low to share · high. A narrower
range cuts the largest numbers and rounds all others finer. A share at which the largest number
alone loses more than the best so far ends the search. PyTorch makes a pass over all numbers for
each share, the kernel one over each group while it lies in the nearest cache
(`cpu/range_search.cpp`). CPU only.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ridgeline.kernels.cpu.build import have, load
from ridgeline.kernels.number_formats.grid import grid_between, nearest
from ridgeline.records.scheme import NumberFormat

LIBRARY = "integer_rounding"
DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})
"""The numbers that it reads, and the scales that are saved with them."""

torch.library.define(
    "ridgeline::search_ranges",
    "(Tensor(a!) low, Tensor(b!) high, Tensor numbers, Tensor? costs, Tensor shares, "
    "float smallest_scale, int bits, bool symmetric) -> ()",
)


def have_kernel() -> bool:
    """Whether it is compiled and loaded, which the first call sees to."""
    return have(LIBRARY, "until then ranges are searched at a fifth of the speed")


def search_ranges(
    numbers: Tensor, costs: Tensor | None, form: NumberFormat, shares: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """The lower and the upper end of each group, [N] float32.

    Args:
        numbers: [N, n], of a dtype of `DTYPES`; scales are saved in it.
        costs: [m, n] float32, what squared errors count for in groups 0, m, 2m, …; those in groups
            1, m + 1, … have the second row. None: all the same.
        form: Integers.
        shares: Of the whole range, falling; the first of equals is taken.

    Raises:
        InputError: The kernel cannot be compiled.
    """
    load(LIBRARY)
    low, high = numbers.new_empty(2, len(numbers), dtype=torch.float32)
    torch.ops.ridgeline.search_ranges(
        low,
        high,
        numbers.contiguous(),
        None if costs is None else costs.contiguous(),
        torch.tensor(shares, dtype=torch.float32),
        torch.finfo(numbers.dtype).eps,
        form.bits,
        form.symmetric,
    )
    return low, high


def reference(
    numbers: Tensor, costs: Tensor | None, form: NumberFormat, shares: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """The search in PyTorch, share by share."""
    exact = numbers.float()
    low, high = exact.amin(1), exact.amax(1)
    best, chosen = torch.full_like(low, torch.inf), torch.ones_like(low)
    weights = exact.new_ones(1, 1) if costs is None else costs.repeat(len(numbers) // len(costs), 1)
    for share in shares:
        ends = ((low * share)[:, None], (high * share)[:, None])
        off = nearest(numbers, grid_between(*ends, form, numbers.dtype)) - exact
        error = (off.square() * weights).sum(1)
        better = error < best
        best, chosen = torch.where(better, error, best), torch.where(better, share, chosen)
    return low * chosen, high * chosen
