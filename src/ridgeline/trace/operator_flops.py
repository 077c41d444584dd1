"""Floating-point operations of an operator by its input shapes: 2·m·n·k for a product of matrices.

The same counts as torch.utils.flop_counter (torch/utils/flop_counter.py): a multiplication and an
addition are two. Only operators that call a GPU library themselves are counted, so that
`aten::linear` does not count again what the `aten::addmm` inside it does. Convolutions are left
out: the trace has the stride and padding of an input only as text, and not for every version.
"""

from __future__ import annotations

from math import prod
from typing import Any

import msgspec
import numpy as np

from ridgeline.trace.columns import ABSENT, Trace
from ridgeline.trace.sorting import distinct

_ATTENTION = (
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
)


_PRODUCTS = ("aten::mm", "aten::addmm", "aten::_addmm_activation", "aten::bmm", "aten::baddbmm")
_CONVOLUTIONS = ("aten::convolution", "aten::convolution_backward", "aten::cudnn_convolution")


def executed_flops(trace: Trace, start_us: float, end_us: float) -> float | None:
    """FLOPs of the operators that started in a stretch, recomputation included.

    None without shapes, and where convolutions ran, which are not counted.
    """
    host = trace.host
    counted = [n for n, name in enumerate(trace.names) if name in (*_PRODUCTS, *_ATTENTION)]
    convolves = [n for n, name in enumerate(trace.names) if name in _CONVOLUTIONS]
    rows = np.flatnonzero(np.isin(host.name, counted) & (host.shape != ABSENT))
    rows = rows[(host.start_us[rows] >= start_us) & (host.start_us[rows] < end_us)]
    if not len(rows) or np.isin(host.name, convolves).any():
        return None
    keys = host.name[rows].astype(np.int64) * len(trace.shapes) + host.shape[rows]
    total = 0.0
    for key in distinct(keys).tolist():
        name, shape = divmod(key, len(trace.shapes))
        flops = flops_of(trace.names[name], trace.shapes[shape])
        total += (flops or 0.0) * int(np.sum(keys == key))
    return total


def flops_of(operator: str, shapes: str) -> float | None:
    """FLOPs of one call; None for an operator or a shape that is not known.

    >>> flops_of("aten::mm", "[[[128, 64], [64, 32]], []]")
    524288.0
    """
    try:
        dims: Any = msgspec.json.decode(shapes)[0]
    except (msgspec.DecodeError, IndexError, TypeError):
        return None
    dims = [dim for dim in dims if isinstance(dim, list) and dim]
    if not all(isinstance(size, int) for dim in dims for size in dim):
        return None
    if operator == "aten::mm" and len(dims) >= 2:
        return _product(dims[0], dims[1])
    if operator in ("aten::addmm", "aten::_addmm_activation") and len(dims) >= 3:
        return _product(dims[1], dims[2])
    if operator == "aten::bmm" and len(dims) >= 2:
        return _product(dims[0], dims[1])
    if operator == "aten::baddbmm" and len(dims) >= 3:
        return _product(dims[1], dims[2])
    if operator in _ATTENTION and len(dims) >= 3:
        return _attention(*dims[:3])
    return None


def _product(a: list[int], b: list[int]) -> float | None:
    if len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
        return None
    return 2.0 * prod(a) * b[-1]


def _attention(query: list[int], key: list[int], value: list[int]) -> float | None:
    """q·kᵀ and its product with v, for [batch, heads, length, width]; a causal mask is not seen."""
    if not len(query) == len(key) == len(value) == 4:
        return None
    batch, heads, length, width = query
    return 2.0 * batch * heads * length * key[2] * (width + value[3])
