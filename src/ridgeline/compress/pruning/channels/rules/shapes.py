"""Operations that move, cut, pool or average: where the channels lie afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ridgeline.compress.pruning.channels.reading import Channels, GraphReading


def reshaped(reading: GraphReading, node: torch.fx.Node) -> Channels | None:
    """View, reshape, flatten, squeeze, unsqueeze: the same numbers in the same order.

    Flattened together with positions, a channel is all of its numbers. Split in two dimensions,
    channels at one place of the inner one go together.
    """
    source: Any = node.args[0]
    found = reading.channels(source)
    if found is None:
        return None
    before, after = reading.shape(source), reading.shape(node)
    spread = [1] * len(before)
    spread[found.dim] = -1
    flat = np.broadcast_to(found.labels.reshape(spread), before).reshape(after)
    varying = [dim for dim in range(flat.ndim) if (flat != flat.take([0], axis=dim)).any()]
    if not varying:  # one channel
        reading.whole(found, node, "one channel alone")
        return None
    dim = varying[-1]
    rows = np.unique(np.moveaxis(flat, dim, -1).reshape(-1, after[dim]), axis=0)
    for row in rows[1:]:
        reading.labels.join(rows[0], row)
    return Channels(dim, rows[0])


def permuted(reading: GraphReading, node: torch.fx.Node) -> Channels | None:
    """Read permute and transpose."""
    source: Any = node.args[0]
    found = reading.channels(source)
    if found is None:
        return None
    order = list(range(len(reading.shape(source))))
    if "transpose" in str(node.target):
        one, other = (int(dim) % len(order) for dim in node.args[1:3])  # type: ignore[arg-type]
        order[one], order[other] = order[other], order[one]
    else:
        given: Any = node.args[1]
        order = [dim % len(order) for dim in given]
    return Channels(order.index(found.dim), found.labels)


def in_last_dimensions(reading: GraphReading, node: torch.fx.Node) -> Channels | None:
    """Read pools, interpolation and padding: positions change, dimensions before them do not."""
    source: Any = node.args[0]
    found = reading.channels(source)
    if found is None:
        return None
    if reading.shape(node)[found.dim] != len(found.labels) or found.dim != 1:
        reading.whole(found, node, "it changes the number of channels")
        return None
    return found


def averaged(reading: GraphReading, node: torch.fx.Node) -> Channels | None:
    """Read mean, sum and maximum over positions; over channels they stay whole."""
    source: Any = node.args[0]
    found = reading.channels(source)
    if found is None:
        return None
    rank = len(reading.shape(source))
    over: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    over = list(range(rank)) if over is None else [over] if isinstance(over, int) else over
    gone = {dim % rank for dim in over}
    if found.dim in gone:
        reading.whole(found, node, "it goes over all channels")
        return None
    if len(reading.shape(node)) == rank:
        return found
    return Channels(found.dim - sum(dim < found.dim for dim in gone), found.labels)


def expanded(reading: GraphReading, node: torch.fx.Node) -> Channels | None:
    """Read an expand, which repeats along other dimensions."""
    source: Any = node.args[0]
    found = reading.channels(source)
    if found is None:
        return None
    dim = found.dim + len(reading.shape(node)) - len(reading.shape(source))
    if reading.shape(node)[dim] != len(found.labels):
        reading.whole(found, node, "one channel meets many")
        return None
    return Channels(dim, found.labels)


def chunked(reading: GraphReading, node: torch.fx.Node) -> list[Channels | None] | None:
    """Read the parts of a chunk: the same places of each go, so they stay equally long."""
    source, count, *rest = node.args
    found = reading.channels(source)
    if found is None:
        return None
    total: Any = count
    shape = reading.shape(source)  # type: ignore[arg-type]
    dim: Any = rest[0] if rest else node.kwargs.get("dim", 0)
    if dim % len(shape) != found.dim:
        return [found] * total
    if len(found.labels) % total:
        reading.whole(found, node, "its parts are not equally long")
        return None
    first, *others = found.labels.reshape(total, -1)
    for other in others:
        reading.labels.join(first, other)
    return [Channels(found.dim, part) for part in (first, *others)]


def one_of(reading: GraphReading, node: torch.fx.Node) -> Channels | None:
    """Read what a getitem takes: one of the tensors that an operation made."""
    source: Any = node.args[0]
    index: Any = node.args[1]
    parts = reading.parts(source)
    return None if parts is None else parts[index]


def sliced(reading: GraphReading, node: torch.fx.Node) -> Channels | None:
    """Read slice and narrow of positions; of channels they stay whole."""
    source: Any = node.args[0]
    found = reading.channels(source)
    if found is None:
        return None
    dim: Any = node.args[1] if len(node.args) > 1 else 0
    if dim % len(reading.shape(source)) == found.dim and reading.shape(node) != reading.shape(
        source
    ):
        reading.whole(found, node, "its code fixes which channels it takes")
        return None
    return found
