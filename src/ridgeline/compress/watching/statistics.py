"""What calibration saw flow into one linear layer, and the inverse of its Hessian.

H = 2/n Σ xᵀx is symmetric, so only blocks on and right of the diagonal are summed. It has no
inverse where activations are never used or are combinations of others, as with little calibration
text. λ · mean(diag H) is added to the diagonal (GPTQ, arXiv 2210.17323, section 3, step 3), tenfold
as often as it takes; if nothing helps there is no factor, and the caller falls back to what needs
none, for this layer alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(slots=True, kw_only=True)
class CalibrationStatistics:
    """What was seen of a layer's activations x [tokens, in]; None: no method asked for it."""

    num_tokens: int
    hessian: Tensor | None = None
    """GPTQ's H = 2/tokens · Σ xᵀx (arXiv 2210.17323, section 3), [in, in] float32."""
    mean_abs: Tensor | None = None
    """The mean magnitude of each column (AWQ), [in] float32."""
    max_abs: Tensor | None = None
    """The largest magnitude of each column (SmoothQuant, static ranges), [in] float32."""
    square_norm: Tensor | None = None
    """The sum Σ x² of each column (Wanda), [in] float32."""
    rows: Tensor | None = None
    """An even sample of the activations (AWQ's search, clipping, percentiles), [k, in]."""


_MOST_DAMPING = 1.0
_BLOCK, _BLOCK_IN_BFLOAT16 = 256, 512
"""Columns whose products are summed in one call; smaller ones are slow, larger ones sum more."""


def add_products(sums: Tensor, x: Tensor, *, in_bfloat16: bool = False) -> None:
    """Add xᵀx of inputs [tokens, in] to the upper blocks of `sums` [in, in].

    Args:
        sums: float32.
        x: float32.
        in_bfloat16: All of x are bfloat16 numbers, and the processor multiplies these: their
            products are exact in float32, which they are summed in, at more than twice the speed.
    """
    size = _BLOCK_IN_BFLOAT16 if in_bfloat16 else _BLOCK
    with products_in_bfloat16() if in_bfloat16 else nullcontext():
        for start in range(0, len(sums), size):
            rows = slice(start, start + size)
            sums[rows, start:].addmm_(x[:, rows].T, x[:, start:])


@contextmanager
def products_in_bfloat16() -> Iterator[None]:
    """Within, matmuls of float32 may round to bfloat16 what they multiply, where that is fast."""
    setting: Any = torch.backends.mkldnn.matmul
    before = setting.fp32_precision
    setting.fp32_precision = "bf16"
    try:
        yield
    finally:
        setting.fp32_precision = before


def mirror(sums: Tensor) -> Tensor:
    """`sums`, with its lower blocks as its upper ones."""
    for start in range(0, len(sums), _BLOCK):
        stop = start + _BLOCK
        sums[stop:, start:stop] = sums[start:stop, stop:].T
    return sums


def inverse_factor(hessian: Tensor, damping: float = 0.01) -> tuple[Tensor | None, tuple[str, ...]]:
    """U, upper triangular, with Uᵀ U = (H + λ I)⁻¹, and what there is to tell.

    Args:
        hessian: [in, in]; is not changed. Activations never seen (a diagonal of 0) count as
            independent of all others.
        damping: λ over the mean of the diagonal.
    """
    matrix = hessian.float().clone()
    if not bool(matrix.isfinite().all()):
        return None, ("its inputs were infinite or NaN",)
    diagonal = matrix.diagonal()
    dead = diagonal <= 0
    mean = float(diagonal[~dead].mean()) if bool((~dead).any()) else 1.0
    diagonal[dead] = mean
    added = 0.0
    while damping <= _MOST_DAMPING * 1.001:
        diagonal += damping * mean - added
        added = damping * mean
        factor = _factor(matrix)
        if factor is not None:
            told = () if damping <= 0.01 else (f"its Hessian needed a damping of {damping:g}",)
            return factor, told
        damping *= 10.0
    return None, ("its Hessian has no inverse, however damped",)


def _factor(matrix: Tensor) -> Tensor | None:
    """U without the inverse itself: H = U⁻¹ U⁻ᵀ is Cholesky's factoring from the last column on."""
    lower, failed = torch.linalg.cholesky_ex(matrix.flip(0, 1))
    if int(failed):
        return None
    identity = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    upper = torch.linalg.solve_triangular(lower.flip(0, 1), identity, upper=True)
    return upper if bool(upper.isfinite().all()) else None


def output_error(weight: Tensor, result: Tensor, hessian: Tensor | None) -> float:
    """tr((W - Ŵ) H (W - Ŵ)ᵀ) / tr(W H Wᵀ), the share of the output's energy that is lost."""
    before, difference = weight.float(), weight.float() - result.float()
    if hessian is None or not bool(hessian.isfinite().all()):
        lost, whole = float(difference.square().sum()), float(before.square().sum())
    else:
        lost = float(((difference @ hessian) * difference).sum())
        whole = float(((before @ hessian) * before).sum())
    return lost / whole if whole > 0.0 else 0.0
