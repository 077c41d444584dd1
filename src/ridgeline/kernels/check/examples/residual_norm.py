"""RMS and layer norm of a residual sum, forward and backward, at sizes that fill no tile."""

from __future__ import annotations

from unittest import mock

import torch
from torch import Tensor

from ridgeline.kernels.triton import residual_norm

_ROWS, _SIZE, _EPS = 101, 200, 0.05


def example() -> list[tuple[Tensor, Tensor]]:
    """Rows of 200 in bfloat16; results and every gradient are compared with those in float64.

    On a GPU of one multiprocessor, so that each program of the backward takes several tiles. Then
    five rows in float32, with nothing that could be left out.
    """
    with mock.patch.object(residual_norm, "num_processors", return_value=1):
        found = [*_of_kind(0.5, centred=False), *_of_kind(0.0, centred=True)]
    return [*found, *_alone(centred=False), *_alone(centred=True)]


def _of_kind(offset: float, *, centred: bool) -> list[tuple[Tensor, Tensor]]:
    x, added = (torch.randn(_ROWS, size).bfloat16()[:, :_SIZE] for size in (_SIZE, _SIZE + 24))
    x = x + 3.0 if centred else x  # a mean that is not zero
    weight, shift = torch.randn(_SIZE, 2).bfloat16().T  # in steps
    bias = shift if centred else None
    dy, dh = (torch.randn(_ROWS, size).bfloat16()[:, :_SIZE] for size in (_SIZE + 8, _SIZE + 16))
    y, h, mean, rstd = residual_norm.forward(x, added, weight, bias, _EPS, offset, centred=centred)
    found = residual_norm.backward(dy, dh, h, weight, mean, rstd, offset, centred=centred)
    wide = [one.double().requires_grad_() for one in (h, weight, shift)]
    exact = _normed(wide[0], offset + wide[1], wide[2], centred=centred)
    dx, dweight, dbias = torch.autograd.grad(exact, wide, dy.double(), allow_unused=True)
    pairs = [(h, x.double() + added.double()), (y, exact), (found[0], dx + dh.double())]
    pairs.append((found[1], dweight))
    return [*pairs, (found[2], dbias)] if centred else pairs


def _alone(*, centred: bool) -> list[tuple[Tensor, Tensor]]:
    """Rows without a residual, a weight, a bias, or a gradient of the sum."""
    x, dy = torch.randn(5, _SIZE), torch.randn(5, _SIZE)
    y, _, mean, rstd = residual_norm.forward(x, None, None, None, _EPS, 0.0, centred=centred)
    dx, *_ = residual_norm.backward(dy, None, x, None, mean, rstd, 0.0, centred=centred)
    wide = x.double().requires_grad_()
    one, none = torch.ones(_SIZE).double(), torch.zeros(_SIZE).double()
    exact = _normed(wide, one, none, centred=centred)
    return [(y, exact), (dx, torch.autograd.grad(exact, wide, dy.double())[0])]


def _normed(h: Tensor, weight: Tensor, shift: Tensor, *, centred: bool) -> Tensor:
    if centred:
        return torch.nn.functional.layer_norm(h, (_SIZE,), weight, shift, _EPS)
    return h * (h.square().mean(-1, keepdim=True) + _EPS).rsqrt() * weight
