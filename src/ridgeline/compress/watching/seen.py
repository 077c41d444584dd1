"""What calibration saw flow into one linear layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(slots=True, kw_only=True)
class Seen:
    """Of the inputs x [tokens, in] of a layer; what a method did not ask for is None."""

    num_tokens: int
    hessian: Tensor | None = None
    """[in, in] float32: 2/tokens · Σ xᵀx (GPTQ's H, arXiv 2210.17323, section 3)."""
    mean_abs: Tensor | None = None
    """[in] float32 (AWQ)."""
    max_abs: Tensor | None = None
    """[in] float32 (SmoothQuant; static ranges)."""
    square_norm: Tensor | None = None
    """[in] float32: Σ x² per column (Wanda)."""
    rows: Tensor | None = None
    """[k, in]: an even sample of the inputs themselves (AWQ's search, clipping, percentiles)."""
