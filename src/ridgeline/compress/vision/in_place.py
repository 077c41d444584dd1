"""Operators that write into their input, as those that return a new tensor.

PyTorch's own way, `ExportedProgram.run_decompositions`, traces the whole graph once more: of
ResNet-50 it takes as long as the export did. Where what is written into is the fresh result of
another operator, as of a convolution before `ReLU(inplace=True)`, another operator in its place
and later readers that read its result say the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

_FRESH = frozenset({
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "linear", "matmul", "bmm", "batch_norm", "layer_norm", "group_norm", "instance_norm",
    "add", "sub", "mul", "div", "cat", "relu", "silu", "gelu", "sigmoid", "hardswish", "hardtanh",
    "hardsigmoid", "leaky_relu", "elu", "softmax", "max_pool2d", "avg_pool2d",
    "adaptive_avg_pool2d", "upsample_nearest2d", "upsample_bilinear2d",
})  # fmt: skip
"""Operators whose result shares no memory with what they read."""


def is_written_in_place(node: fx.Node) -> bool:
    """Whether an operator writes into something that it is given."""
    schema = getattr(node.target, "_schema", None)
    return bool(schema is not None and schema.is_mutable)


def without_writes(graph: fx.GraphModule) -> bool:
    """Replace what writes in place by what does not.

    Returns:
        Whether that could be done for all; False: the graph is not changed.
    """
    order = {node: place for place, node in enumerate(graph.graph.nodes)}
    found: dict[fx.Node, Any] = {}
    for node in order:
        if is_written_in_place(node):
            twin = _twin(node, order, found)
            if twin is None:
                return False
            found[node] = twin
    for node, twin in found.items():
        written = node.args[0]
        assert isinstance(written, fx.Node)
        node.target = twin
        written.replace_all_uses_with(
            node, delete_user_cb=lambda one, at=node: order[one] > order[at]
        )
    graph.recompile()
    return True


def _twin(node: fx.Node, order: dict[fx.Node, int], replaced: dict[fx.Node, Any]) -> Any:
    """The operator that returns what this one writes; None where more may see the write."""
    written = node.args[0] if node.args else None
    if not isinstance(written, fx.Node) or not (_is_fresh(written) or written in replaced):
        return None
    before = [one for one in written.users if order[one] < order[node]]
    if not all(_is_fresh(one) for one in before):  # a view of it sees the write
        return None
    if len({_dtype(one) for one in (node, *node.all_input_nodes)}) > 1:
        return None
    schema = node.target._schema  # type: ignore[union-attr]
    namespace, _, name = schema.name.partition("::")
    if namespace != "aten" or not name.endswith("_"):
        return None
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None)
    return getattr(packet, schema.overload_name or "default", None)


def _is_fresh(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.name.removeprefix("aten::") in _FRESH


def _dtype(node: fx.Node) -> object:
    return getattr(node.meta.get("val"), "dtype", None)
