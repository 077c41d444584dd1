"""The least memory traffic of an operator call: every input read once, every output written once.

What a kernel moves beyond that (tiles read again, workspaces, layout changes) is its own doing and
shows as a lower rate. What a cache keeps from the call before is not moved at all: small calls can
exceed the memory's bandwidth.

    matmuls, attention, convolutions    inputs and the output that the formula has
    element-wise                        inputs and their broadcast; in place: the first one again

Sizes are those that torch writes: of an input expanded without being copied, the expanded ones.
"""

from __future__ import annotations

from math import prod

from ridgeline.trace.roofline.operator_flops import (
    ATTENTION,
    ATTENTION_BACKWARD,
    BACKWARD,
    FORWARD,
    MATMULS,
    convolution_output,
    gradients_wanted,
)
from ridgeline.trace.roofline.operator_inputs import Dims, OperatorInputs

_POINTWISE = frozenset(
    f"aten::{name}"
    for name in (
        "add", "sub", "rsub", "mul", "div", "relu", "gelu", "silu", "sigmoid", "tanh", "exp",
        "neg", "abs", "sqrt", "rsqrt", "pow", "sin", "cos", "clamp", "clamp_min", "lerp",
        "addcmul", "addcdiv", "threshold_backward", "gelu_backward", "silu_backward",
        "sigmoid_backward", "tanh_backward", "_softmax", "_log_softmax",
    )
)  # fmt: skip
"""The output has the sizes of the inputs together, and the format of the widest."""
_SOFTMAX_BACKWARD = ("aten::_softmax_backward_data", "aten::_log_softmax_backward_data")
_COPY = "aten::copy_"


def bytes_of(operator: str, inputs: OperatorInputs) -> float | None:
    """Bytes that one call cannot but move; None where the trace does not say enough."""
    if not inputs.types:
        return None
    if operator in FORWARD:
        output = convolution_output(operator, inputs)
        return _with_output(inputs, output)
    if operator == BACKWARD:
        return _convolution_gradients(inputs)
    if operator in MATMULS:
        return _matmul(operator, inputs)
    if operator in ATTENTION or operator in ATTENTION_BACKWARD:
        return _attention(operator, inputs)
    return _pointwise(operator, inputs)


def has_traffic(operator: str) -> bool:
    """Is it an element-wise operator whose bytes are known from its inputs?"""
    plain = operator.removesuffix("_")
    return operator in _POINTWISE or plain in _POINTWISE or operator in (_COPY, *_SOFTMAX_BACKWARD)


def _read(inputs: OperatorInputs) -> int:
    return sum(inputs.bytes(place) or 0 for place in range(len(inputs.dims)))


def _with_output(inputs: OperatorInputs, output: Dims | None) -> float | None:
    size = inputs.item_bytes(0)
    return None if output is None or size is None else float(_read(inputs) + prod(output) * size)


def _matmul(operator: str, inputs: OperatorInputs) -> float | None:
    if operator == "aten::_scaled_mm":
        return None  # the output's format is not in a trace
    first = MATMULS[operator]
    a, b = inputs.tensor(first), inputs.tensor(first + 1)
    if a is None or b is None or inputs.item_bytes(first) != inputs.item_bytes(first + 1):
        return None
    return _with_output(inputs, (*a[:-1], b[-1]))


def _attention(operator: str, inputs: OperatorInputs) -> float | None:
    first = int(operator in ATTENTION_BACKWARD)
    query, value = inputs.tensor(first), inputs.tensor(first + 2)
    sizes = [inputs.bytes(first + place) for place in range(3)]
    item = inputs.item_bytes(first)
    if query is None or value is None or item is None or None in sizes:
        return None
    if first:  # gradients of query, key and value
        return float(_read(inputs) + sum(size or 0 for size in sizes))
    return float(sum(size or 0 for size in sizes) + prod(query[:-1]) * value[-1] * item)


def _convolution_gradients(inputs: OperatorInputs) -> float | None:
    """Reads the gradient and what each result needs; writes the results."""
    wanted = gradients_wanted(inputs)
    sizes = [inputs.bytes(place) for place in range(3)]
    gradient, data, weight = sizes
    if wanted is None or gradient is None or data is None or weight is None:
        return None
    return float(gradient + (data + weight) * sum(wanted[:2]))


def _pointwise(operator: str, inputs: OperatorInputs) -> float | None:
    if not has_traffic(operator):
        return None
    if operator in _SOFTMAX_BACKWARD:
        written = inputs.bytes(0)
        return None if written is None else float(_read(inputs) + written)
    if operator == _COPY:  # writes its first argument and reads its second
        written, read = inputs.bytes(0), inputs.bytes(1)
        return None if written is None or read is None else float(written + read)
    if operator.endswith("_"):
        written = inputs.bytes(0)
        return None if written is None else float(_read(inputs) + written)
    tensors = [place for place in range(len(inputs.dims)) if inputs.bytes(place) is not None]
    output = _broadcast([inputs.dims[place] or () for place in tensors])
    if output is None:
        return None
    widest = max(inputs.item_bytes(place) or 0 for place in tensors)
    return float(_read(inputs) + prod(output) * widest)


def _broadcast(found: list[Dims]) -> Dims | None:
    """Sizes of several tensors together; None where they do not fit.

    >>> _broadcast([(8, 1, 4), (3, 4)])
    (8, 3, 4)
    """
    if not found:
        return None
    longest = max(len(dims) for dims in found)
    output = []
    for place in range(longest):
        sizes = {dims[place - longest] for dims in found if len(dims) >= longest - place} - {1}
        if len(sizes) > 1:
            return None
        output.append(sizes.pop() if sizes else 1)
    return tuple(output)
