"""Floating-point operations of an operator call by its inputs: 2·m·n·k for a matmul.

The same counts as torch.utils.flop_counter (torch/utils/flop_counter.py): a multiplication and an
addition are two, a causal mask is not seen. Of operators inside one another (`aten::convolution`
and the library's own inside it) the outermost that has a formula counts; `aten::linear` has none,
so the `aten::addmm` inside it counts.

A convolution has two operations for every number of the output (of a transposed one: of the input)
and every weight that it meets:

    forward                    2 · |output| · |weight| / c_out        |input| when transposed
    gradient of the input      as forward
    gradient of the weight     as forward

as torch's `conv_flop_count` has it, but for grouped convolutions: there its gradient of the weight
is larger by the number of groups, as if each filter met all channels of the input. The output of a
convolution is not in a trace; it follows from stride, padding and dilation, which torch writes
since 2.1. Without them a forward call is unknown, never guessed. Backward the gradient has the
output's size.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from ridgeline.trace.columns import ABSENT, Ints, Trace
from ridgeline.trace.roofline.operator_inputs import Dims, OperatorInputs, operator_inputs
from ridgeline.trace.sorting import distinct


class _Places(NamedTuple):
    """Where an operator's schema has what decides the output; the input is 0, the weight 1."""

    stride: int
    padding: int
    dilation: int
    transposed: int | None
    """The place of the flag; None where the operator never is transposed."""


FORWARD = {
    "aten::convolution": _Places(3, 4, 5, 6),
    "aten::_convolution": _Places(3, 4, 5, 6),
    "aten::cudnn_convolution": _Places(3, 2, 4, None),
    "aten::cudnn_convolution_relu": _Places(3, 4, 5, None),
    "aten::cudnn_convolution_add_relu": _Places(5, 6, 7, None),
    "aten::miopen_convolution": _Places(4, 3, 5, None),
}
BACKWARD = "aten::convolution_backward"
"""(gradient, input, weight, bias' size, stride, padding, dilation, transposed, …, output mask)."""
OLD_BACKWARD = "aten::cudnn_convolution_backward_input"
"""The gradient of torch 1: (input's size, gradient, weight, …), never transposed."""
CONVOLUTIONS = (*FORWARD, BACKWARD, OLD_BACKWARD)
_TRANSPOSED, _MASK = 7, 10


def convolution_flops(operator: str, inputs: OperatorInputs) -> float | None:
    """FLOPs of one call of one of `CONVOLUTIONS`; None where its arguments are not all there."""
    if operator == OLD_BACKWARD:
        gradient, weight = inputs.tensor(1), inputs.tensor(2)
        return None if gradient is None or weight is None else _meetings(gradient, weight)
    if operator == BACKWARD:
        return _backward(inputs)
    data, weight = inputs.tensor(0), inputs.tensor(1)
    transposed = _is_transposed(operator, inputs)
    met = data if transposed else convolution_output(operator, inputs)
    return None if met is None or weight is None else _meetings(met, weight)


def convolution_output(operator: str, inputs: OperatorInputs) -> Dims | None:
    """Sizes of the output of a forward convolution, by torch.nn.Conv2d's formula.

    None for a transposed one and where an argument is missing.
    """
    places = FORWARD[operator]
    data, weight = inputs.tensor(0), inputs.tensor(1)
    if data is None or weight is None or len(data) != len(weight) or len(data) < 3:
        return None
    if _is_transposed(operator, inputs) is not False:
        return None
    space = len(data) - 2
    found = [
        _expanded(inputs.numbers(place), space)
        for place in (places.stride, places.padding, places.dilation)
    ]
    strides, paddings, dilations = found
    if strides is None or paddings is None or dilations is None or min(strides) < 1:
        return None
    sizes = [
        (length + 2 * padding - dilation * (filter_length - 1) - 1) // stride + 1
        for length, filter_length, stride, padding, dilation in zip(
            data[2:], weight[2:], strides, paddings, dilations, strict=True
        )
    ]
    return (data[0], weight[0], *sizes) if min(sizes) > 0 else None


def gradients_wanted(inputs: OperatorInputs) -> tuple[bool, ...] | None:
    """Which gradients of input, weight and bias a backward convolution computes; None: not said."""
    mask = inputs.flags(_MASK)
    return mask if mask is not None and len(mask) == 3 else None


def _backward(inputs: OperatorInputs) -> float | None:
    gradient, data, weight = (inputs.tensor(place) for place in range(3))
    transposed, wanted = inputs.flags(_TRANSPOSED), gradients_wanted(inputs)
    if gradient is None or data is None or weight is None or transposed is None or wanted is None:
        return None
    return _meetings(data if transposed[0] else gradient, weight) * sum(wanted[:2])


