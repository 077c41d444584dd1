"""The grid of a weight matrix, the range it spans, and the nearest points on it.

Every method shares this: `grid` finds scales and zero points with the format's observer, `levels`
rounds to them, `value` reads them back (`kernels/number_formats/grid.py`, which training shares).
An observer gives (low, high), [out, G] each, of the n numbers of each group [out, G, n]: a narrower
range cuts the largest numbers and rounds all others finer.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ridgeline.checkpoints.quantised import Quantised
from ridgeline.compress.watching.lanes import side_by_side
from ridgeline.errors import InputError
from ridgeline.kernels.number_formats import nvfp4
from ridgeline.kernels.number_formats.grid import (
    Grid,
    grid_between,
    in_groups,
    levels,
    nearest,
    rounded,
    value,
    whole_scale,
)
from ridgeline.kernels.range_search import DTYPES, have_kernel, search_ranges
from ridgeline.records.scheme import NumberFormat

__all__ = [
    "OBSERVERS",
    "Grid",
    "check",
    "check_depth",
    "grid",
    "grid_between",
    "in_groups",
    "levels",
    "minmax",
    "mse",
    "nearest",
    "on_grid",
    "percentile",
    "rounded",
    "to_nearest",
    "value",
]


def minmax(grouped: Tensor, form: NumberFormat) -> tuple[Tensor, Tensor]:  # noqa: ARG001  # as others
    """The smallest and the largest number of each group."""
    return grouped.amin(-1), grouped.amax(-1)


INSIDE = 0.999
"""Share of the magnitudes (symmetric) or of the numbers below and above (affine) within range."""


def percentile(grouped: Tensor, form: NumberFormat) -> tuple[Tensor, Tensor]:
    """Quantiles of each group, interpolated; of a few numbers, little below the largest."""
    ordered = (
        grouped.float().abs().sort(-1).values if form.symmetric else grouped.float().sort(-1).values
    )
    high = _quantile(ordered, INSIDE)
    low = -high if form.symmetric else _quantile(ordered, 1 - INSIDE)
    return low.to(grouped.dtype), high.to(grouped.dtype)


def _quantile(ordered: Tensor, share: float) -> Tensor:
    """The quantile as torch.quantile has it, which refuses tensors beyond 16 million numbers."""
    place = share * (ordered.shape[-1] - 1)
    below = int(place)
    above = min(below + 1, ordered.shape[-1] - 1)
    return torch.lerp(ordered[..., below], ordered[..., above], place - below)


SHARES = tuple(1 - 0.02 * step for step in range(41))
"""Shares of the full range that are tried: 1 down to 0.2. The first of equals is kept."""

POWERS = (1.0, 2.0, 0.5)
"""Shares tried of mx formats, whose scales are powers of two: no other changes anything."""

_NUMBERS = 2**16
"""Numbers that are looked at together: few enough to stay in a cache, and below the size that is
given back to the system each time."""


def mse(grouped: Tensor, form: NumberFormat, costs: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The best of the shares for each group.

    Args:
        grouped: [out, G, n].
        form: What to round to.
        costs: [out, G, n] or [1, G, n], what squared errors are multiplied by; None: all the same.
    """
    if _is_for_kernel(grouped, costs, form):
        flat = None if costs is None else costs[0].float()
        low, high = search_ranges(grouped.flatten(0, 1), flat, form, SHARES)
        return low.view(grouped.shape[:2]), high.view(grouped.shape[:2])
    low, high = minmax(grouped, form)
    low, high = low.float(), high.float()
    whole = None
    if form.kind == "nvfp4":
        whole = nvfp4.global_scale(torch.maximum(low.abs(), high.abs()).amax())
    costs = grouped.new_ones(()) if costs is None else costs
    costs = costs.expand_as(grouped)
    rows = max(1, _NUMBERS // max(1, grouped[0].numel())) if len(grouped) else 1
    parts = [slice(start, start + rows) for start in range(0, max(1, len(grouped)), rows)]
    shares = torch.ones_like(low)

    def choose(_lane: int, part: slice) -> None:
        ends = (low[part], high[part])
        shares[part] = _best_shares(grouped[part], costs[part], ends, form, whole)

    side_by_side(choose, parts)
    return low * shares, high * shares


def _is_for_kernel(grouped: Tensor, costs: Tensor | None, form: NumberFormat) -> bool:
    """Whether one call finds all ranges: integers, what errors count for the same in all rows."""
    alike = costs is None or len(costs) == 1 or costs.stride(0) == 0
    known = form.kind == "int" and grouped.dtype in DTYPES and grouped.device.type == "cpu"
    return known and alike and grouped.numel() > 0 and have_kernel()


def _best_shares(
    grouped: Tensor,
    costs: Tensor,
    ends: tuple[Tensor, Tensor],
    form: NumberFormat,
    whole: Tensor | None,
) -> Tensor:
    """The best share of each group, [out, G]."""
    low, high = ends
    best = torch.full(low.shape, torch.inf, device=low.device)
    chosen = torch.ones_like(low)
    flat = grouped.flatten(0, 1)
    exact = flat.float()
    peak, place = grouped.float().abs().max(-1)
    cost = costs.gather(-1, place[..., None])[..., 0]
    reach = 1 + 1 / (2**form.bits - 1)  # of the end that has one level more than the other
    powers = form.kind in {"mxfp4", "mxfp8"}
    for share in POWERS if powers else SHARES:
        cut = peak * max(0.0, 1 - share * reach)
        if not powers and bool((cost * cut.square() > best).all()):
            break  # what the largest number alone loses, and all that is narrower loses more
        on = grid_between(
            (low * share).flatten()[:, None],
            (high * share).flatten()[:, None],
            form,
            grouped.dtype,
            whole,
        )
        wrong = nearest(flat, on).sub_(exact)
        error = wrong.square_().view(grouped.shape).mul_(costs).sum(-1)
        better = error < best
        best = torch.where(better, error, best)
        chosen = torch.where(better, share, chosen)
    return chosen


OBSERVERS: dict[str, Callable[[Tensor, NumberFormat], tuple[Tensor, Tensor]]] = {
    "minmax": minmax,
    "percentile": percentile,
    "mse": mse,
}
"""How a range is found, by the name that a scheme gives."""


def check_depth(depth: int, form: NumberFormat, name: str) -> None:
    """Refuse groups that do not divide the inputs of a layer.

    Raises:
        InputError: The layer and both numbers.
    """
    if form.group and depth % form.group:
        raise InputError(
            f"{name}: {depth} input features are no multiple of a group of {form.group}; "
            "choose a group that divides them, or leave the layer out"
        )


def check(weight: Tensor, form: NumberFormat, name: str) -> None:
    """Refuse what cannot be rounded.

    Raises:
        InputError: A weight that is not finite, or a depth that its groups do not divide.
    """
    check_depth(weight.shape[1], form, name)
    # A sum is not finite where a number in it is not, and takes one reading; it may overflow too.
    if bool(weight.sum(dtype=torch.float32).isfinite()):
        return
    bad = int((~torch.isfinite(weight)).sum())
    if bad:
        raise InputError(
            f"{name}: {bad} of {weight.numel()} weights are infinite or NaN; the checkpoint is "
            "broken, or was saved in a dtype that overflowed"
        )


def grid(
    weight: Tensor,
    form: NumberFormat,
    name: str = "a weight",
    *,
    dtype: torch.dtype | None = None,
    costs: Tensor | None = None,
) -> Grid:
    """The grid that the format's observer finds.

    Args:
        weight: [out, in]; for activations [tokens, in], where a token is a row.
        form: What to round to.
        name: Of the layer, for messages.
        dtype: Of the model that is saved: scales of ints and fp8 are stored in it, and rounded
            to it before the weights are rounded to them. None: the weight's own.
        costs: [in], what squared errors in each column count for; only mse looks at errors.

    Raises:
        InputError: See `check`.
    """
    check(weight, form, name)
    grouped = in_groups(weight, form)
    if not grouped.numel():
        grouped = grouped.new_zeros(*grouped.shape[:2], 1)
    if costs is not None and form.observer == "mse" and weight.numel():
        low, high = mse(grouped, form, in_groups(costs.expand_as(weight), form))
    else:
        low, high = OBSERVERS[form.observer](grouped, form)
    return grid_between(low, high, form, dtype or weight.dtype, whole_scale(weight, form))


def to_nearest(
    weight: Tensor,
    form: NumberFormat,
    name: str = "a weight",
    *,
    dtype: torch.dtype | None = None,
) -> Quantised:
    """Each weight rounded to the nearest level of its `grid`, by itself.

    Raises:
        InputError: See `check`.
    """
    return on_grid(weight, grid(weight, form, name, dtype=dtype))


def on_grid(weight: Tensor, found: Grid) -> Quantised:
    """The nearest levels of a grid, ready to be saved; of values on the grid, exactly those."""
    return Quantised(
        format=found.format,
        levels=levels(weight, found),
        scales=found.scales,
        zeros=found.zeros,
        global_scale=found.global_scale,
    )
