"""Floating-point operations of an operator by its input shapes: 2·m·n·k for a product of matrices.

The same counts as torch.utils.flop_counter (torch/utils/flop_counter.py): a multiplication and an
addition are two, a causal mask is not seen. Convolutions: `convolution_flops.py`.

Of operators inside one another (`aten::convolution` and the library's own inside it) the outermost
that has a formula counts; `aten::linear` has none, so the `aten::addmm` inside it counts.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ridgeline.trace.columns import ABSENT, Ints, Trace
from ridgeline.trace.convolution_flops import CONVOLUTIONS, convolution_flops
from ridgeline.trace.operator_inputs import Dims, Inputs, inputs_of
from ridgeline.trace.sorting import distinct

PRODUCTS = {
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
COUNTED = (*PRODUCTS, *ATTENTION, *ATTENTION_BACKWARD, *CONVOLUTIONS)
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


def _counted_rows(trace: Trace) -> Ints:
    host = trace.host
    known = [number for number, name in enumerate(trace.names) if name in COUNTED]
    rows = np.flatnonzero(np.isin(host.name, known))
    outermost = []
    for thread in distinct(host.thread[rows]).tolist():
        own = rows[host.thread[rows] == thread]
        own = own[np.lexsort((-host.duration_us[own], host.start_us[own]))]
        ends = np.maximum.accumulate(host.end_us[own])
        inside = host.start_us[own][1:] < ends[:-1]
        outermost.append(own[np.append(True, ~inside)])
    return np.sort(np.concatenate(outermost)) if outermost else rows


def flops_of(operator: str, shapes: str) -> float | None:
    """FLOPs of one call; None for an operator or a shape that is not known.

    >>> flops_of("aten::mm", "[[[128, 64], [64, 32]], []]")
    524288.0
    """
    if operator not in COUNTED:
        return None
    inputs = inputs_of(shapes)
    if inputs is None:
        return None
    if operator in CONVOLUTIONS:
        return convolution_flops(operator, inputs)
    if operator in PRODUCTS:
        first = PRODUCTS[operator]
        return _product(inputs.tensor(first), inputs.tensor(first + 1))
    return _attention(operator, inputs)


def _product(a: Dims | None, b: Dims | None) -> float | None:
    if a is None or b is None or len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
        return None
    return 2.0 * prod(a) * b[-1]


def _attention(operator: str, inputs: Inputs) -> float | None:
    """q·kᵀ and its product with v; backward recomputes the first and has two gradients of each."""
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
