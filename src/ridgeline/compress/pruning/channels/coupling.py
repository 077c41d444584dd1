"""Which channels of a module can only go together, found by walking over its operations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ridgeline.compress.pruning.channels.reading import (
    WHOLE,
    Array,
    Count,
    GraphReading,
    Labels,
    traced,
)
from ridgeline.compress.pruning.channels.rules.table import rule_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Channels that are as wide as each other and compete: those of a layer, or of a stream."""

    units: Array
    """Numbers of what goes as one."""
    width: int
    """Channels of each unit, in the weight that makes most of them."""
    weights: tuple[str, ...]
    """The weights that make them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coupling:
    """The channels of a module. A unit is all that goes as one; unit 0 stays."""

    slots: Mapping[str, Mapping[int, Array]]
    """Stored tensor → dimension → the unit of each index."""
    reads: frozenset[tuple[str, int]]
    """Slots of weights that add channels up: zero there means that nobody sees them."""
    families: tuple[Family, ...]
    counts: tuple[Count, ...]
    """Numbers that modules keep, with units as labels."""
    left_whole: tuple[str, ...]
    """Operations that kept channels whole, and why."""


def coupling(model: nn.Module, example: tuple[Tensor, ...]) -> Coupling:
    """Which channels of a module go together.

    Args:
        model: Any module; it is not changed.
        example: Its positional inputs.

    Raises:
        InputError: Its forward pass cannot be followed.
    """
    graph = traced(model, example)
    reading = GraphReading(model, graph)
    for node in graph.nodes:
        if node.op == "call_function":
            rule = rule_of(node)
            if rule is None:
                _not_understood(reading, node)
            else:
                reading.keep(node, rule(reading, node))
        elif node.op == "output":
            for value in node.all_input_nodes:
                found = reading.channels(value)
                if found is not None:
                    reading.labels.keep_whole(found.labels)
    reading.end()
    return _settled(reading)


def _not_understood(reading: GraphReading, node: torch.fx.Node) -> None:
    for value in node.all_input_nodes:
        parts = reading.parts(value) or [reading.channels(value)]
        for found in parts:
            reading.whole(found, node, "not understood")


def _settled(reading: GraphReading) -> Coupling:
    """Numbers as they are after all that was joined."""
    of = reading.labels.of
    return Coupling(
        slots={
            name: {dim: of(labels) for dim, labels in slots.items()}
            for name, slots in reading.slots.items()
        },
        reads=frozenset(reading.reads),
        families=_families(reading),
        counts=tuple(
            Count(one.module, one.attribute, of(one.labels), one.per) for one in reading.counts
        ),
        left_whole=tuple(reading.left_whole),
    )


def _families(reading: GraphReading) -> tuple[Family, ...]:
    """Layers that make the same units are one family."""
    made = [(name, reading.labels.of(labels)) for name, labels in reading.makes]
    first: dict[int, int] = {}
    same = Labels()
    numbers = same.new(len(made))
    for place, (_, units) in enumerate(made):
        for unit in np.unique(units[units != WHOLE]).tolist():
            other = first.setdefault(unit, place)
            same.join(numbers[[place]], numbers[[other]])
    members: dict[int, list[int]] = {}
    for place, root in enumerate(same.of(numbers).tolist()):
        members.setdefault(root, []).append(place)
    families = []
    for places in members.values():
        units = np.unique(np.concatenate([made[place][1] for place in places]))
        units = units[units != WHOLE]
        if len(units) < 2:
            continue
        width = max(_widest(made[place][1]) for place in places)
        weights = tuple(made[place][0] for place in places)
        families.append(Family(units=units, width=width, weights=weights))
    return tuple(families)


def _widest(units: Array) -> int:
    """Channels of the unit that has most."""
    counts = np.unique(units[units != WHOLE], return_counts=True)[1]
    return int(counts.max(initial=1))
