"""Biases that make up for what rounding moves a layer's outputs by on average.

Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction", arXiv
1906.04721, section 4.2, with the expectation taken over calibration images (appendix D): the mean
of each output channel in float less its mean when rounded is added to the bias, layer by layer from
the first on, so that each is corrected given those before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, fx

from ridgeline.compress.vision.batches import Batch, inputs_of, together
from ridgeline.compress.vision.graph import run_watched
from ridgeline.compress.vision.layers import VisionLayer


def mean_outputs(
    graph: fx.GraphModule, names: Sequence[str], batches: Sequence[Batch], layers: dict[str, bool]
) -> dict[str, Tensor]:
    """The mean of each output channel, by the name of the node."""
    wanted = set(names)
    sums: dict[str, Tensor] = {}

    def note(node: fx.Node, value: object) -> None:
        if node.name in wanted and isinstance(value, Tensor):
            channels = 1 if layers[node.name] else -1
            rows = value.double().movedim(channels, 0).flatten(1)
            sums[node.name] = sums.get(node.name, 0) + rows.mean(1)

    run_watched(graph, batches, note)
    return {name: one / len(batches) for name, one in sums.items()}


def corrections(
    graph: fx.GraphModule,
    rounded: fx.GraphModule,
    layers: Sequence[VisionLayer],
    batches: Sequence[Batch],
) -> dict[str, Tensor]:
    """What is to be added to each layer's bias, by layer.

    The means of all layers are taken in one run, and each layer's own part is found by following
    the graph with the corrections of the layers before it added as it runs.
    """
    chosen = {
        layer.node.name: layer
        for layer in layers
        if layer.weight is not None and layer.bias is not None
    }
    convolves = {name: layer.convolves for name, layer in chosen.items()}
    exact = mean_outputs(graph, list(chosen), batches, convolves)
    found = _Corrected(rounded, exact, convolves).follow(together(list(batches)))
    return {chosen[name].name: one for name, one in found.items()}


class _Corrected(fx.Interpreter):
    """Runs a rounded graph, adding at each layer what its channels lack on average."""

    def __init__(
        self, graph: fx.GraphModule, exact: dict[str, Tensor], convolves: dict[str, bool]
    ) -> None:
        super().__init__(graph)
        self.exact, self.convolves = exact, convolves
        self.found: dict[str, Tensor] = {}

    @torch.no_grad()
    def follow(self, images: Batch) -> dict[str, Tensor]:
        """All images in one run: the means are over all of them."""
        self.run(*inputs_of(images))
        return self.found

    def run_node(self, n: fx.Node) -> object:
        value = super().run_node(n)
        if n.name not in self.exact:
            return value
        channels = 1 if self.convolves[n.name] else -1
        lacks = self.exact[n.name] - value.double().movedim(channels, 0).flatten(1).mean(1)
        self.found[n.name] = lacks
        shape = [1] * value.ndim
        shape[channels] = -1
        return value + lacks.to(value.dtype).view(shape)
