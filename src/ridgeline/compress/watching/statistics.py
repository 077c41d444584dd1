"""What calibration saw flow into one linear layer, and the inverse of its Hessian.

H = 2/n Σ xᵀx is symmetric, so only what is on and right of the diagonal is summed. It has no
inverse where activations are never used or are combinations of others, as with little calibration
text. λ · mean(diag H) is added to the diagonal (GPTQ, arXiv 2210.17323, section 3, step 3), tenfold
as often as it takes; if nothing helps there is no factor, and the caller falls back to what needs
none, for this layer alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ridgeline.kernels import column_products


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
_BLOCK = 256
"""Columns whose products are summed in one call; smaller ones are slow, larger ones sum more."""


def add_products(sums: Tensor, x: Tensor) -> None:
    """Add xᵀx of inputs [tokens, in] to the upper triangle of `sums` [in, in] float32.

    Products of bfloat16 inputs are exact in float32, and take less than half the time.
    """
    if x.dtype == torch.bfloat16 and column_products.have_kernel():
        column_products.add_column_products(sums, x)
        return
    wide = x.float()
    for start in range(0, len(sums), _BLOCK):
        rows = slice(start, start + _BLOCK)
        sums[rows, start:].addmm_(wide[:, rows].T, wide[:, start:])


def add_inputs(sums: Tensor, x: Tensor) -> None:
    """Add xᵀx of a chunk of calibration to the upper triangle of `sums`.

    bfloat16 inputs are rounded to bytes where that takes half the time. GPTQ adds 1 % of the mean
    to the diagonal; what rounding adds is half a percent of a column's own part at most.
    """
    if x.dtype == torch.bfloat16 and column_products.rounded_is_faster():
        column_products.add_rounded_products(sums, x)
    else:
        add_products(sums, x)


def mirror(sums: Tensor) -> Tensor:
    """`sums`, with its lower triangle as its upper one."""
    for start in range(0, len(sums), _BLOCK):
        stop = start + _BLOCK
        sums[stop:, start:stop] = sums[start:stop, stop:].T
        block = sums[start:stop, start:stop]
        block.copy_(block.triu() + block.triu(1).T)
    return sums


def inverse_factor(hessian: Tensor, damping: float = 0.01) -> tuple[Tensor | None, tuple[str, ...]]:
    """U, upper triangular, with Uᵀ U = (H + λ I)⁻¹, and what there is to tell.

    Args:
        hessian: [in, in]; is not changed. Activations never seen (a diagonal of 0) count as
            independent of all others.
        damping: λ over the mean of the diagonal.
    """
    if not _is_finite(hessian):
        return None, ("its inputs were infinite or NaN",)
    diagonal = hessian.diagonal().to(torch.float32, copy=True)
    dead = diagonal <= 0
    mean = float(diagonal[~dead].mean()) if bool((~dead).any()) else 1.0
    diagonal[dead] = mean
    while damping <= _MOST_DAMPING * 1.001:
        factor = _factor(hessian, diagonal + damping * mean)
        if factor is not None:
            told = () if damping <= 0.01 else (f"its Hessian needed a damping of {damping:g}",)
            return factor, told
        damping *= 10.0
    return None, ("its Hessian has no inverse, however damped",)


def _factor(hessian: Tensor, diagonal: Tensor) -> Tensor | None:
    """U of a Hessian with another diagonal, in two matrices of its size.

    Without the inverse itself: H = U⁻¹ U⁻ᵀ is Cholesky's factoring from the last column on.
    """
    backward = hessian.flip(0, 1).float()
    backward.diagonal().copy_(diagonal.flip(0))
    # A symmetric matrix is its own transpose, in whose memory LAPACK can factor it.
    lower, failed = backward.T, torch.empty((), dtype=torch.int32, device=hessian.device)
    torch.linalg.cholesky_ex(lower, out=(lower, failed))
    if int(failed):
        return None
    lower = lower.flip(0, 1)
    del backward
    upper = torch.zeros_like(lower)
    _invert_upper(lower, upper)
    return upper if _is_finite(upper) else None


def _invert_upper(matrix: Tensor, inverse: Tensor) -> None:
    """The inverse of an upper triangular matrix into one of zeros, a third of what solving takes.

    Of two halves A and C on the diagonal and B beside them, what stands beside is −A⁻¹ B C⁻¹.
    """
    half = len(matrix) // 2
    if half < _BLOCK:
        unit = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
        inverse.copy_(torch.linalg.solve_triangular(matrix, unit, upper=True))
        return
    first, last = slice(0, half), slice(half, None)
    _invert_upper(matrix[first, first], inverse[first, first])
    _invert_upper(matrix[last, last], inverse[last, last])
    beside = matrix[first, last] @ inverse[last, last]
    inverse[first, last] = inverse[first, first] @ beside.neg_()


def _is_finite(matrix: Tensor) -> bool:
    """Whether all of a matrix, and the sums of its rows, are finite; takes no other of its size."""
    return bool(matrix.sum(1).isfinite().all())


_ROWS = 1024
"""Rows of a weight whose errors are looked at together."""


def output_error(
    weight: Tensor, result: Tensor, hessian: Tensor | None, rows: Tensor | None = None
) -> float:
    """tr((W - Ŵ) H (W - Ŵ)ᵀ) / tr(W H Wᵀ), the share of the output's energy that is lost.

    Of a bfloat16 weight what is lost is taken in bfloat16, whose rounding moves the share by some
    millionths of itself.

    Args:
        weight: [out, in], as given.
        result: [out, in], as it became.
        hessian: H [in, in]; where it is not known or not finite, rows are looked at.
        rows: [k, in] of inputs, in place of H = XᵀX; None: ones in its place.
    """
    known = hessian is not None and _is_finite(hessian)
    kind = weight.dtype if weight.dtype == torch.bfloat16 else torch.float32
    of = partial(energy, hessian=hessian, rows=rows) if known else partial(energy, rows=rows)
    parts = zip(weight.split(_ROWS), result.split(_ROWS), strict=True)
    lost = of((before.float() - after.float()).to(kind) for before, after in parts)
    whole = of(part.to(kind) for part in weight.split(_ROWS))
    return lost / whole if whole > 0.0 else 0.0


def energy(
    parts: Iterable[Tensor], hessian: Tensor | None = None, rows: Tensor | None = None
) -> float:
    """tr(W H Wᵀ) of a matrix that comes in parts, some of its rows each.

    Args:
        parts: [some, in] each; products of bfloat16 ones are summed in float32.
        hessian: H [in, in].
        rows: Where there is no H, inputs [k, in] with H = XᵀX; None: ones in its place.
    """
    if hessian is not None:
        return _energy_under(hessian, parts)
    total = 0.0
    for part in parts:
        outputs = part if rows is None else part @ rows.to(part.dtype).T
        total += float(outputs.float().square().sum(dtype=torch.float64))
    return total


def _energy_under(hessian: Tensor, parts: Iterable[Tensor]) -> float:
    """The energy as the sum of (WᵀW) ⊙ H, of which half is enough."""
    sums = torch.zeros_like(hessian, dtype=torch.float32)
    for part in parts:
        add_products(sums, part)
    total = 0.0
    for start in range(0, len(sums), _BLOCK):
        rows = slice(start, start + _BLOCK)
        products = sums[rows, start:].triu_().mul_(hessian[rows, start:])
        total += float(2 * products.sum(dtype=torch.float64) - products.diagonal().sum())
    return total
