"""Convolutions and linear layers: rows of a weight make channels, its columns read them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ridgeline.compress.pruning.channels.reading import Array, Channels, GraphReading

_USUAL: dict[str, Any] = {"bias": None, "groups": 1}


def convolution(reading: GraphReading, node: torch.fx.Node) -> Channels | None:
    """Read conv1d, conv2d or conv3d, weight [out, in / groups, …]."""
    given: dict[str, Any] = {**_USUAL, **_named(node)}
    source, weight, bias, groups = (given[k] for k in ("input", "weight", "bias", "groups"))
    found = reading.channels(source)
    if reading.stored(weight) is None or len(reading.shape(source)) != len(reading.shape(weight)):
        reading.whole(found, node, "its weight is computed, or its input has no batch")
        reading.whole(reading.channels(weight), node, "a weight that is computed")
        return None
    rows, depth = reading.shape(weight)[:2]
    if found is not None and found.dim != 1:
        reading.whole(found, node, "channels do not lie in dimension 1")
        found = None
    if groups > 1 and depth == 1:
        return _depthwise(reading, node, found, (weight, bias, groups))
    if found is not None:
        reading.read(weight, 1, _same_in_groups(reading, found.labels, groups))
        reading.count(weight, "in_channels", found.labels)
    made = reading.make(weight, rows)
    reading.slot(bias, 0, made)
    reading.count(weight, "out_channels", made)
    _same_in_groups(reading, made, groups)
    return Channels(1, made)


def _depthwise(
    reading: GraphReading, node: torch.fx.Node, found: Channels | None, rest: tuple[Any, Any, int]
) -> Channels | None:
    """Every channel is its own group: what it makes goes with it."""
    weight, bias, groups = rest
    if found is None:
        return None
    per_group = reading.shape(weight)[0] // groups
    if not reading.count(weight, "groups", found.labels):
        reading.whole(found, node, "its code fixes the number of groups")
        return None
    made = np.repeat(found.labels, per_group)
    reading.slot(weight, 0, made)
    reading.slot(bias, 0, made)
    reading.count(weight, "in_channels", found.labels)
    reading.count(weight, "out_channels", made)
    return Channels(1, made)


def _same_in_groups(reading: GraphReading, labels: Array, groups: int) -> Array:
    """All groups must stay as wide as each other: the same places of each go."""
    first, *others = labels.reshape(groups, -1)
    for other in others:
        reading.labels.join(first, other)
    return np.asarray(first)


def transposed_convolution(reading: GraphReading, node: torch.fx.Node) -> Channels | None:
    """Read conv_transpose1d, 2d or 3d, weight [in, out / groups, …]."""
    given: dict[str, Any] = {**_USUAL, **_named(node)}
    found, weight = reading.channels(given["input"]), given["weight"]
    if given["groups"] > 1 or reading.stored(weight) is None:
        reading.whole(found, node, "a transposed convolution in groups is not understood")
        reading.channels(weight)
        return None
    if found is not None:
        reading.read(weight, 0, found.labels)
        reading.count(weight, "in_channels", found.labels)
    made = reading.labels.new(reading.shape(weight)[1])
    reading.slot(weight, 1, made)
    reading.makes.append((reading.stored(weight) or "", made))
    reading.slot(given["bias"], 0, made)
    reading.count(weight, "out_channels", made)
    return Channels(1, made)


def linear(reading: GraphReading, node: torch.fx.Node) -> Channels | None:
    """Weight [out, in], over the last dimension."""
    given: dict[str, Any] = {**_USUAL, **_named(node)}
    weight, found = given["weight"], reading.channels(given["input"])
    if reading.stored(weight) is None:
        reading.whole(found, node, "a weight that is computed")
        reading.whole(reading.channels(weight), node, "a weight that is computed")
        return None
    last = len(reading.shape(given["input"])) - 1
    if found is not None and found.dim != last:
        reading.whole(found, node, "it mixes positions, not channels")
    elif found is not None:
        reading.read(weight, 1, found.labels)
        reading.count(weight, "in_features", found.labels)
    made = reading.make(weight, reading.shape(weight)[0])
    reading.slot(given["bias"], 0, made)
    reading.count(weight, "out_features", made)
    return Channels(last, made)


def _named(node: torch.fx.Node) -> dict[str, Any]:
    """Arguments of an operation by their names in its schema."""
    target: Any = node.target
    names = [argument.name for argument in target._schema.arguments]
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}
