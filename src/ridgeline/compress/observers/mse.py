"""The range with the least squared rounding error, among shares of the full one.

Where an error in one column costs more than in another, squares are weighted by that (GPTQ).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ridgeline.compress.observers import minmax
from ridgeline.kernels.number_formats import nvfp4
from ridgeline.kernels.number_formats.grid import grid_between, levels, value
from ridgeline.records.scheme import NumberFormat

SHARES = tuple(1 - 0.02 * step for step in range(41))
"""Of the full range that are tried: 1 down to 0.2. The first of equals is kept."""

POWERS = (1.0, 2.0, 0.5)
"""Of mx formats, whose scales are powers of two: no other share changes anything."""

_NUMBERS = 2**18
"""Looked at together: few enough to stay in a cache."""


def bounds(
    grouped: Tensor, form: NumberFormat, costs: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The best of the shares for each group.

    Args:
        grouped: [out, G, n].
        form: What to round to.
        costs: [out, G, n] or [1, G, n], what squared errors are multiplied by; None: all the same.
    """
    low, high = minmax.bounds(grouped, form)
    low, high = low.float(), high.float()
    whole = None
    if form.kind == "nvfp4":
        whole = nvfp4.global_scale(torch.maximum(low.abs(), high.abs()).amax())
    costs = grouped.new_ones(()) if costs is None else costs
    costs = costs.expand_as(grouped)
    rows = max(1, _NUMBERS // max(1, grouped[0].numel())) if len(grouped) else 1
    parts = [slice(start, start + rows) for start in range(0, max(1, len(grouped)), rows)]
    shares = torch.cat(
        [
            _best_shares(grouped[part], costs[part], (low[part], high[part]), form, whole)
            for part in parts
        ]
    )
    return low * shares, high * shares


def _best_shares(
    grouped: Tensor,
    costs: Tensor,
    ends: tuple[Tensor, Tensor],
    form: NumberFormat,
    whole: Tensor | None,
) -> Tensor:
    """[out, G]."""
    low, high = ends
    best = torch.full(low.shape, torch.inf, device=low.device)
    chosen = torch.ones_like(low)
    flat = grouped.flatten(0, 1)
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
        wrong = value(levels(flat, on), on) - flat.float()
        error = (wrong.square_().view(grouped.shape) * costs).sum(-1)
        better = error < best
        best = torch.where(better, error, best)
        chosen = torch.where(better, share, chosen)
    return chosen
