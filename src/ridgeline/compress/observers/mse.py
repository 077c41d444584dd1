"""The range with the least squared rounding error, among shares of the full one."""

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


def bounds(grouped: Tensor, form: NumberFormat) -> tuple[Tensor, Tensor]:
    """The best of the shares for each group."""
    low, high = minmax.bounds(grouped, form)
    whole = None
    if form.kind == "nvfp4":
        whole = nvfp4.global_scale(torch.maximum(low.abs(), high.abs()).amax())
    best = torch.full(low.shape, torch.inf, device=low.device)
    chosen = torch.ones_like(low, dtype=torch.float32)
    flat = grouped.flatten(0, 1)
    for share in POWERS if form.kind in {"mxfp4", "mxfp8"} else SHARES:
        on = grid_between(
            (low.float() * share).flatten()[:, None],
            (high.float() * share).flatten()[:, None],
            form,
            grouped.dtype,
            whole,
        )
        wrong = value(levels(flat, on), on) - flat.float()
        error = wrong.square().sum(-1).reshape(low.shape)
        better = error < best
        best = torch.where(better, error, best)
        chosen = torch.where(better, share, chosen)
    return low.float() * chosen, high.float() * chosen
