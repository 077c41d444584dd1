"""A linear layer and the cross-entropy of what it gives, in chunks of rows: no matrix of logits.

    l = x Wᵀ + b, then c tanh(l / c) where a soft cap c is given
    n = log Σ exp(l)
    loss = n - (1 - ε) l[target] - ε mean(l) + z n²
    dloss/dl = (1 + 2 z n) softmax(l) - (1 - ε) onehot(target) - ε / V     (· 1 - (l / c)²)

ε is label smoothing (Szegedy et al., 1512.00567, section 7), z the weight of the z-loss that keeps
n near 0 (Chowdhery et al., PaLM, 2204.02311, section 5). Logits are made for some rows at a time
and their gradient written in their place (Hsu et al., Liger Kernel, 2410.10989, section 3.2): at
most an eighth of the matrix exists at once, and at most 512 MiB of it.

Reduced losses get their gradients in the forward, while the chunk is there. Where each row's loss
has a gradient of its own (`reduction="none"`), and in float16, whose gradients need the loss scale
first, the backward makes the chunks again. Gradients of the weight are summed in float32.
"""

# ruff: noqa: ARG001  (torch calls shapes and contexts by one signature)

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ridgeline.errors import InputError
from ridgeline.kernels import arguments
from ridgeline.kernels.arguments import wide
from ridgeline.kernels.triton import takes

Reduction = Literal["mean", "sum", "none"]
_MOST_CHUNK_BYTES = 2**29
_LEAST_ROWS = 64
_LEAST_CHUNKS = 8
_OUTPUTS_AT_ONCE = 4096
"""Rows of the weight's gradient that are multiplied before they are added in float32."""

_INPUTS = (
    "Tensor x, Tensor weight, Tensor? bias, Tensor target, int ignore_index,"
    " float label_smoothing, float z_loss, float softcap"
)
_OPERATORS = torch.library.Library("ridgeline", "FRAGMENT")
_OPERATORS.define(f"linear_cross_entropy_rows({_INPUTS}) -> (Tensor, Tensor)")
_OPERATORS.define(
    f"linear_cross_entropy_backward(Tensor dlosses, Tensor normalizers, {_INPUTS},"
    " bool for_x, bool for_weight) -> (Tensor, Tensor, Tensor)"
)
_OPERATORS.define(
    f"linear_cross_entropy_reduced({_INPUTS}, bool mean, bool for_x, bool for_weight)"
    " -> (Tensor, Tensor, Tensor, Tensor)"
)


class LossTerms(NamedTuple):
    """What a row's loss is made of; a soft cap of 0 is none."""

    ignore_index: int
    label_smoothing: float
    z_loss: float
    softcap: float


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
) -> Tensor:
    """Cross-entropy of x · weightᵀ + bias in float32 or wider: a number, or one a row for "none".

    Args:
        x: [..., D].
        weight: [V, D].
        target: [...] int64, each 0 … V - 1 or `ignore_index`.
        bias: [V].
        ignore_index: Rows with this target have loss and gradient 0, and do not count in a mean.
        reduction: As of `torch.nn.functional.cross_entropy`; the mean of no row is NaN there too.
        label_smoothing: ε of the formula above, 0 to 1.
        z_loss: The weight of the squared normaliser.
        softcap: Logits come no farther from 0 than this, as of Gemma 2.

    Raises:
        InputError: Shapes that do not fit each other; an unknown reduction; a wrong target on a
            CPU (on a GPU its loss is NaN).
    """
    arguments.check_floats("linear_cross_entropy", x=x, weight=weight, bias=bias)
    arguments.check_softcap(softcap)
    x, weight, bias = arguments.in_dtype_of_autocast(x, weight, bias)
    _check(x, weight, bias, target, reduction, label_smoothing)
    terms = (ignore_index, label_smoothing, z_loss, softcap or 0.0)
    rows, places = x.reshape(-1, x.shape[-1]), target.reshape(-1)
    learns = [one is not None and one.requires_grad for one in (x, weight, bias)]
    at_once = torch.is_grad_enabled() and any(learns) and x.dtype != torch.float16
    if at_once and reduction != "none":
        return torch.ops.ridgeline.linear_cross_entropy_reduced(
            rows, weight, bias, places, *terms, reduction == "mean", learns[0], any(learns[1:])
        )[0]
    losses, _ = torch.ops.ridgeline.linear_cross_entropy_rows(rows, weight, bias, places, *terms)
    if reduction == "none":
        return losses.view(target.shape)
    total = losses.sum()
    return total if reduction == "sum" else total / (places != ignore_index).sum()


