"""Weights of neighbouring layers brought to one range, and high biases moved on, before rounding.

Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction", arXiv
1906.04721. A channel between two layers may be divided by s > 0 in the first and multiplied by s
in the second without changing the result, if what lies between is positively homogeneous (ReLU).
With s = √(r₁ r₂) / r₂ both weights have the same range in each channel (section 4.1, equation 11).
A channel whose smallest output c after ReLU is above 0 takes −c into the first bias and W₂ c into
the second (section 4.1.3); here only where the second layer pads nothing, so that it stays exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from ridgeline.compress.vision.batches import Batch
from ridgeline.compress.vision.graph import run_watched
from ridgeline.compress.vision.layers import VisionLayer
from ridgeline.compress.vision.operators import (
    argument,
    constant_of,
    module_of,
    operator_of,
    placed_constant,
)

_HOMOGENEOUS = {
    "relu", "leaky_relu", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "adaptive_max_pool2d",
    "upsample_nearest2d",
}  # fmt: skip
_ROUNDS = 20
_SETTLED = 1e-3
_TINY = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two layers with nothing between them that scaling channels would change."""

    first: VisionLayer
    second: VisionLayer
    between: tuple[fx.Node, ...]


def find_pairs(graph: fx.GraphModule, layers: Sequence[VisionLayer]) -> list[Pair]:
    """All pairs whose first layer is read by the second alone."""
    by_node = {layer.node: layer for layer in layers if _has_own_weight(layer)}
    found = []
    for layer in by_node.values():
        if layer.kind == "transposed convolution":
            continue
        node = layer.node
        between: list[fx.Node] = []
        while len(node.users) == 1:
            (node,) = node.users
            second = by_node.get(node)
            if second is not None and _fits(graph, layer, second):
                found.append(Pair(first=layer, second=second, between=tuple(between)))
            if second is not None or operator_of(node) not in _HOMOGENEOUS:
                break
            between.append(node)
    return found


def _has_own_weight(layer: VisionLayer) -> bool:
    return layer.weight is not None and len(layer.weight.users) == 1


def _fits(graph: fx.GraphModule, first: VisionLayer, second: VisionLayer) -> bool:
    """Whether the channels of one are those of the other, each a column."""
    one, other = constant_of(graph, first.weight), constant_of(graph, second.weight)
    assert one is not None
    assert other is not None
    straight = second.kind != "transposed convolution" and first.convolves == second.convolves
    return straight and len(one) == other.shape[1] * second.groups


def equalise(graph: fx.GraphModule, layers: Sequence[VisionLayer], batches: Sequence[Batch]) -> int:
    """Equalise all pairs in place, then absorb high biases; the number of pairs."""
    pairs = find_pairs(graph, layers)
    weights = {
        layer.name: constant_of(graph, layer.weight).double()  # type: ignore[union-attr]
        for pair in pairs
        for layer in (pair.first, pair.second)
    }
    factors = {
        pair.first.name: torch.ones(len(weights[pair.first.name])).double() for pair in pairs
    }
    for _ in range(_ROUNDS):
        furthest = 0.0
        for pair in pairs:
            scale = _balance(weights, pair)
            factors[pair.first.name] *= scale
            furthest = max(furthest, float((scale.log().abs()).max()))
        if furthest < _SETTLED:
            break
    for layer in {one.name: one for pair in pairs for one in (pair.first, pair.second)}.values():
        _place(graph, layer, weights[layer.name], factors.get(layer.name))
    graph.recompile()
    _absorb(graph, pairs, batches)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return len(pairs)


def _balance(weights: dict[str, Tensor], pair: Pair) -> Tensor:
    """Scale the channels between two layers; the scales [channels]."""
    first, second = weights[pair.first.name], weights[pair.second.name]
    into = _columns(second, pair.second.groups).abs().amax((1, 2))
    out = first.flatten(1).abs().amax(1)
    usable = (out > _TINY) & (into > _TINY)
    scale = torch.where(usable, (out / into.clamp_min(_TINY)).sqrt(), torch.ones_like(out))
    weights[pair.first.name] = first / scale.view(-1, *[1] * (first.ndim - 1))
    weights[pair.second.name] = _times_columns(second, scale, pair.second.groups)
    return scale


def _columns(weight: Tensor, groups: int) -> Tensor:
    """A weight [out, in / groups, …] by input channel, [in, out / groups, kernel]."""
    out, inputs = weight.shape[:2]
    return weight.reshape(groups, out // groups, inputs, -1).transpose(1, 2).flatten(0, 1)


def _times_columns(weight: Tensor, scale: Tensor, groups: int) -> Tensor:
    out, inputs = weight.shape[:2]
    grouped = weight.reshape(groups, out // groups, inputs, -1)
    return (grouped * scale.reshape(groups, 1, inputs, 1)).reshape(weight.shape)


def _place(
    graph: fx.GraphModule, layer: VisionLayer, weight: Tensor, factor: Tensor | None
) -> None:
    """Let a layer read its scaled weight, and a bias divided as its channels are."""
    node = layer.node
    old = constant_of(graph, node.args[1])
    assert old is not None
    module = module_of(node.args[1])
    place = placed_constant(graph, weight.to(old.dtype), module, "equal_weight", node)
    node.args = (node.args[0], place, *node.args[2:])
    bias = constant_of(graph, argument(node, 2, "bias"))
    if bias is not None and factor is not None:
        _place_bias(graph, layer, (bias.double() / factor).to(bias.dtype))


def _place_bias(graph: fx.GraphModule, layer: VisionLayer, bias: Tensor) -> None:
    node = layer.node
    module = module_of(node.args[1])
    place = placed_constant(graph, bias, module, "equal_bias", node)
    node.args = (*node.args[:2], place, *node.args[3:])
    node.kwargs = {key: one for key, one in node.kwargs.items() if key != "bias"}


def _absorb(graph: fx.GraphModule, pairs: Sequence[Pair], batches: Sequence[Batch]) -> None:
    """Move what every image has in a channel behind ReLU into the next bias."""
    last: dict[fx.Node, Pair] = {}
    for pair in pairs:
        names = [operator_of(node) for node in pair.between]
        biased = argument(pair.first.node, 2, "bias") and argument(pair.second.node, 2, "bias")
        if names == ["relu"] and biased and _unpadded(pair.second):
            last[pair.between[0]] = pair
    lowest: dict[fx.Node, Tensor] = {}

    def note(node: fx.Node, value: object) -> None:
        if node in last and isinstance(value, Tensor):
            channels = 1 if last[node].first.convolves else -1
            least = value.movedim(channels, 0).flatten(1).amin(1).double()
            lowest[node] = torch.minimum(lowest.get(node, least), least)

    run_watched(graph, batches, note)
    for node, pair in last.items():
        common = lowest[node]
        if not bool((common > 0).any()):
            continue
        first = constant_of(graph, argument(pair.first.node, 2, "bias"))
        second = constant_of(graph, argument(pair.second.node, 2, "bias"))
        weight = constant_of(graph, pair.second.node.args[1])
        assert first is not None
        assert second is not None
        assert weight is not None
        moved = _times_columns(weight.double(), common, pair.second.groups).flatten(1).sum(1)
        _place_bias(graph, pair.first, (first.double() - common).to(first.dtype))
        _place_bias(graph, pair.second, (second.double() + moved).to(second.dtype))


def _unpadded(layer: VisionLayer) -> bool:
    if layer.kind == "linear":
        return True
    padding = argument(layer.node, 4, "padding", 0)
    given = [padding] if isinstance(padding, int) else padding
    return padding == "valid" or all(one == 0 for one in given)
