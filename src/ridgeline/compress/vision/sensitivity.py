"""What each layer costs when it alone is rounded, found from kept results of all before it.

A layer answers for its weights and for the tensors that hold its numbers: those that it makes,
behind activation functions, and those that it is the first to read where no layer made them. What
other layers' weights lose by its outlying channels counts for it too, and not for them
(`Outlying`). The graph is run once in float and everything kept; for a layer only what depends
on it runs again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves

from ridgeline.compress.vision.batches import Batch, part_of, rows_of, together
from ridgeline.compress.vision.calibrate import ranges_of
from ridgeline.compress.vision.graph import batches_for, run_watched
from ridgeline.compress.vision.layers import VisionLayer
from ridgeline.compress.vision.nodes import RoundedTensor, rounded_weight
from ridgeline.compress.vision.operators import constant_of
from ridgeline.compress.vision.points import Point, find_points, origin
from ridgeline.compress.vision.quantise import PreparedVision

_BYTES = 2**30
"""The most bytes of results that are kept, which bounds the images."""
_IMAGES = 16
_LOWEST = 1e-30


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSensitivity:
    """What the outputs of a model lose by one layer alone."""

    layer: str
    macs: int
    sqnr_db: float
    """Signal to quantisation noise of the model's outputs; inf where nothing changed."""
    kl: float | None
    """Mean divergence of the class probabilities, nats an image; None: no classifier."""


def sqnr_db(exact: Tensor, other: Tensor) -> float:
    """10 log₁₀ of Σ exact² over Σ (exact − other)², in decibels."""
    signal = float(exact.double().square().sum())
    noise = float((exact.double() - other.double()).square().sum())
    if not math.isfinite(noise):
        return -math.inf
    return 10 * math.log10(max(signal, _LOWEST) / noise) if noise > 0 else math.inf


def outputs_of(result: object) -> Tensor:
    """All floating-point outputs of a model in one row per image."""
    leaves = [one for one in tree_leaves(result) if isinstance(one, Tensor)]
    return torch.cat([one.reshape(len(one), -1) for one in leaves if one.is_floating_point()], 1)