def _check(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    reduction: str,
    label_smoothing: float,
) -> None:
    fits = weight.dim() == 2 and bool(weight.numel())
    fits = fits and x.shape == (*target.shape, weight.shape[1])
    if not fits or (bias is not None and bias.shape != weight.shape[:1]):
        raise InputError(
            f"x {tuple(x.shape)}, weight {tuple(weight.shape)}, target {tuple(target.shape)} and"
            f" bias {bias if bias is None else tuple(bias.shape)} do not fit; give [..., D],"
            " [V, D], [...] and [V]"
        )
    alike = len({one.dtype for one in (x, weight, bias) if one is not None}) == 1
    if not alike or target.dtype != torch.int64:
        raise InputError("give x, weight and bias in one dtype, and the target in int64")
    if reduction not in ("mean", "sum", "none"):
        raise InputError(f"no reduction {reduction!r}; known: mean, sum, none")
    if not 0 <= label_smoothing <= 1:
        raise InputError(f"label_smoothing is {label_smoothing}; give 0 to 1")


def linear_cross_entropy_reference(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
) -> Tensor:
    """The loss of all rows at once in PyTorch, differentiable; float64 stays float64."""
    logits = functional.linear(x, weight, bias)
    logits = logits.to(wide(logits.dtype))
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    logits, places = logits.flatten(0, -2), target.reshape(-1)
    losses = functional.cross_entropy(
        logits, places, None, None, ignore_index, None, "none", label_smoothing
    )
    kept = places != ignore_index
    losses = losses + torch.where(kept, z_loss * logits.logsumexp(-1).square(), 0.0)
    if reduction == "none":
        return losses.view(target.shape)
    return losses.sum() if reduction == "sum" else losses.sum() / kept.sum()


