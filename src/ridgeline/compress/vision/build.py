"""A graph with what rounds put into it: tensors behind their operators, weights, biases."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence

from torch import Tensor, fx

from ridgeline.checkpoints.quantised import Quantised
from ridgeline.compress.vision.layers import VisionLayer
from ridgeline.compress.vision.nodes import RoundedBias, RoundedTensor, rounded_weight
from ridgeline.compress.vision.operators import argument, constant_of, placed_constant
from ridgeline.compress.vision.points import Point, origin
from ridgeline.kernels.fake_quantisation.ranges import Range
from ridgeline.records.scheme import Scheme


def built(
    graph: fx.GraphModule,
    layers: Sequence[VisionLayer],
    points: Sequence[Point],
    ranges: Mapping[fx.Node, Range],
    weights: Mapping[str, Quantised],
    scheme: Scheme,
    in_float: Collection[str] = (),
) -> fx.GraphModule:
    """A copy of the graph that computes in integers, simulated.

    Args:
        graph: In float, with its biases as they shall be; not changed.
        layers: Of the graph.
        points: Where it rounds tensors.
        ranges: Of the points.
        weights: Levels [out, all else] of the layers that are rounded, by name.
        scheme: What numbers.
        in_float: Layers that read tensors as they are.
    """
    assert scheme.activations is not None
    own = copy.deepcopy(graph)
    nodes = {node.name: node for node in own.graph.nodes}
    exact = {one.node.name for one in layers if one.name in in_float}
    rounders = {}
    for number, point in enumerate(points):
        ends = None if scheme.activations.dynamic else ranges[point.node]
        rounder = RoundedTensor(scheme.activations, ends)
        own.add_submodule(f"rounded_tensor_{number}", rounder)
        rounders[point.node] = rounder
        _put_behind(own, nodes[point.node.name], f"rounded_tensor_{number}", exact)
    for number, layer in enumerate(layers):
        if layer.weight is None or layer.name not in weights:
            continue
        weight = constant_of(graph, layer.weight)
        assert weight is not None
        module = rounded_weight(weight, layer.axis, weights[layer.name])
        own.add_submodule(f"rounded_weight_{number}", module)
        _put_before(own, nodes[layer.node.name], 1, f"rounded_weight_{number}")
        bias = constant_of(own, argument(nodes[layer.node.name], 2, "bias"))
        scale = input_scale(layer, rounders)
        if bias is not None and scale is not None and layer.groups * len(module.scales) in {
            len(bias), layer.groups * len(bias)
        }:  # fmt: skip
            scales = module.scales * scale
            if len(scales) != len(bias):
                scales = scales.repeat(layer.groups)
            own.add_submodule(f"rounded_bias_{number}", RoundedBias(bias, scales))
            _put_before(own, nodes[layer.node.name], 2, f"rounded_bias_{number}")
    own.graph.eliminate_dead_code()
    own.delete_all_unused_submodules()
    own.recompile()
    return own.eval()


def input_scale(layer: VisionLayer, rounders: Mapping[fx.Node, RoundedTensor]) -> float | None:
    """The step of what a layer reads, where it is known beforehand."""
    rounder = rounders.get(origin(layer.inputs[0]))
    return None if rounder is None or rounder.form.dynamic else rounder.scale


def _put_behind(graph: fx.GraphModule, node: fx.Node, name: str, in_float: Collection[str]) -> None:
    """Whoever reads a node reads it rounded, but for layers in float."""
    with graph.graph.inserting_after(node):
        rounded = graph.graph.call_module(name, (node,))
    node.replace_all_uses_with(
        rounded, delete_user_cb=lambda user: user is not rounded and user.name not in in_float
    )


def _put_before(graph: fx.GraphModule, node: fx.Node, place: int, name: str) -> None:
    """An argument of a node comes from a module."""
    with graph.graph.inserting_before(node):
        found = graph.graph.call_module(name, ())
    arguments = list(node.args) + [None] * (place + 1 - len(node.args))
    arguments[place] = found
    node.args = tuple(arguments)
    node.kwargs = {key: one for key, one in node.kwargs.items() if key not in {"bias", "weight"}}


def with_biases(
    graph: fx.GraphModule, layers: Sequence[VisionLayer], added: Mapping[str, Tensor]
) -> fx.GraphModule:
    """A copy of a graph with something added to biases, by layer."""
    own = copy.deepcopy(graph)
    nodes = {node.name: node for node in own.graph.nodes}
    for layer in layers:
        bias = constant_of(graph, layer.bias)
        if bias is None or layer.name not in added:
            continue
        node = nodes[layer.node.name]
        new = (bias.double() + added[layer.name]).to(bias.dtype)
        place = placed_constant(own, new, f"{node.name}_corrected_bias", node)
        node.args = (*node.args[:2], place, *node.args[3:])
        node.kwargs = {key: one for key, one in node.kwargs.items() if key != "bias"}
    own.recompile()
    return own
