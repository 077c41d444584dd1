"""Logits that are not computed where the model makes them, but with their loss.

The last layer's output over a vocabulary is the largest tensor of a step, and most often only its
cross-entropy is wanted. So the layer's call gives a tensor in name only, which remembers what it
would be multiplied with; reshaped, cut along rows and passed to `cross_entropy`, it becomes one
call of `linear_cross_entropy`, which never holds all logits at once. Whatever else is done to it
has it computed first, as it was written, with its gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ridgeline.kernels.linear_cross_entropy import linear_cross_entropy

FEWEST_CLASSES = 1024
"""For fewer, the logits are small."""
_LOOKED_AT = ("size", "dim", "ndimension", "numel", "element_size", "is_floating_point")
_ATTRIBUTES = ("shape", "dtype", "device", "ndim", "is_cuda", "layout", "is_sparse")
_RESHAPING = ("view", "reshape", "contiguous", "flatten", "unflatten", "squeeze", "unsqueeze")


class WaitingLogits(Tensor):
    """A layer's output that is not computed yet."""

    hidden: Any
    """What the layer was given, reshaped and cut as its output would be."""
    layer: Any
    """Weight and bias, in the dtype of the product."""
    computed: Any
    fused: Any
    """Called where a loss was computed without logits."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        attribute = getattr(getattr(func, "__self__", None), "__name__", "")
        if name == "__get__" and attribute == "requires_grad":
            return True
        if name in _LOOKED_AT or (name == "__get__" and attribute in _ATTRIBUTES):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        logits = args[0] if args and isinstance(args[0], WaitingLogits) else None
        if logits is not None and logits.computed is None:
            answer = _remembered(logits, name, args[1:], kwargs)
            if answer is not None:
                return answer
        return func(*(_computed(a) for a in args), **{k: _computed(v) for k, v in kwargs.items()})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """For what reaches a tensor without asking the class first."""
        others = {key: _computed(value) for key, value in (kwargs or {}).items()}
        return func(*(_computed(value) for value in args), **others)


def logits_of(layer: nn.Linear, fused: Callable[[], None] | None = None) -> Callable[..., Any]:
    """A call of a linear layer whose output waits while gradients are recorded."""

    def call(hidden: Tensor) -> Tensor:
        weight, bias = layer.weight, layer.bias
        device = hidden.device.type
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
            hidden, weight = hidden.to(dtype), weight.to(dtype)
            bias = None if bias is None else bias.to(dtype)  # type: ignore[redundant-expr]
        alike = hidden.dtype == weight.dtype
        if not (alike and torch.is_grad_enabled() and hidden.dim() > 1 and hidden.requires_grad):
            return functional.linear(hidden, weight, bias)
        return _waiting(hidden, (weight, bias), hidden.dtype, fused)

    return call


def _waiting(hidden: Tensor, layer: Any, dtype: torch.dtype, fused: Any) -> Any:
    shape = (*hidden.shape[:-1], layer[0].shape[0])
    logits = Tensor._make_wrapper_subclass(WaitingLogits, shape, dtype=dtype, device=hidden.device)
    logits.hidden, logits.layer, logits.fused, logits.computed = hidden, layer, fused, None
    return logits


def _remembered(logits: Any, name: str, args: Any, kwargs: Any) -> Any:
    """The logits after one more step, or their loss; None: compute them first."""
    if name == "cross_entropy":
        return _loss(logits, *args, **kwargs)
    if name in ("float", "to"):
        dtype = torch.float32 if name == "float" else args[0] if len(args) == 1 else None
        if kwargs or dtype not in (torch.float32, torch.bfloat16, torch.float16):
            return None
        return _waiting(logits.hidden, logits.layer, dtype, logits.fused)
    if name == "__getitem__":
        return _cut(logits, args[0])
    if name in _RESHAPING and not kwargs:
        return _reshaped(logits, name, args)
    return None


def _reshaped(logits: Any, name: str, args: Any) -> Any:
    """Rows in another shape, classes as they were."""
    with torch._C.DisableTorchFunctionSubclass():
        meta = torch.empty(logits.shape, device="meta")
        try:
            shape = getattr(meta, name)(*args).shape
        except RuntimeError:
            return None
    if shape[-1:] != logits.shape[-1:]:
        return None
    hidden = logits.hidden.reshape(*shape[:-1], logits.hidden.shape[-1])
    return _waiting(hidden, logits.layer, logits.dtype, logits.fused)


def _cut(logits: Any, index: Any) -> Any:
    """Some rows, all classes."""
    parts = index if isinstance(index, tuple) else (index,)
    if not all(part is Ellipsis or isinstance(part, (int, slice)) for part in parts):
        return None
    named = [part for part in parts if part is not Ellipsis]
    if len(named) == logits.dim() or (Ellipsis in parts and parts[-1] is not Ellipsis):
        if parts[-1] != slice(None):
            return None
    elif len(named) > logits.dim():
        return None
    return _waiting(logits.hidden[index], logits.layer, logits.dtype, logits.fused)


def _loss(
    logits: Any,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    plain = weight is None and size_average is None and reduce is None
    rows = logits.dim() == 2 and isinstance(target, Tensor) and target.shape == logits.shape[:1]
    if not plain or not rows or target.dtype != torch.int64:
        return None
    of_product, bias = logits.layer
    with torch.autocast(logits.device.type, enabled=False):
        loss = linear_cross_entropy(
            logits.hidden,
            of_product,
            target,
            bias,
            ignore_index=ignore_index,
            reduction=reduction,  # type: ignore[arg-type]
            label_smoothing=label_smoothing,
        )
    if logits.fused is not None:
        logits.fused()
    return loss.to(logits.dtype)


def _computed(value: Any) -> Any:
    """Logits as they were written; anything else as it is."""
    if isinstance(value, (tuple, list)) and any(isinstance(one, WaitingLogits) for one in value):
        return type(value)(_computed(one) for one in value)
    if not isinstance(value, WaitingLogits):
        return value
    if value.computed is None:
        product = functional.linear(value.hidden, *value.layer)
        value.computed = product.to(value.dtype)
    return value.computed