def _chunks(x: Tensor, weight: Tensor) -> Iterator[slice]:
    """Rows whose logits are made together."""
    rows = min(-(-len(x) // _LEAST_CHUNKS), _MOST_CHUNK_BYTES // (len(weight) * x.itemsize))
    rows = max(rows, _LEAST_ROWS)
    return (slice(start, start + rows) for start in range(0, len(x), rows))


def _of_chunk(
    logits: Tensor,
    target: Tensor,
    terms: LossTerms,
    *,
    losses: Tensor | None,
    normalizers: Tensor,
    weights: Tensor | None,
) -> None:
    """Losses and normalisers of a chunk; with weights, its gradient in the place of its logits.

    Without `losses` the normalisers are those of the forward, and are read.
    """
    if takes(logits):
        from ridgeline.kernels.triton import linear_cross_entropy as kernel

        kernel.of_chunk(logits, target, losses, normalizers, weights, *terms)
        return
    ignored = target == terms.ignore_index
    places = target.masked_fill(ignored, 0)[:, None]
    capped = logits.to(wide(logits.dtype))
    if terms.softcap:
        capped = torch.tanh_(capped / terms.softcap).mul_(terms.softcap)
    smooth = terms.label_smoothing
    if losses is not None:
        if int(places.min()) < 0 or int(places.max()) >= logits.shape[1]:
            raise InputError(f"a target lies outside of the {logits.shape[1]} classes")
        torch.logsumexp(capped, 1, out=normalizers)
        found = normalizers - (1 - smooth) * capped.gather(1, places)[:, 0]
        found += terms.z_loss * normalizers.square()
        if smooth:  # else a class that is masked by -inf would make 0 · inf
            found -= smooth * capped.mean(1)
        losses.copy_(found.masked_fill_(ignored, 0.0))
    if weights is not None:
        slope = None if not terms.softcap else 1 - (capped / terms.softcap).square()
        share = capped.sub_(normalizers[:, None]).exp_()
        share.mul_((1 + 2 * terms.z_loss * normalizers)[:, None]).sub_(smooth / logits.shape[1])
        share.scatter_add_(1, places, share.new_full((), smooth - 1.0).expand(len(places), 1))
        if slope is not None:
            share.mul_(slope)
        share.mul_(weights.masked_fill(ignored, 0.0)[:, None])
        if share is not logits:
            logits.copy_(share)


class _Gradients:
    """Gradients that grow chunk by chunk; those that nobody wants are empty."""

    def __init__(self, x: Tensor, weight: Tensor, *, for_x: bool, for_weight: bool) -> None:
        self.of_x = x.new_empty(x.shape if for_x else 0)
        self.like = weight
        shape = weight.shape if for_weight else (0, 0)
        self.of_weight = weight.new_zeros(shape, dtype=wide(weight.dtype))
        self.of_bias = self.of_weight.new_zeros(shape[0])

    def add(self, rows: slice, x: Tensor, weight: Tensor, of_logits: Tensor) -> None:
        """Take in the gradient [rows, V] of some rows' logits."""
        if self.of_x.numel():
            torch.mm(of_logits, weight, out=self.of_x[rows])
        if not self.of_weight.numel():
            return
        self.of_bias += of_logits.sum(0, dtype=self.of_bias.dtype)
        for start in range(0, len(weight), _OUTPUTS_AT_ONCE):
            outputs = slice(start, start + _OUTPUTS_AT_ONCE)
            if of_logits.dtype == self.of_weight.dtype:
                self.of_weight[outputs].addmm_(of_logits[:, outputs].T, x[rows])
            else:
                self.of_weight[outputs] += of_logits[:, outputs].T @ x[rows]

    def done(self) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of x, the weight and the bias, in their dtypes."""
        return self.of_x, self.of_weight.to(self.like.dtype), self.of_bias.to(self.like.dtype)


def _rows(
    x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *terms: Any
) -> tuple[Tensor, Tensor]:
    losses, normalizers = (x.new_empty(len(x), dtype=wide(x.dtype)) for _ in "ln")
    for rows in _chunks(x, weight):
        logits = functional.linear(x[rows], weight, bias)
        _of_chunk(
            logits,
            target[rows],
            LossTerms(*terms),
            losses=losses[rows],
            normalizers=normalizers[rows],
            weights=None,
        )
    return losses, normalizers


def _backward(
    dlosses: Tensor,
    normalizers: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    *terms, for_x, for_weight = rest
    gradients = _Gradients(x, weight, for_x=for_x, for_weight=for_weight)
    weights = dlosses.to(wide(x.dtype)).contiguous()
    for rows in _chunks(x, weight):
        logits = functional.linear(x[rows], weight, bias)
        _of_chunk(
            logits,
            target[rows],
            LossTerms(*terms),
            losses=None,
            normalizers=normalizers[rows],
            weights=weights[rows],
        )
        gradients.add(rows, x, weight, logits)
    return gradients.done()


def _reduced(
    x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *terms, mean, for_x, for_weight = rest
    gradients = _Gradients(x, weight, for_x=for_x, for_weight=for_weight)
    losses, normalizers = (x.new_empty(len(x), dtype=wide(x.dtype)) for _ in "ln")
    kept = target != terms[0]
    count = kept.sum() if mean else kept.new_ones((), dtype=torch.int64)
    weights = torch.where(kept, 1.0 / count.to(wide(x.dtype)), 0.0)
    for rows in _chunks(x, weight):
        logits = functional.linear(x[rows], weight, bias)
        _of_chunk(
            logits,
            target[rows],
            LossTerms(*terms),
            losses=losses[rows],
            normalizers=normalizers[rows],
            weights=weights[rows],
        )
        gradients.add(rows, x, weight, logits)
    return losses.sum() / count, *gradients.done()


_OPERATORS.impl("linear_cross_entropy_rows", _rows, "CompositeExplicitAutograd")
_OPERATORS.impl("linear_cross_entropy_backward", _backward, "CompositeExplicitAutograd")
_OPERATORS.impl("linear_cross_entropy_reduced", _reduced, "CompositeExplicitAutograd")


@torch.library.register_fake("ridgeline::linear_cross_entropy_rows")
def _row_shapes(x: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    losses = x.new_empty(x.shape[0], dtype=wide(x.dtype))
    return losses, torch.empty_like(losses)


@torch.library.register_fake("ridgeline::linear_cross_entropy_backward")
def _gradient_shapes(
    dlosses: Tensor, normalizers: Tensor, x: Tensor, weight: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    *_, for_x, for_weight = rest
    return (
        x.new_empty(x.shape if for_x else 0),
        weight.new_empty(weight.shape if for_weight else (0, 0)),
        weight.new_empty(weight.shape[0] if for_weight else 0),
    )


@torch.library.register_fake("ridgeline::linear_cross_entropy_reduced")
def _reduced_shapes(
    x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    loss = x.new_empty((), dtype=wide(x.dtype))
    return loss, *_gradient_shapes(x, x, x, weight, *rest[-2:])


def _keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, bias, target, *ctx.terms = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[1], x, weight, bias, target)


def _differentiate_rows(ctx: Any, dlosses: Tensor | None, *_: object) -> Any:
    nothing = (None,) * (1 + len(ctx.terms))
    if dlosses is None:
        return None, None, None, *nothing
    for_x, for_weight, for_bias = ctx.needs_input_grad[:3]
    dx, dweight, dbias = torch.ops.ridgeline.linear_cross_entropy_backward(
        dlosses, *ctx.saved_tensors, *ctx.terms, for_x, for_weight or for_bias
    )
    return (
        dx if for_x else None,
        dweight if for_weight else None,
        dbias if for_bias else None,
        *nothing,
    )


def _keep_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output[1:])
    ctx.num_inputs = len(inputs)


def _scale_gradients(ctx: Any, dloss: Tensor | None, *_: object) -> Any:
    nothing = (None,) * (ctx.num_inputs - 3)
    if dloss is None:
        return None, None, None, *nothing
    if torch.is_grad_enabled():  # create_graph: what is kept here knows nothing of x
        raise InputError(arguments.no_second_derivative("linear_cross_entropy"))
    scaled = (
        (one * dloss).to(one.dtype) if wanted else None
        for one, wanted in zip(ctx.saved_tensors, ctx.needs_input_grad, strict=False)
    )
    return *scaled, *nothing


torch.library.register_autograd(
    "ridgeline::linear_cross_entropy_rows",
    _differentiate_rows,
    setup_context=_keep_inputs,
    lib=_OPERATORS,
)
torch.library.register_autograd(
    "ridgeline::linear_cross_entropy_reduced",
    _scale_gradients,
    setup_context=_keep_gradients,
    lib=_OPERATORS,
)
arguments.refuse_second_derivatives("linear_cross_entropy_backward", _OPERATORS)
