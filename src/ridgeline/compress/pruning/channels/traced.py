"""A module as the graph of operations that its forward pass is, by torch.export.

Operations are ATen's (`aten.conv2d.default`), so it does not matter whether a convolution was
written as a module, a function, or in a class that nobody has seen before. The graph is that of
evaluation: batch norms use their running statistics, dropout does nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ridgeline.errors import InputError, in_words


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Operations in the order in which they run."""

    nodes: tuple[torch.fx.Node, ...]
    stored: Mapping[str, str]
    """Node that stands for a parameter or buffer → its name in the module."""
    shapes: Mapping[str, tuple[int, ...]]
    """Node → shape of the tensor that it makes; nodes that make several are left out."""


def traced(model: nn.Module, example: tuple[Tensor, ...]) -> Graph:
    """The forward pass of a module, which is not changed.

    Args:
        model: Any module.
        example: Its positional inputs.

    Raises:
        InputError: torch.export cannot follow its code, or it does not take these inputs.
    """
    asleep = copy.deepcopy(model).eval()
    try:
        with torch.no_grad():
            program = torch.export.export(asleep, example, strict=False)
    except Exception as error:  # whatever model code and the tracer raise
        raise InputError(
            f"torch.export cannot follow this model on the example: {in_words(error)}"
        ) from error
    signature = program.graph_signature
    stored = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    stored |= signature.inputs_to_lifted_tensor_constants
    nodes = tuple(program.graph.nodes)
    shapes = {
        node.name: tuple(value.shape)
        for node in nodes
        if isinstance(value := node.meta.get("val"), Tensor)
    }
    return Graph(nodes=nodes, stored=stored, shapes=shapes)


def place(node: torch.fx.Node) -> str:
    """An operation and the module that runs it, for a person."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next(reversed(stack.values()), ("",))[0]
    operation = str(node.target).removeprefix("aten.").partition(".")[0]
    return f"{operation} in {path}" if path else operation