def _is_transposed(operator: str, inputs: OperatorInputs) -> bool | None:
    place = FORWARD[operator].transposed
    if place is None:
        return False
    found = inputs.flags(place)
    return None if found is None or len(found) != 1 else found[0]


def _meetings(numbers: Dims, weight: Dims) -> float:
    """Each of the numbers meets the weights of one filter."""
    return 2.0 * prod(numbers) * prod(weight[1:])


def _expanded(numbers: tuple[int, ...] | None, space: int) -> tuple[int, ...] | None:
    """One number stands for all dimensions."""
    if numbers is None or len(numbers) not in (1, space):
        return None
    return numbers * space if len(numbers) == 1 else numbers


MATMULS = {
    "aten::mm": 0,
    "aten::bmm": 0,
    "aten::_scaled_mm": 0,
    "aten::addmm": 1,
    "aten::_addmm_activation": 1,
    "aten::baddbmm": 1,
}
"""Products of matrices → place of the first matrix; the second follows it."""
ATTENTION = tuple(
    f"aten::_scaled_dot_product_{kind}_attention" for kind in ("flash", "efficient", "cudnn")
)
"""(query, key, value, …), each [batch, heads, length, width]."""
ATTENTION_BACKWARD = tuple(f"{name}_backward" for name in ATTENTION)
"""(gradient, query, key, value, …)."""
COUNTED = (*MATMULS, *ATTENTION, *ATTENTION_BACKWARD, *CONVOLUTIONS)
"""Operators with a formula."""


def executed_flops(trace: Trace, start_us: float, end_us: float) -> float | None:
    """FLOPs of the operators that started in a stretch, recomputation included.

    None without shapes, and where a convolution's other arguments are not in the trace.
    """
    host = trace.host
    rows = counted_rows(trace)
    rows = rows[(host.start_us[rows] >= start_us) & (host.start_us[rows] < end_us)]
    if not len(rows) or not np.any(host.shape[rows] != ABSENT):
        return None
    many = len(trace.shapes) + 1
    keys = host.name[rows].astype(np.int64) * many + host.shape[rows] + 1
    total = 0.0
    for key in distinct(keys).tolist():
        name, shape = divmod(key, many)
        flops = flops_of(trace.names[name], trace.shapes[shape - 1]) if shape else None
        if flops is None and trace.names[name] in CONVOLUTIONS:
            return None
        total += (flops or 0.0) * int(np.sum(keys == key))
    return total


def counted_rows(trace: Trace) -> Ints:
    """Rows of `trace.host` of the operators that count: with a formula, and in no other such."""
    return trace.derived("counted_rows", _counted_rows)


_ROUNDING_US = 1e-3
"""A call that starts where the one before ends is not inside of it, however a stamp of 1e12 µs was
rounded: profilers write nanoseconds."""


def _counted_rows(trace: Trace) -> Ints:
    host = trace.host
    known = np.array([name in COUNTED for name in trace.names], bool)
    rows = np.flatnonzero(known[host.name]) if len(host) else np.zeros(0, np.int64)
    outermost = []
    for thread in distinct(host.thread[rows]).tolist():
        own = rows[host.thread[rows] == thread]
        own = own[np.lexsort((-host.duration_us[own], host.start_us[own]))]
        ends = np.maximum.accumulate(host.ends_of(own))
        inside = host.start_us[own][1:] < ends[:-1] - _ROUNDING_US
        outermost.append(own[np.append(True, ~inside)])
    return np.sort(np.concatenate(outermost)) if outermost else rows


def flops_of(operator: str, shapes: str) -> float | None:
    """FLOPs of one call; None for an operator or a shape that is not known.

    >>> flops_of("aten::mm", "[[[128, 64], [64, 32]], []]")
    524288.0
    """
    if operator not in COUNTED:
        return None
    inputs = operator_inputs(shapes)
    if inputs is None:
        return None
    if operator in CONVOLUTIONS:
        return convolution_flops(operator, inputs)
    if operator in MATMULS:
        first = MATMULS[operator]
        return _matmul(inputs.tensor(first), inputs.tensor(first + 1))
    return _attention(operator, inputs)


def _matmul(a: Dims | None, b: Dims | None) -> float | None:
    if a is None or b is None or len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
        return None
    return 2.0 * prod(a) * b[-1]


def _attention(operator: str, inputs: OperatorInputs) -> float | None:
    """q·kᵀ and its matmul with v; backward recomputes the first and has two gradients of each."""
    first = int(operator in ATTENTION_BACKWARD)
    query, key, value = (inputs.tensor(first + place) for place in range(3))
    if query is None or key is None or value is None:
        return None
    if not len(query) == len(key) == len(value) == 4:
        return None
    batch, heads, length, width = query
    scores = 2.0 * batch * heads * length * key[2]
    times = (3, 2) if first else (1, 1)
    return scores * (times[0] * width + times[1] * value[3])
