"""Floating-point operations of convolutions, forward and backward, by their arguments.

A multiplication and an addition are two, for every number of the output (of a transposed
convolution: of the input) and every weight that it meets:

    forward                    2 · |output| · |weight| / c_out        |input| when transposed
    gradient of the input      as forward
    gradient of the weight     as forward

as torch.utils.flop_counter (torch/utils/flop_counter.py, `conv_flop_count`) has it, but for grouped
convolutions: there its gradient of the weight is larger by the number of groups, as if each
filter met all channels of the input.

The output of a convolution is not in a trace; it follows from stride, padding and dilation, which
torch writes since 2.1. Without them a forward call is unknown, never guessed. Backward the
gradient has the output's size.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from ridgeline.trace.operator_inputs import Dims, Inputs


class _Places(NamedTuple):
    """Where an operator's schema has what decides the output; the input is 0, the weight 1."""

    stride: int
    padding: int
    dilation: int
    transposed: int | None
    """None: the operator never is."""


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
"""Of torch 1: (input's size, gradient, weight, …), never transposed."""
CONVOLUTIONS = (*FORWARD, BACKWARD, OLD_BACKWARD)
_TRANSPOSED, _MASK = 7, 10


def convolution_flops(operator: str, inputs: Inputs) -> float | None:
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


def convolution_output(operator: str, inputs: Inputs) -> Dims | None:
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


def gradients_wanted(inputs: Inputs) -> tuple[bool, ...] | None:
    """Of input, weight and bias: which a backward convolution computes; None: not said."""
    mask = inputs.flags(_MASK)
    return mask if mask is not None and len(mask) == 3 else None


def _backward(inputs: Inputs) -> float | None:
    gradient, data, weight = (inputs.tensor(place) for place in range(3))
    transposed, wanted = inputs.flags(_TRANSPOSED), gradients_wanted(inputs)
    if gradient is None or data is None or weight is None or transposed is None or wanted is None:
        return None
    return _meetings(data if transposed[0] else gradient, weight) * sum(wanted[:2])


def _is_transposed(operator: str, inputs: Inputs) -> bool | None:
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
