"""Strides, paddings and sizes that are given once for all dimensions, written out for each.

torch takes `stride=[2]` for both dimensions of an image. An exported program keeps the list as it
was given, and runtimes that read it want a number for each dimension.
"""

from __future__ import annotations

from typing import Any

import torch


def write_lists_out(program: Any) -> None:
    """Repeat the one number of a list for which an operator declares several."""
    for part in program.graph_module.modules():
        for node in part.graph.nodes if isinstance(part, torch.fx.GraphModule) else ():
            if hasattr(node.target, "_schema"):
                _write_out(node)


def _write_out(node: Any) -> None:
    """`aten.conv2d(x, w, b, [2])` as `aten.conv2d(x, w, b, [2, 2])`."""
    args, kwargs = list(node.args), dict(node.kwargs)
    for position, argument in enumerate(node.target._schema.arguments):
        declared = argument.N or 1
        if position < len(args):
            args[position] = _whole(args[position], declared)
        elif argument.name in kwargs:
            kwargs[argument.name] = _whole(kwargs[argument.name], declared)
    node.args, node.kwargs = tuple(args), kwargs


def _whole(value: Any, declared: int) -> Any:
    single = isinstance(value, list | tuple) and len(value) == 1
    return [*value] * declared if single and declared > 1 else value
