"""Channels far larger than those beside them, and which weights lose by that.

The error of a rounded weight is multiplied by what the layer reads, so a channel that dwarfs the
rest spoils the layers behind it even where their own weights are harmless (Dettmers et al.,
"LLM.int8()", arXiv 2208.07339, section 3, keep such columns of the weight apart for that reason).
The cause is whoever makes the channel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor, fx

from ridgeline.compress.vision.layers import VisionLayer
from ridgeline.compress.vision.operators import constant_of
from ridgeline.compress.vision.points import Point, origin

FACTOR = 16.0
"""A channel is outlying from this many times the median channel's root mean square on: of eight
bits on one scale four at most are left to the median channel."""
_TINY = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlying:
    """The part of a layer's weight that outlying channels of another layer are multiplied by."""

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
