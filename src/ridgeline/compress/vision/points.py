"""Where tensors between layers are rounded, found by what the operators do.

A layer reads rounded tensors; runtimes compute a convolution in integers only where its output is
rounded too, behind the ReLU that they fuse. Views, pools of maxima and the like keep levels as they
are, so what they read is rounded. A concatenation that no layer reads stays in float: the outputs
of a detector's heads keep a range each, and what decodes them is float arithmetic.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from torch import fx

from ridgeline.compress.vision.layers import VisionLayer
from ridgeline.compress.vision.operators import argument, operator_of

WHOLE = {
    "view", "reshape", "flatten", "unflatten", "permute", "transpose", "t", "squeeze", "unsqueeze",
    "max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool2d", "expand", "pixel_shuffle",
    "pixel_unshuffle", "upsample_nearest2d", "roll", "flip", "channel_shuffle", "repeat",
    "_unsafe_view", "max_pool2d_with_indices",
}  # fmt: skip
"""Operators whose results lie on the levels of their first argument, all of it."""
SPLITS = {"split", "split_with_sizes", "chunk", "unbind"}
"""Operators that give all parts of their first argument, each of which is taken from them."""
PARTIAL = SPLITS | {"slice", "select", "getitem", "narrow"}
"""Operators that give a part of their first argument, whose range may be another."""
CLIPS = {"relu", "relu6", "hardtanh", "clamp", "clamp_min"}
"""What a rounding does in the same step, if its range says so."""
_GATES = {"sigmoid", "hardsigmoid"}
_NORMALISE = {"softmax", "_softmax", "layer_norm", "native_layer_norm", "group_norm", "add"}
"""Operators behind which sizes are no longer those of the layer before."""
JOINS = {"cat", "concat", "concatenate"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A tensor that is rounded, and who reads it so."""

    node: fx.Node
    owner: str
    """The layer that it counts for: whose output it is, or else the first that reads it."""


def origin(node: fx.Node) -> fx.Node:
    """Whose levels a tensor has: behind views and pools of maxima."""
    while True:
        name = operator_of(node)
        pads_zeros = name in {"pad", "constant_pad_nd"} and _pads_zeros(node)
        if name not in WHOLE and not pads_zeros:
            return node
        before = node.args[0]
        if not isinstance(before, fx.Node):
            return node
        node = before


def _pads_zeros(node: fx.Node) -> bool:
    if operator_of(node) == "constant_pad_nd":
        return argument(node, 2, "value", 0) == 0
    return argument(node, 2, "mode", "constant") == "constant" and not argument(node, 3, "value")


def output_of(layer: VisionLayer) -> fx.Node:
    """Where a convolution's output is rounded: behind the clipping that is fused with it."""
    return _clipped(layer.node)


def _clipped(node: fx.Node) -> fx.Node:
    if len(node.users) == 1:
        (reader,) = node.users
        if operator_of(reader) in CLIPS:
            return reader
    return node


def find_points(layers: Sequence[VisionLayer], in_float: Collection[str] = ()) -> list[Point]:
    """All points, given which layers stay in float."""
    rounded = [layer for layer in layers if layer.name not in in_float]
    outputs = {output_of(layer): layer.name for layer in rounded if layer.convolves}
    made_by = {layer.node: layer.name for layer in layers if layer.weight is not None}
    owners: dict[fx.Node, str] = {}
    for layer in rounded:
        for node in layer.inputs:
            source = behind_parts(origin(node), outputs)
            if source not in outputs:
                owners.setdefault(source, _maker(source, made_by) or layer.name)
    found = [Point(node=node, owner=name) for node, name in outputs.items()]
    found += [Point(node=node, owner=name) for node, name in owners.items()]
    return found


def behind_parts(node: fx.Node, outputs: Collection[fx.Node]) -> fx.Node:
    """The output that a tensor is a part of, or else the part itself."""
    source = node
    while operator_of(source) in PARTIAL and isinstance(source.args[0], fx.Node):
        source = origin(source.args[0])
        if source in outputs:
            return source
    return node


def _maker(node: fx.Node, made_by: dict[fx.Node, str]) -> str | None:
    """The layer whose numbers a tensor has: behind functions of one tensor, gates and averages."""
    while node not in made_by:
        before = [one for one in node.all_input_nodes if one.op == "call_function"]
        if operator_of(node) in {"matmul", "bmm"}:
            # Shares of attention average the values that they are multiplied with.
            before = [one for one in node.args[1:2] if isinstance(one, fx.Node)]
        if operator_of(node) == "mul":
            before = [one for one in before if operator_of(one) not in _GATES]
        if len(before) != 1 or operator_of(node) in _NORMALISE:
            return None
        node = before[0]
    return made_by[node]


def joined(layers: Sequence[VisionLayer], points: Sequence[Point]) -> list[list[fx.Node]]:
    """Groups of points that one operator brings together: operands of a sum, parts of a concat."""
    nodes = {point.node for point in points}
    graph = layers[0].node.graph if layers else None
    found = []
    for node in graph.nodes if graph is not None else ():
        name = operator_of(node)
        if name == "add":
            operands = [one for one in node.args[:2] if isinstance(one, fx.Node)]
            group = [origin(one) for one in operands]
        elif name in JOINS:
            group = [origin(one) for one in node.args[0]] + [node]
        else:
            continue
        group = [one for one in dict.fromkeys(group) if one in nodes]
        if len(group) > 1:
            found.append(group)
    return found
