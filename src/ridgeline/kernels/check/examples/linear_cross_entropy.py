"""The loss and the gradient of rows of logits whose number fills no block."""

from __future__ import annotations

import torch
from torch import Tensor

from ridgeline.kernels.triton.linear_cross_entropy import of_chunk

_CLASSES = 4097  # one more than a block holds


def example() -> list[tuple[Tensor, Tensor]]:
    """Rows in bfloat16, one ignored: plain, with every option, in two steps; and many of three.

    Then a few in float32 with every option.
    """
    return [
        *_case(_logits(7, _CLASSES), 0.0, 0.0, 0.0),
        *_case(_logits(7, _CLASSES), 0.1, 1e-2, 3.0, ignored=5),
        *_case(_logits(7, _CLASSES), 0.1, 1e-2, 0.0, steps=2),
        *_case(_far_logits(), 0.0, 1e-2, 0.0),
        *_case(_logits(130, 3), 0.1, 0.0, 0.0),
        *_case(_logits(5, 40).float(), 0.1, 1e-2, 3.0),
    ]


def _logits(rows: int, classes: int) -> Tensor:
    """A part of longer rows, whose largest comes last."""
    logits = (torch.randn(rows, classes + 24) * 3 + 2).bfloat16()[:, :classes]
    logits[::2, -1] = 15.0
    return logits


def _far_logits() -> Tensor:
    """Powers that no float32 holds, and whole blocks of classes that are masked."""
    logits = _logits(5, _CLASSES)
    logits[:2] *= 40.0
    logits[2:4, :-1] = float("-inf")
    return logits


def _case(
    logits: Tensor,
    smoothing: float,
    z_loss: float,
    softcap: float,
    steps: int = 1,
    ignored: int = -100,
) -> list[tuple[Tensor, Tensor]]:
    rows, classes = logits.shape
    target = torch.randint(classes, (rows,))
    target[2:4] = torch.tensor([classes - 1, ignored])
    weights = torch.rand(rows) + 0.5
    wide = logits.double().requires_grad_()
    exact = _losses(wide, target, smoothing, z_loss, softcap, ignored)
    (gradient,) = torch.autograd.grad(exact @ weights.double(), wide)
    losses, normalizers = torch.empty(rows), torch.empty(rows)
    rest = (ignored, smoothing, z_loss, softcap)
    if steps == 1:
        of_chunk(logits, target, losses, normalizers, weights, *rest)
    else:
        of_chunk(logits, target, losses, normalizers, None, *rest)
        of_chunk(logits, target, None, normalizers, weights, *rest)
    return [(losses, exact.detach()), (logits, gradient)]


def _losses(
    logits: Tensor, target: Tensor, smoothing: float, z_loss: float, softcap: float, ignored: int
) -> Tensor:
    x = softcap * (logits / softcap).tanh() if softcap else logits
    plain = torch.nn.functional.cross_entropy(
        x, target, reduction="none", ignore_index=ignored, label_smoothing=smoothing
    )
    return plain + torch.where(target == ignored, 0.0, z_loss * x.logsumexp(-1).square())