def probe_images(prepared: PreparedVision) -> Batch:
    """Calibration images, as many as the kept results have room for, evenly drawn."""
    images = batches_for(prepared.graph, [together(prepared.batches)])[0]
    size = 0

    def note(_: fx.Node, value: object) -> None:
        nonlocal size
        size += value.nbytes if isinstance(value, Tensor) else 0

    run_watched(prepared.graph, [part_of(images, slice(1))], note)
    count = max(1, min(_IMAGES, rows_of(images), _BYTES // max(1, size)))
    return part_of(
        part_of(images, slice(None, None, max(1, rows_of(images) // count))), slice(count)
    )


@torch.no_grad()
def rank_layers(
    prepared: PreparedVision, *, on_progress: Callable[[str], None] = lambda _: None
) -> tuple[LayerSensitivity, ...]:
    """Each layer rounded by itself, the costliest first.

    Args:
        prepared: From `quantise.prepare`.
        on_progress: Told each layer.
    """
    images = probe_images(prepared)
    kept: dict[fx.Node, object] = {}
    run_watched(prepared.graph, [images], kept.__setitem__)
    output = next(node for node in prepared.graph.graph.nodes if node.op == "output")
    exact = outputs_of(kept[output])
    logits = _is_classifier(kept[output])
    points = find_points(prepared.layers, prepared.apart)
    form = prepared.scheme.activations
    assert form is not None
    ranges = ranges_of(prepared.layers, points, prepared.seen, form)
    outlying = find_outlying(prepared.layers, points, prepared.graph, kept)
    found = []
    for number, layer in enumerate(prepared.layers, start=1):
        if layer.name in prepared.apart:
            continue
        on_progress(f"judging {layer.name} ({number}/{len(prepared.layers)})")
        own = {
            point.node: RoundedTensor(form, None if form.dynamic else ranges[point.node])
            for point in points
            if point.owner == layer.name
        }
        weights = _charged(prepared, layer, outlying)
        result = _Replay(prepared.graph, kept, weights, own).result(output)
        other = exact if result is None else outputs_of(result)
        found.append(
            LayerSensitivity(
                layer=layer.name,
                macs=layer.macs,
                sqnr_db=sqnr_db(exact, other),
                kl=_kl(exact, other) if logits else None,
            )
        )
    return tuple(sorted(found, key=lambda one: one.sqnr_db))


def _charged(
    prepared: PreparedVision, layer: VisionLayer, outlying: Sequence[Outlying]
) -> dict[fx.Node, Tensor]:
    """The weights that a layer answers for, rounded, by the node that computes with them."""
    found = {}
    for reader in prepared.layers:
        others = [one for one in outlying if one.reader is reader]
        own = [one.columns for one in others if one.maker == layer.name]
        if reader.name not in prepared.weights or not (reader is layer or own):
            continue
        exact = constant_of(prepared.graph, reader.weight)
        assert exact is not None
        rounds = rounded_weight(exact, reader.axis, prepared.weights[reader.name])()
        if reader is layer:
            for one in others:
                rounds = torch.where(one.columns, exact, rounds)
        else:
            rounds = torch.where(torch.stack(own).any(0), rounds, exact)
        found[reader.node] = rounds
    return found


class _Replay:
    """A graph run again where some weights and tensors are rounded."""

    def __init__(
        self,
        graph: fx.GraphModule,
        kept: Mapping[fx.Node, object],
        weights: Mapping[fx.Node, Tensor],
        rounders: Mapping[fx.Node, RoundedTensor],
    ) -> None:
        self.graph, self.kept, self.weights, self.rounders = graph, kept, weights, rounders
        self.changed: dict[fx.Node, object] = {}

    def result(self, output: fx.Node) -> object:
        """What the graph gives then; None where nothing of it changed."""
        interpreter = fx.Interpreter(self.graph)
        last_use = _last_uses(output.graph)
        for node in self.graph.graph.nodes:
            weight = self.weights.get(node)
            if weight is not None or any(one in self.changed for one in node.all_input_nodes):
                self.changed[node] = self._value(interpreter, node, weight)
            if node in self.rounders:
                value = self.changed.get(node, self.kept[node])
                self.changed[node] = self.rounders[node](value)
            for one in last_use.get(node, ()):
                self.changed.pop(one, None)
        return self.changed.get(output)

    def _value(self, interpreter: fx.Interpreter, node: fx.Node, weight: Tensor | None) -> object:
        def read(one: fx.Node) -> object:
            return self.changed.get(one, self.kept[one])

        arguments = fx.node.map_arg(node.args, read)
        named = fx.node.map_arg(node.kwargs, read)
        if weight is not None:
            arguments = (arguments[0], weight, *arguments[2:])
        return getattr(interpreter, node.op)(node.target, arguments, named)


def _last_uses(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """By node, whose results nobody reads after it."""
    last: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        for one in node.all_input_nodes:
            last[one] = node
    found: dict[fx.Node, list[fx.Node]] = {}
    for one, node in last.items():
        found.setdefault(node, []).append(one)
    return found


def _is_classifier(result: Sequence[object] | object) -> bool:
    leaves = [one for one in tree_leaves(result) if isinstance(one, Tensor)]
    return len(leaves) == 1 and leaves[0].ndim == 2 and leaves[0].shape[1] > 1


def _kl(exact: Tensor, other: Tensor) -> float:
    known, now = exact.double().log_softmax(1), other.double().log_softmax(1)
    return max(0.0, float((known.exp() * (known - now)).sum(1).mean()))


FACTOR = 16.0
"""A channel is outlying from this many times the median channel's root mean square on: of eight
bits on one scale four at most are left to the median channel."""
_TINY = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlying:
    """The part of a layer's weight that outlying channels of another layer are multiplied by.

    The error of a rounded weight is multiplied by what the layer reads, so a channel that dwarfs
    the rest spoils the layers behind it even where their own weights are harmless (Dettmers et al.,
    "LLM.int8()", arXiv 2208.07339, section 3, keep such columns of the weight apart for that
    reason). The cause is whoever makes the channel.
    """

    maker: str
    """The layer that makes these channels."""
    reader: VisionLayer
    columns: Tensor
    """True where the weight is multiplied by them; spreads to the weight's shape."""


def find_outlying(
    layers: Sequence[VisionLayer],
    points: Sequence[Point],
    graph: fx.GraphModule,
    values: Mapping[fx.Node, object],
) -> tuple[Outlying, ...]:
    """All layers that read outlying channels which another layer makes.

    Args:
        layers: Of the graph.
        points: Where it rounds tensors; their owners are the makers.
        graph: In float.
        values: What each node of it gave for some images.
    """
    makers = {point.node: point.owner for point in points}
    found = []
    for reader in layers:
        weight = constant_of(graph, reader.weight)
        maker = makers.get(origin(reader.inputs[0]), reader.name)
        value = values[reader.inputs[0]]
        if weight is None or maker == reader.name or not isinstance(value, Tensor):
            continue
        channels = _channels(value, reader)
        if bool(channels.any()):
            columns = _columns(weight, channels, reader)
            found.append(Outlying(maker=maker, reader=reader, columns=columns))
    return tuple(found)


def _channels(value: Tensor, reader: VisionLayer) -> Tensor:
    """Which channels of a layer's input are outlying, [channels] of bool."""
    rows = value.double().movedim(1 if reader.convolves else -1, 0).flatten(1)
    size = rows.square().mean(1).sqrt()
    return size > FACTOR * max(float(np.median(size.numpy(force=True))), _TINY)


def _columns(weight: Tensor, channels: Tensor, reader: VisionLayer) -> Tensor:
    """The elements of a weight that channels of its input are multiplied by."""
    if reader.kind == "transposed convolution":
        return channels.view(-1, *[1] * (weight.ndim - 1))
    # [out, in / groups, …]: each output reads the channels of its own group
    rows = channels.view(reader.groups, -1).repeat_interleave(len(weight) // reader.groups, 0)
    return rows.view(*rows.shape, *[1] * (weight.ndim - 2))
