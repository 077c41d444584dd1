"""Operators and constants of a traced graph, read and placed."""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx


def operator_of(node: fx.Node) -> str:
    """The name of an operator without namespace and overload; empty for what is none."""
    packet = getattr(node.target, "overloadpacket", None)
    if node.op != "call_function":
        return ""
    return str(packet.__name__ if packet else getattr(node.target, "__name__", ""))


def constant_of(graph: fx.GraphModule, node: Any) -> Tensor | None:
    """The weights or constant that a node reads from the module."""
    if not isinstance(node, fx.Node) or node.op != "get_attr":
        return None
    found: Any = graph
    for part in str(node.target).split("."):
        found = getattr(found, part)
    return found if isinstance(found, Tensor) else None


def placed_constant(graph: fx.GraphModule, value: Tensor, name: str, before: fx.Node) -> fx.Node:
    """A node that reads a new buffer of the module."""
    name = name.replace(".", "_")
    while hasattr(graph, name):
        name += "_"
    graph.register_buffer(name, value)
    with graph.graph.inserting_before(before):
        return graph.graph.get_attr(name)


def argument(node: fx.Node, place: int, name: str, otherwise: Any = None) -> Any:
    """An argument of an operator, given by place or by name."""
    if len(node.args) > place:
        return node.args[place]
    return node.kwargs.get(name, otherwise)
