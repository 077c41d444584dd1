"""Ranges of a graph's tensors from calibration batches, and which tensors share one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor, fx

from ridgeline.compress.vision.batches import Batch
from ridgeline.compress.vision.graph import run_watched
from ridgeline.compress.vision.layers import VisionLayer
from ridgeline.compress.vision.operators import operator_of
from ridgeline.compress.vision.points import (
    JOINS,
    PARTIAL,
    SPLITS,
    WHOLE,
    Point,
    behind_parts,
    joined,
    origin,
    output_of,
)
from ridgeline.kernels.fake_quantisation.histogram import TensorHistogram
from ridgeline.kernels.fake_quantisation.ranges import Range, find_range
from ridgeline.records.scheme import NumberFormat

SHARE_WITHIN = 1.25
"""How many times one range may be the other for both to take the wider: a third of a bit lost."""
APART = 64.0
"""From here on the smaller of two ranges would keep four levels of 256."""
HEAD_APART = 8.0
"""The limit for parts of a head, whose levels are the outputs: five of eight bits would be left."""

Histograms = dict[fx.Node, TensorHistogram]


def watched_ranges(
    graph: fx.GraphModule, nodes: Iterable[fx.Node], batches: Sequence[Batch]
) -> Histograms:
    """What flows through some nodes of a graph."""
    found = {node: TensorHistogram() for node in nodes}

    def note(node: fx.Node, value: object) -> None:
        if node in found and isinstance(value, Tensor):
            found[node].add(value)

    run_watched(graph, batches, note)
    return found


def ranges_of(
    layers: Sequence[VisionLayer],
    points: Sequence[Point],
    seen: Histograms,
    form: NumberFormat,
) -> dict[fx.Node, Range]:
    """The range of each point; of operands alike, the one that holds all of them."""
    found = {point.node: find_range(seen[point.node], form) for point in points}
    for group in joined(layers, points):
        widths = [max(-found[node][0], found[node][1]) for node in group]
        if min(widths) > 0 and max(widths) <= SHARE_WITHIN * min(widths):
            low = min(found[node][0] for node in group)
            high = max(found[node][1] for node in group)
            found |= dict.fromkeys(group, (low, high))
    return found


def parts_of(layers: Sequence[VisionLayer]) -> dict[str, list[fx.Node]]:
    """What a layer reads through a concatenation, by layer: the parts."""
    found: dict[str, list[fx.Node]] = {}
    for layer in layers:
        for node in layer.inputs:
            source = origin(node)
            if operator_of(source) in JOINS:
                parts = source.args[0]
                assert isinstance(parts, Sequence)
                found[layer.name] = [one for one in parts if isinstance(one, fx.Node)]
    return found


def head_parts(layers: Sequence[VisionLayer]) -> dict[str, list[fx.Node]]:
    """What a convolution gives in parts that no layer reads, such as boxes and scores, by layer."""
    made = {output_of(layer): layer.name for layer in layers if layer.convolves}
    read = {behind_parts(origin(node), made) for layer in layers for node in layer.inputs}
    parts = {name: _parts(node) for node, name in made.items() if node not in read}
    return {name: nodes for name, nodes in parts.items() if len(nodes) > 1}


def _parts(node: fx.Node) -> list[fx.Node]:
    """The parts that a tensor is taken apart into, behind views of all of it."""
    found: list[fx.Node] = []
    for user in node.users:
        operator = operator_of(user)
        if operator in WHOLE:
            found += _parts(user)
        elif operator in SPLITS:
            found += user.users
        elif operator in PARTIAL:
            found.append(user)
    if len(found) == 1:  # one slice of all of it
        return _parts(found[0])
    return found


def layers_apart(layers: Sequence[VisionLayer], seen: Histograms) -> dict[str, str]:
    """Layers of parts whose ranges differ by so much that one scale would ruin some.

    Returns:
        By name, why such a layer stays in float.
    """
    found = {}
    given = [("gives", HEAD_APART, head_parts(layers)), ("reads", APART, parts_of(layers))]
    for verb, most, by_layer in given:
        for name, parts in by_layer.items():
            widths = [max(-seen[one].low, seen[one].high) for one in parts if one in seen]
            if widths and min(widths) > 0 and max(widths) > most * min(widths):
                ratio = max(widths) / min(widths)
                found[name] = f"{verb} parts whose ranges differ {ratio:.0f} to 1"
    return found
