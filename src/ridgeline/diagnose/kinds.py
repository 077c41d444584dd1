"""Kinds of operators by name, as rules need them: what multiplies matrices, what is pointwise.

Names are those of PyTorch's dispatcher (`native_functions.yaml`). A name that is missing here is
taken to be neither, so a rule that counts a kind errs on the side of finding less.
"""

from __future__ import annotations

from collections.abc import Container
from math import prod

from ridgeline.records import Operator

DENSE_MATMULS = frozenset(
    f"aten::{name}" for name in ("mm", "addmm", "bmm", "baddbmm", "linear", "_scaled_mm")
)

CONVOLUTIONS = frozenset(
    f"aten::{name}"
    for name in ("convolution", "convolution_backward", "mkldnn_convolution", "_convolution")
)

_POINTWISE = frozenset((
    "abs", "add", "addcdiv", "addcmul", "atan", "bitwise_and", "bitwise_not", "bitwise_or",
    "ceil", "clamp", "clamp_max", "clamp_min", "clone", "copy", "cos", "div", "elu",
    "elu_backward", "eq", "erf", "exp", "expm1", "fill", "floor", "ge", "gelu", "gelu_backward",
    "gt", "hardsigmoid", "hardswish", "hardswish_backward", "hardtanh", "hardtanh_backward",
    "le", "leaky_relu", "leaky_relu_backward", "lerp", "log", "log1p", "logical_and",
    "logical_not", "logical_or", "logit", "lt", "masked_fill", "maximum", "minimum", "mish",
    "mul", "ne", "neg", "pow", "reciprocal", "relu", "remainder", "round", "rsqrt", "rsub",
    "sigmoid", "sigmoid_backward", "sign", "silu", "silu_backward", "sin", "softplus",
    "softplus_backward", "sqrt", "square", "sub", "tanh", "tanh_backward", "threshold",
    "threshold_backward", "where", "xlogy",
))  # fmt: skip

_REDUCTIONS = frozenset(("amax", "amin", "mean", "std", "sum", "var", "var_mean"))


def is_pointwise(operator: Operator) -> bool:
    """Could a compiler run it in one loop with its pointwise neighbours?

    Casts are not counted: under autocast most of them change weights, which nothing precedes.
    """
    name = operator.name.removeprefix("aten::").rstrip("_")
    return name in _POINTWISE or name in _REDUCTIONS


def is_reduction(operator: Operator) -> bool:
    """Does it sum up what pointwise operators made? It can run inside their loop."""
    return operator.name.removeprefix("aten::") in _REDUCTIONS


def is_on(operator: Operator, shapes: Container[tuple[int, ...]]) -> bool:
    """Are all its tensors of these shapes, or transposes of them?"""
    own = operator.input_shapes()
    return bool(own) and all(shape in shapes or shape[::-1] in shapes for shape in own)


def largest_input(operator: Operator) -> int:
    """Elements of its largest input."""
    return max((prod(shape) for shape in operator.input_shapes()), default=0)
