"""The loss and the gradient of rows of logits whose number fills no block."""

from __future__ import annotations

import torch
from torch import Tensor

from ridgeline.kernels.triton.linear_cross_entropy import of_chunk

_ROWS, _CLASSES, _IGNORED = 7, 4097, -100  # one more than a block holds


def example() -> list[tuple[Tensor, Tensor]]:
    """Seven rows of 4,097 in bfloat16, one ignored: plain, with every option, in two steps."""
    return [*_case(0.0, 0.0, 0.0), *_case(0.1, 1e-2, 3.0), *_case(0.1, 1e-2, 0.0, steps=2)]


def _case(
    smoothing: float, z_loss: float, softcap: float, steps: int = 1
) -> list[tuple[Tensor, Tensor]]:
    logits = (torch.randn(_ROWS, _CLASSES + 24) * 3 + 2).bfloat16()[:, :_CLASSES]
    logits[::2, -1] = 15.0  # the largest comes last
    target = torch.randint(_CLASSES, (_ROWS,))
    target[3] = _IGNORED
    weights = torch.rand(_ROWS) + 0.5
    wide = logits.double().requires_grad_()
    exact = _losses(wide, target, smoothing, z_loss, softcap)
    (gradient,) = torch.autograd.grad(exact @ weights.double(), wide)
    losses, normalizers = torch.empty(_ROWS), torch.empty(_ROWS)
    rest = (_IGNORED, smoothing, z_loss, softcap)
    if steps == 1:
        of_chunk(logits, target, losses, normalizers, weights, *rest)
    else:
        of_chunk(logits, target, losses, normalizers, None, *rest)
        of_chunk(logits, target, None, normalizers, weights, *rest)
    return [(losses, exact.detach()), (logits, gradient)]


def _losses(
    logits: Tensor, target: Tensor, smoothing: float, z_loss: float, softcap: float
) -> Tensor:
    x = softcap * (logits / softcap).tanh() if softcap else logits
    plain = torch.nn.functional.cross_entropy(
        x, target, reduction="none", ignore_index=_IGNORED, label_smoothing=smoothing
    )
    return plain + torch.where(target == _IGNORED, 0.0, z_loss * x.logsumexp(-1).square())
