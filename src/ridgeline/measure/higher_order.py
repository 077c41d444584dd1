"""Operators that are given functions (`flex_attention`, `cond`, a scan), under a dispatch mode.

A mode is handed them where its `supports_higher_order_operators` is set; else they raise. They
have no schema, and what they compute is what their functions compute, or steps of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._higher_order_ops.flex_attention import flex_attention, flex_attention_backward
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

_IN_STEPS = (flex_attention, flex_attention_backward)
"""They multiply and normalise themselves, one operator after another, on whatever runs eagerly."""


def is_higher_order(operator: Any) -> bool:
    """Whether it is an operator that is given functions."""
    return isinstance(operator, HigherOrderOperator)


def run_inside(mode: TorchDispatchMode, operator: Any, args: Any, kwargs: Any) -> Any:
    """Run a higher-order operator so that `mode`, which is off here, sees what it consists of."""
    if operator in _IN_STEPS:
        with mode:
            return operator.py_kernels[torch._C.DispatchKey.CompositeExplicitAutograd](
                *args, **kwargs
            )
    args, kwargs = tree_map(functools.partial(_watched, mode), (args, kwargs))
    return operator(*args, **kwargs)


def _watched(mode: TorchDispatchMode, value: Any) -> Any:
    """A function that runs under `mode`; anything else as it is."""
    if not callable(value) or isinstance(value, torch.Tensor):
        return value
    return functools.partial(_run, mode, value)


def _run(mode: TorchDispatchMode, function: Callable[..., Any], *args: Any) -> Any:
    with mode:
        return function(*args)
