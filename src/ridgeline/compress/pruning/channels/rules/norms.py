"""Norms: per channel they go with it; over several channels these go together or stay."""

from __future__ import annotations

from typing import Any

import torch

from ridgeline.compress.pruning.channels.reading import Channels, Reading


def per_channel(reading: Reading, node: torch.fx.Node) -> Channels | None:
    """batch_norm, instance_norm: weight, bias, mean and variance are [channels]."""
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


def group(reading: Reading, node: torch.fx.Node) -> Channels | None:
    """group_norm: mean and variance are those of a group, so a group goes or stays."""
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


def layer(reading: Reading, node: torch.fx.Node) -> Channels | None:
    """layer_norm: what lies in the normed dimensions stays whole."""
    source: Any = node.args[0]
    normed: Any = node.args[1]
    found = reading.channels(source)
    if found is not None and found.dim >= len(reading.shape(source)) - len(normed):
        reading.whole(found, node, "it norms all channels together")
        return found
    return found
