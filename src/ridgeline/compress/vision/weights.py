"""Weights of convolutions and linear layers rounded: to nearest, or by GPTQ on unfolded inputs.

A convolution is a product of its weight [out, in · kernel] with patches of its input, so the
Hessian of GPTQ (arXiv 2210.17323) is that of the patches. Grouped convolutions round to nearest:
each of their rows sees few inputs, whose errors have little room to be made up for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, fx
from torch.nn import functional

from ridgeline.checkpoints.quantised import Quantised
from ridgeline.compress.methods import gptq
from ridgeline.compress.vision.batches import Batch
from ridgeline.compress.vision.graph import run_watched
from ridgeline.compress.vision.layers import VisionLayer
from ridgeline.compress.vision.nodes import as_rows, least_scales, to_nearest
from ridgeline.compress.vision.operators import argument, constant_of
from ridgeline.compress.watching.statistics import CalibrationStatistics, add_products, mirror
from ridgeline.records.scheme import Scheme

_PATCHES = 2**13
"""Patches of a batch that a Hessian is summed over, an even sample."""


def rounded_to_nearest(
    graph: fx.GraphModule,
    layers: Sequence[VisionLayer],
    scheme: Scheme,
    input_scales: Mapping[str, float],
) -> dict[str, Quantised]:
    """The levels [out, all else] of each layer with a weight.

    Args:
        graph: With the weights.
        layers: To round; products of activations have no weights and are left out.
        scheme: Its format of weights.
        input_scales: Of static inputs: a bias must fit 32 bits in steps of their product.
    """
    found = {}
    for layer in layers:
        weight = constant_of(graph, layer.weight)
        if weight is None:
            continue
        least = _least(graph, layer, weight, input_scales.get(layer.name))
        assert scheme.weights is not None
        found[layer.name] = to_nearest(weight, layer.axis, scheme.weights, layer.name, least)
    return found


def _least(
    graph: fx.GraphModule, layer: VisionLayer, weight: Tensor, scale: float | None
) -> Tensor | None:
    bias = constant_of(graph, layer.bias)
    if bias is None or scale is None or len(bias) != weight.shape[layer.axis]:
        return None
    return least_scales(bias, scale)


def rounded_by_gptq(
    graph: fx.GraphModule,
    layers: Sequence[VisionLayer],
    scheme: Scheme,
    batches: Sequence[Batch],
    input_scales: Mapping[str, float],
) -> dict[str, Quantised]:
    """The levels of the layers whose columns can make up for each other.

    A layer whose bias needs wider steps than GPTQ takes is not among them (`rounded_to_nearest`
    widens them): next to that bias what its inputs add does not count.
    """
    chosen = {
        layer.node: layer
        for layer in layers
        if layer.weight is not None and layer.groups == 1 and layer.axis == 0
    }
    sums: dict[fx.Node, Tensor] = {}
    counts: dict[fx.Node, int] = {}
    reads: dict[fx.Node, list[fx.Node]] = {}
    for node, layer in chosen.items():
        reads.setdefault(layer.inputs[0], []).append(node)

    def note(node: fx.Node, value: object) -> None:
        for reader in reads.get(node, ()):
            assert isinstance(value, Tensor)
            rows = patches(reader, value, chosen[reader], graph)
            sums.setdefault(reader, rows.new_zeros(rows.shape[1], rows.shape[1]))
            add_products(sums[reader], rows)
            counts[reader] = counts.get(reader, 0) + len(rows)

    run_watched(graph, batches, note)
    found = {}
    for node, layer in chosen.items():
        weight = constant_of(graph, layer.weight)
        assert weight is not None
        hessian = mirror(sums.pop(node)) * (2.0 / counts[node])
        seen = CalibrationStatistics(num_tokens=counts[node], hessian=hessian)
        rows = as_rows(weight.float(), layer.axis)
        rounded = gptq.quantise(rows, scheme, seen, name=layer.name).quantised
        least = _least(graph, layer, weight, input_scales.get(layer.name))
        if least is None or bool((rounded.scales.flatten() >= least).all()):
            found[layer.name] = rounded
    return found


def patches(node: fx.Node, value: Tensor, layer: VisionLayer, graph: fx.GraphModule) -> Tensor:
    """An even sample of what a layer multiplies its weight with, [rows, in · kernel]."""
    if layer.kind == "linear":
        rows = value.reshape(-1, value.shape[-1]).float()
    else:
        weight = constant_of(graph, layer.weight)
        assert weight is not None
        rows = _unfolded(node, value, weight)
    step = max(1, len(rows) // _PATCHES)
    return rows[::step]


def _unfolded(node: fx.Node, value: Tensor, weight: Tensor) -> Tensor:
    """Patches of a convolution's input, [places, in · kernel]."""
    dims = weight.ndim - 2
    stride = _each(argument(node, 3, "stride", 1), dims)
    padding: object = argument(node, 4, "padding", 0)
    dilation = _each(argument(node, 5, "dilation", 1), dims)
    kernel = weight.shape[2:]
    value = value.float()
    if isinstance(padding, str):
        whole = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        sides = [(one // 2, one - one // 2) if padding == "same" else (0, 0) for one in whole]
    else:
        sides = [(one, one) for one in _each(padding, dims)]
    value = functional.pad(value, [one for pair in reversed(sides) for one in pair])
    for dim in range(dims):
        span = dilation[dim] * (kernel[dim] - 1) + 1
        value = value.unfold(2 + dim, span, stride[dim])[..., :: dilation[dim]]
    # [images, in, places…, kernel…]
    places = list(range(2, 2 + dims))
    inner = list(range(2 + dims, 2 + 2 * dims))
    moved = value.permute(0, *places, 1, *inner)
    count = moved.shape[: 1 + dims].numel()
    step = max(1, count // _PATCHES)
    flat = moved.flatten(0, dims) if step == 1 else _sampled(moved, dims, step)
    return flat.flatten(1)


def _sampled(moved: Tensor, dims: int, step: int) -> Tensor:
    """Every so many places, without writing out all of them."""
    shape = moved.shape[: 1 + dims]
    chosen = torch.arange(0, shape.numel(), step)
    return moved[torch.unravel_index(chosen, shape)]


def _each(value: object, dims: int) -> list[int]:
    given = [value] if isinstance(value, int) else list(value)  # type: ignore[call-overload]
    return [int(one) for one in (given * dims if len(given) == 1 else given)]
