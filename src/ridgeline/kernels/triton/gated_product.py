"""Activation times gate on a GPU: what `kernels/gated_product.py` calls."""

# ruff: noqa: N803  (Triton's compile-time constants are upper case, here as everywhere)

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ridgeline.kernels.triton import rows_of

_BLOCK = 1024


@triton.jit
def _sigmoid(x: tl.tensor) -> tl.tensor:
    """1 / (1 + exp(-x)) by a power that cannot overflow."""
    power = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, power) / (1.0 + power)


@triton.jit
def _share(gate: tl.tensor, ACTIVATION: tl.constexpr) -> tl.tensor:
    """What the activation multiplies its argument by; 1.5957… is 2 √(2/π)."""
    if ACTIVATION == "silu":
        share = _sigmoid(gate)
    elif ACTIVATION == "gelu_tanh":
        share = _sigmoid(1.5957691216057308 * gate * (1.0 + 0.044715 * gate * gate))
    else:
        share = 0.5 + 0.5 * tl.erf(gate * 0.7071067811865476)
    return share


@triton.jit
def _slope(gate: tl.tensor, share: tl.tensor, ACTIVATION: tl.constexpr) -> tl.tensor:
    """Derivative of the activation."""
    if ACTIVATION == "silu":
        slope = share * (1.0 + gate * (1.0 - share))
    elif ACTIVATION == "gelu_tanh":
        rate = 1.5957691216057308 * (1.0 + 0.134145 * gate * gate)
        slope = share + share * gate * (1.0 - share) * rate  # in this order 0 comes before the rate
    else:
        slope = share + gate * 0.3989422804014327 * tl.exp(-0.5 * gate * gate)
    return slope


@triton.jit
def forward_kernel(
    y: tl.tensor,
    gate: tl.tensor,
    up: tl.tensor,
    size: tl.tensor,
    gate_stride: tl.tensor,
    up_stride: tl.tensor,
    blocks_of_a_row: tl.tensor,
    ACTIVATION: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program computes BLOCK elements of one row."""
    program = tl.program_id(0)
    row = (program // blocks_of_a_row).to(tl.int64)
    columns = (program % blocks_of_a_row).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size
    g = tl.load(gate + row * gate_stride + columns, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + row * up_stride + columns, mask=inside, other=0.0).to(tl.float32)
    product = g * _share(g, ACTIVATION) * u
    tl.store(y + row * size + columns, product.to(y.dtype.element_ty), mask=inside)


@triton.jit
def backward_kernel(
    dgate: tl.tensor,
    dup: tl.tensor,
    dy: tl.tensor,
    gate: tl.tensor,
    up: tl.tensor,
    size: tl.tensor,
    dy_stride: tl.tensor,
    gate_stride: tl.tensor,
    up_stride: tl.tensor,
    blocks_of_a_row: tl.tensor,
    ACTIVATION: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program computes both gradients of BLOCK elements of one row."""
    program = tl.program_id(0)
    row = (program // blocks_of_a_row).to(tl.int64)
    columns = (program % blocks_of_a_row).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size
    upper = tl.load(dy + row * dy_stride + columns, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(gate + row * gate_stride + columns, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + row * up_stride + columns, mask=inside, other=0.0).to(tl.float32)
    share = _share(g, ACTIVATION)
    to_gate = upper * u * _slope(g, share, ACTIVATION)
    tl.store(dgate + row * size + columns, to_gate.to(dgate.dtype.element_ty), mask=inside)
    to_up = upper * g * share
    tl.store(dup + row * size + columns, to_up.to(dup.dtype.element_ty), mask=inside)


def forward(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    """Compute the product, contiguous."""
    y = gate.new_empty(gate.shape)
    if y.numel():
        rows = _together(gate, up)
        count, size = rows[0].shape
        blocks = triton.cdiv(size, _BLOCK)
        forward_kernel[(count * blocks,)](
            y,
            *rows,
            size,
            *(one.stride(0) for one in rows),
            blocks,
            ACTIVATION=activation,
            BLOCK=_BLOCK,
            num_warps=4,
            enable_fp_fusion=True,
        )
    return y


def backward(dy: Tensor, gate: Tensor, up: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """The gradients of the gate and of the other half, contiguous."""
    dgate, dup = gate.new_empty(gate.shape), up.new_empty(up.shape)
    if dgate.numel():
        rows = _together(dy, gate, up)
        count, size = rows[0].shape
        blocks = triton.cdiv(size, _BLOCK)
        backward_kernel[(count * blocks,)](
            dgate,
            dup,
            *rows,
            size,
            *(one.stride(0) for one in rows),
            blocks,
            ACTIVATION=activation,
            BLOCK=_BLOCK,
            num_warps=4,
            enable_fp_fusion=True,
        )
    return dgate, dup


def _together(*tensors: Tensor) -> list[Tensor]:
    """Rows of each; one long row where all are contiguous."""
    if all(one.is_contiguous() for one in tensors):
        return [one.view(1, -1) for one in tensors]
    return [rows_of(one) for one in tensors]
