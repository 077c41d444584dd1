"""Loss and gradient of some rows of logits on a GPU: what `kernels/linear_cross_entropy.py` calls.

A program takes one row: once through it for the normaliser, and once more to write the gradient in
the place of the logits.
"""

# ruff: noqa: N803  (Triton's compile-time constants are upper case, here as everywhere)

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ridgeline.kernels.triton import dense

_LARGEST_BLOCK = 4096


@triton.jit
def _capped(logits: tl.tensor, softcap: tl.tensor) -> tl.tensor:
    """Soft-capped logits by a power that cannot overflow."""
    power = tl.exp(-2.0 * tl.abs(logits / softcap))
    size = softcap * (1.0 - power) / (1.0 + power)
    return tl.where(logits >= 0, size, -size)


@triton.jit
def chunk_kernel(
    logits: tl.tensor,
    targets: tl.tensor,
    losses: tl.tensor,
    normalizers: tl.tensor,
    weights: tl.tensor,
    stride: tl.tensor,
    ignore_index: tl.tensor,
    label_smoothing: tl.tensor,
    z_loss: tl.tensor,
    softcap: tl.tensor,
    V: tl.constexpr,
    SMOOTH: tl.constexpr,
    CAPPED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Read a row; without `losses` its normaliser is known, with `weights` write its gradient."""
    row = tl.program_id(0).to(tl.int64)
    base = logits + row * stride
    target = tl.load(targets + row)
    ignored = target == ignore_index
    if losses is not None:
        known = (target >= 0) & (target < V)
        at_target = tl.load(base + target, mask=known, other=float("nan")).to(tl.float32)
        if CAPPED:
            at_target = _capped(at_target, softcap)
        largest = tl.full((), float("-inf"), tl.float32)
        powers = tl.full((), 0.0, tl.float32)
        total = tl.full((), 0.0, tl.float32)
        for start in range(0, V, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            x = tl.load(base + columns, mask=columns < V, other=float("-inf")).to(tl.float32)
            if CAPPED:
                x = tl.where(columns < V, _capped(x, softcap), float("-inf"))
            before = largest
            largest = tl.maximum(largest, tl.max(x, 0))
            top = tl.where(largest == float("-inf"), 0.0, largest)
            powers = powers * tl.exp(before - top) + tl.sum(tl.exp(x - top), 0)
            if SMOOTH:
                total += tl.sum(tl.where(columns < V, x, 0.0), 0)
        rest = tl.log(powers)
        normalizer = largest + rest
        tl.store(normalizers + row, normalizer)
        loss = normalizer - (1.0 - label_smoothing) * at_target
        loss += z_loss * normalizer * normalizer
        if SMOOTH:
            loss -= label_smoothing * total / V
        tl.store(losses + row, tl.where(ignored, 0.0, loss))
    else:
        normalizer = tl.load(normalizers + row)
        largest = normalizer
        rest = 0.0
    if weights is not None:
        weight = tl.where(ignored, 0.0, tl.load(weights + row))
        factor = 1.0 + 2.0 * z_loss * normalizer
        for start in range(0, V, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            x = tl.load(base + columns, mask=columns < V, other=float("-inf")).to(tl.float32)
            if CAPPED:
                x = tl.where(columns < V, _capped(x, softcap), 0.0)
            gradient = factor * tl.exp((x - largest) - rest) - label_smoothing / V
            gradient -= tl.where(columns == target, 1.0 - label_smoothing, 0.0)
            if CAPPED:
                gradient *= 1.0 - (x / softcap) * (x / softcap)
            gradient = tl.where(ignored, 0.0, gradient * weight)
            tl.store(base + columns, gradient.to(logits.dtype.element_ty), mask=columns < V)


def of_chunk(
    logits: Tensor,
    target: Tensor,
    losses: Tensor | None,
    normalizers: Tensor,
    weights: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    softcap: float,
) -> None:
    """Fill losses and normalisers; with weights, write the gradient in the place of the logits."""
    rows, classes = logits.shape
    if not rows:
        return
    chunk_kernel[(rows,)](
        logits,
        dense(target),
        losses,
        normalizers,
        weights,
        logits.stride(0),
        ignore_index,
        float(label_smoothing),
        float(z_loss),
        float(softcap),
        V=classes,
        SMOOTH=label_smoothing != 0,
        CAPPED=softcap != 0,
        BLOCK=min(triton.next_power_of_2(classes), _LARGEST_BLOCK),
        num_warps=8,
        enable_fp_fusion=True,
    )
