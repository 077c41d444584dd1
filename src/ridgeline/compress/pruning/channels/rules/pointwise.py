"""Norms, and operations number by number: what they make has the channels of what they are given.

Norms per channel go with it; over several channels these go together or stay.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ridgeline.compress.pruning.channels.reading import Channels, GraphReading


def per_channel(reading: GraphReading, node: torch.fx.Node) -> Channels | None:
    """Read batch_norm or instance_norm: weight, bias, mean and variance are [channels]."""
    source, *vectors = node.args[:5]
    found = reading.channels(source)
    if found is None:
        return None
    if found.dim != 1:
        reading.whole(found, node, "channels do not lie in dimension 1")
        return found
    for vector in vectors:
        reading.slot(vector, 0, found.labels)
    held: Any = next((one for one in vectors if reading.stored(one) is not None), None)
    reading.count(held, "num_features", found.labels)
    return found


def group(reading: GraphReading, node: torch.fx.Node) -> Channels | None:
    """Read the channels of a group_norm: whole groups go, with their mean and variance."""
    source: Any = node.args[0]
    groups: Any = node.args[1]
    weight, bias = (*node.args[2:4], None, None)[:2]
    found = reading.channels(source)
    if found is None:
        return None
    size = len(found.labels) // groups
    if found.dim != 1 or groups == 1:
        reading.whole(found, node, "it norms all channels together")
        return found
    if not reading.count(weight, "num_groups", found.labels, size):
        reading.whole(found, node, "its code fixes the number of groups")
        return found
    by_group = found.labels.reshape(groups, size)
    for place in range(1, size):
        reading.labels.join(by_group[:, 0], by_group[:, place])
    for vector in (weight, bias):
        reading.slot(vector, 0, found.labels)
    reading.count(weight, "num_channels", found.labels)
    return found


def layer(reading: GraphReading, node: torch.fx.Node) -> Channels | None:
    """Read the channels of a layer_norm: what lies in the normed dimensions stays whole."""
    source: Any = node.args[0]
    normed: Any = node.args[1]
    found = reading.channels(source)
    if found is not None and found.dim >= len(reading.shape(source)) - len(normed):
        reading.whole(found, node, "it norms all channels together")
        return found
    return found


def same(reading: GraphReading, node: torch.fx.Node) -> Channels | None:
    """Read activations, dropout and copies."""
    return reading.channels(node.args[0])


def prelu(reading: GraphReading, node: torch.fx.Node) -> Channels | None:
    """An activation with a slope for each channel, or one for all."""
    found = reading.channels(node.args[0])
    weight: Any = node.args[1]
    if found is not None and reading.shape(weight) == (len(found.labels),):
        reading.slot(weight, 0, found.labels)
        reading.count(weight, "num_parameters", found.labels)
    return found


def pair(reading: GraphReading, node: torch.fx.Node) -> Channels | None:
    """Sums, products and the like of two tensors, broadcast, or of a tensor and a number.

    Channels that meet go together. A weight that meets channels shrinks with them.
    """
    sides = [one for one in node.args[:2] if isinstance(one, torch.fx.Node)]
    found = [None if reading.stored(one) is not None else reading.channels(one) for one in sides]
    if not any(found):
        for one in sides:
            reading.channels(one)
        return None
    shape = reading.shape(node)
    first = next(place for place, one in enumerate(found) if one is not None)
    mine = found[first]
    assert mine is not None
    back = mine.dim - len(reading.shape(sides[first]))
    if shape[back] != len(mine.labels):
        reading.whole(mine, node, "one channel meets many")
        return None
    for place, one in enumerate(sides):
        if place != first and not _joined(reading, mine, back, one, found[place]):
            for each in found:
                reading.whole(each, node, "channels meet a tensor whose own stay")
            reading.channels(one)  # a weight then stays as it is
            return None
    return Channels(len(shape) + back, mine.labels)


def _joined(
    reading: GraphReading, mine: Channels, back: int, other: torch.fx.Node, found: Channels | None
) -> bool:
    """Whether the other side could be joined with channels that lie `back` from the end."""
    shape = reading.shape(other)
    size = shape[back] if len(shape) >= -back else 1
    if found is not None:
        if found.dim - len(shape) != back or size != len(mine.labels):
            return False
        reading.labels.join(mine.labels, found.labels)
        return True
    if size == 1:
        return True
    if reading.stored(other) is None:
        return False
    reading.slot(other, len(shape) + back, mine.labels)
    return True


def concatenated(reading: GraphReading, node: torch.fx.Node) -> Channels | None:
    """Read the channels of a cat: one after the other, or side by side."""
    parts: Any = node.args[0]
    rank = len(reading.shape(node))
    dim: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    dim %= rank
    found = [reading.channels(part) for part in parts]
    known = [one for one in found if one is not None]
    if not known:
        return None
    if all(one.dim == dim for one in known):
        pieces = [
            np.zeros(reading.shape(part)[dim], np.int64) if one is None else one.labels
            for part, one in zip(parts, found, strict=True)
        ]
        return Channels(dim, np.concatenate(pieces))
    first = known[0]
    if len(known) < len(found) or any(one.dim != first.dim for one in known):
        for one in known:
            reading.whole(one, node, "channels meet a tensor whose own stay")
        return None
    for one in known[1:]:
        reading.labels.join(first.labels, one.labels)
    return first
