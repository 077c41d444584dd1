"""Cross-entropy that reads the logits a few rows at a time.

torch takes it in two steps, and the second and both gradients write matrices as large as the
logits: log-probabilities, zeros with one entry a row, and the gradient. Over a vocabulary they
do not fit in any cache. Here a row's logarithm of the sum of exponentials is all that is kept
(softmax and loss as one, Milakov and Gimelshein, "Online normalizer calculation for softmax",
2018; in rows at a time, Hsu et al., "Liger Kernel", 2024), and the gradient is the
only matrix that is made.

It is plain PyTorch, so that it can stand in a user's script as it stands here.
"""

from typing import Any

import torch

full_cross_entropy = torch.nn.functional.cross_entropy


class ChunkedCrossEntropy(torch.autograd.Function):
    """Losses (rows,) of logits (rows, classes) in float32 and targets (rows,)."""

    elements = 2**17  # of a chunk: half a megabyte stays in a core's cache

    @staticmethod
    def forward(ctx: Any, logits: Any, target: Any, ignore_index: int) -> Any:
        """Keeps the logits and a number for each row."""
        ignored = target == ignore_index
        target = target.masked_fill(ignored, 0)
        size = max(1, ChunkedCrossEntropy.elements // logits.shape[1])
        normalizers = torch.cat([chunk.logsumexp(1) for chunk in logits.detach().split(size)])
        ctx.save_for_backward(logits, target, ignored, normalizers)
        losses = normalizers - logits.gather(1, target[:, None])[:, 0]
        return losses.masked_fill_(ignored, 0.0)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Any) -> Any:
        """Softmax less the target, times what each row's loss weighs."""
        logits, target, ignored, normalizers = ctx.saved_tensors
        gradient = gradient.masked_fill(ignored, 0.0)
        result = torch.empty_like(logits)
        size = max(1, ChunkedCrossEntropy.elements // logits.shape[1])
        for start in range(0, len(logits), size):
            rows = slice(start, start + size)
            chunk = torch.sub(logits[rows], normalizers[rows, None], out=result[rows])
            chunk.exp_().mul_(gradient[rows, None])
        result.scatter_add_(1, target[:, None], -gradient[:, None])
        return result, None, None


def takes_chunks(
    input: Any,  # noqa: A002 - as torch calls it
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> bool:
    """Are many classes told apart in float32, with nothing but rows left out?"""
    return (
        type(input) is torch.Tensor
        and input.dim() == 2
        and input.dtype is torch.float32
        and input.shape[1] >= 1024
        and input.requires_grad
        and target.dim() == 1
        and target.dtype is torch.int64
        and isinstance(ignore_index, int)
        and reduction in ("mean", "sum", "none")
        and weight is size_average is reduce is None
        and not label_smoothing
        and not torch.compiler.is_compiling()
    )


def chunked_cross_entropy(input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
    """`torch.nn.functional.cross_entropy`; in chunks where many classes are told apart."""
    if not takes_chunks(input, target, *args, **kwargs):
        return full_cross_entropy(input, target, *args, **kwargs)
    names = ("weight", "size_average", "ignore_index", "reduce", "reduction")
    given = dict(zip(names, args, strict=False)) | kwargs
    ignored, reduction = given.get("ignore_index", -100), given.get("reduction", "mean")
    losses = ChunkedCrossEntropy.apply(input, target, ignored)
    if reduction == "none":
        return losses
    total = losses.sum()
    return total if reduction == "sum" else total / (target != ignored).sum()
