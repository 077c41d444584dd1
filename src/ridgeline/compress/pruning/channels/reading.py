"""What rules read from a graph and write down: channels of tensors, slices of weights, counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ridgeline.compress.pruning.channels.labels import Array, Labels
from ridgeline.compress.pruning.channels.traced import Graph, place


@dataclass(frozen=True, slots=True)
class Channels:
    """The one dimension of a tensor along which channels lie."""

    dim: int
    labels: Array
    """[size of the dimension]"""


@dataclass(frozen=True, slots=True)
class Count:
    """A number that a module keeps of its channels, such as `out_channels` or `groups`."""

    module: str
    attribute: str
    labels: Array
    per: int
    """Channels for each that is counted."""


class Reading:
    """All that the rules have found so far, of one module."""

    def __init__(self, model: nn.Module, graph: Graph) -> None:
        self.model = model
        self.graph = graph
        self.labels = Labels()
        self.slots: dict[str, dict[int, Array]] = {}
        """Stored tensor → dimension → labels: what shrinks with the channels."""
        self.reads: set[tuple[str, int]] = set()
        """Slots of weights that read channels and add them up."""
        self.makes: list[tuple[str, Array]] = []
        """Weights that make channels."""
        self.counts: list[Count] = []
        self.left_whole: dict[str, None] = {}
        self._carried: dict[str, Channels | list[Channels | None] | None] = {}
        self._bound: set[str] = set()

    def keep(self, node: torch.fx.Node, found: Channels | list[Channels | None] | None) -> None:
        """What a rule says of the tensor, or tensors, that an operation makes."""
        self._carried[node.name] = found

    def channels(self, value: Any) -> Channels | None:
        """Of an input of an operation; a weight that comes this way never shrinks."""
        if not isinstance(value, torch.fx.Node):
            return None
        if self.stored(value) is not None:
            self._bound.add(value.name)
            return None
        found = self._carried.get(value.name)
        return found if isinstance(found, Channels) else None

    def parts(self, node: torch.fx.Node) -> list[Channels | None] | None:
        """Of an operation that makes several tensors."""
        found = self._carried.get(node.name)
        return found if isinstance(found, list) else None

    def stored(self, value: Any) -> str | None:
        """Name of the parameter or buffer that a node is, if it is one."""
        return self.graph.stored.get(value.name) if isinstance(value, torch.fx.Node) else None

    def shape(self, value: torch.fx.Node) -> tuple[int, ...]:
        """Of the tensor that a node makes."""
        return self.graph.shapes[value.name]

    def slot(self, value: Any, dim: int, labels: Array) -> None:
        """A dimension of a weight holds these channels; nothing for a weight that is not there."""
        if not isinstance(value, torch.fx.Node):
            return
        name = self.stored(value)
        if name is None:  # computed from others: what does so is none of what we know
            found = self.channels(value)
            if found is not None:
                self.labels.keep_whole(found.labels)
            self.labels.keep_whole(labels)
            return
        known = self.slots.setdefault(name, {}).setdefault(dim, labels)
        self.labels.join(known, labels)

    def read(self, value: Any, dim: int, labels: Array) -> None:
        """As `slot`, of a weight that adds channels up."""
        self.slot(value, dim, labels)
        name = self.stored(value)
        if name is not None:
            self.reads.add((name, dim))

    def make(self, value: Any, count: int) -> Array:
        """New channels, one for each row of a weight."""
        labels = self.labels.new(count)
        self.slot(value, 0, labels)
        self.makes.append((self.stored(value) or "", labels))
        return labels

    def count(self, weight: Any, attribute: str, labels: Array, per: int = 1) -> bool:
        """The weight's module keeps this number; whether it does."""
        name = self.stored(weight)
        if name is None:
            return False
        module = name.rpartition(".")[0]
        if getattr(self.model.get_submodule(module), attribute, None) != len(labels) // per:
            return False
        self.counts.append(Count(module, attribute, labels, per))
        return True

    def whole(self, found: Channels | None, node: torch.fx.Node, why: str) -> None:
        """These channels stay, all of them, and the answer says where and why."""
        if found is None:
            return
        if self.labels.of(found.labels).any():
            self.left_whole[f"{place(node)}: {why}"] = None
        self.labels.keep_whole(found.labels)

    def end(self) -> None:
        """Keep whole what went into operations that no rule understood as a weight."""
        for node, name in self.graph.stored.items():
            if node in self._bound:
                for labels in self.slots.get(name, {}).values():
                    self.labels.keep_whole(labels)
