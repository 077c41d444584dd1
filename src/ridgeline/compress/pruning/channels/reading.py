"""A module as the graph of its operations, and what the rules read from it and write down.

Operations are ATen's (`aten.conv2d.default`), so it does not matter whether a convolution was
written as a module, a function, or in a class that nobody has seen before. The graph is that of
evaluation: batch norms use their running statistics, dropout does nothing.

Every channel that an operation makes gets a number. Two that are added, or that one weight slice
holds, are joined (union-find with path halving; Tarjan, "Efficiency of a good but not linear set
union algorithm", JACM 22, 1975). What can never go is joined with the number 0.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ridgeline.errors import InputError, in_words

Array = NDArray[np.int64]

WHOLE = 0
"""The number of all channels that stay."""


class Labels:
    """Numbers of channels, and which of them are one.

    >>> labels = Labels()
    >>> a, b = labels.new(2), labels.new(2)
    >>> labels.join(a, b)
    >>> labels.of(b).tolist() == labels.of(a).tolist()
    True
    """

    def __init__(self) -> None:
        self._parent = [WHOLE]

    def new(self, count: int) -> Array:
        """Numbers of as many channels, each on its own."""
        first = len(self._parent)
        self._parent.extend(range(first, first + count))
        return np.arange(first, first + count)

    def join(self, ones: Array, others: Array) -> None:
        """Each of `ones` goes with the one of `others` in its place, or neither does."""
        if ones is others:
            return
        for one, other in zip(ones.tolist(), others.tolist(), strict=True):
            low, high = sorted((self._root(one), self._root(other)))
            self._parent[high] = low

    def keep_whole(self, ones: Array) -> None:
        """None of them ever goes."""
        self.join(ones, np.zeros_like(ones))

    def of(self, ones: Array) -> Array:
        """The same number for all that are joined; 0 for what stays."""
        return np.array([self._root(one) for one in ones.tolist()], dtype=np.int64)

    def _root(self, one: int) -> int:
        parent = self._parent
        while parent[one] != one:
            parent[one] = parent[parent[one]]
            one = parent[one]
        return one


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Operations in the order in which they run."""

    nodes: tuple[torch.fx.Node, ...]
    stored: Mapping[str, str]
    """Node that stands for a parameter or buffer → its name in the module."""
    shapes: Mapping[str, tuple[int, ...]]
    """Node → shape of the tensor that it makes; nodes that make several are left out."""


def traced(model: nn.Module, example: tuple[Tensor, ...]) -> Graph:
    """The forward pass of a module, which is not changed.

    Args:
        model: Any module.
        example: Its positional inputs.

    Raises:
        InputError: torch.export cannot follow its code, or it does not take these inputs.
    """
    asleep = copy.deepcopy(model).eval()
    try:
        with torch.no_grad():
            program = torch.export.export(asleep, example, strict=False)
    except Exception as error:  # whatever model code and the tracer raise
        raise InputError(
            f"torch.export cannot follow this model on the example: {in_words(error)}"
        ) from error
    signature = program.graph_signature
    stored = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    stored |= signature.inputs_to_lifted_tensor_constants
    nodes = tuple(program.graph.nodes)
    shapes = {
        node.name: tuple(value.shape)
        for node in nodes
        if isinstance(value := node.meta.get("val"), Tensor)
    }
    return Graph(nodes=nodes, stored=stored, shapes=shapes)


def place(node: torch.fx.Node) -> str:
    """An operation and the module that runs it, for a person."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next(reversed(stack.values()), ("",))[0]
    operation = str(node.target).removeprefix("aten.").partition(".")[0]
    return f"{operation} in {path}" if path else operation


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


class GraphReading:
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
        """The channels of an input of an operation; a weight that comes this way never shrinks."""
        if not isinstance(value, torch.fx.Node):
            return None
        if self.stored(value) is not None:
            self._bound.add(value.name)
            return None
        found = self._carried.get(value.name)
        return found if isinstance(found, Channels) else None

    def parts(self, node: torch.fx.Node) -> list[Channels | None] | None:
        """The channels of each tensor, of an operation that makes several."""
        found = self._carried.get(node.name)
        return found if isinstance(found, list) else None

    def stored(self, value: Any) -> str | None:
        """Name of the parameter or buffer that a node is, if it is one."""
        return self.graph.stored.get(value.name) if isinstance(value, torch.fx.Node) else None

    def shape(self, value: torch.fx.Node) -> tuple[int, ...]:
        """The shape of the tensor that a node makes."""
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
        """Note the same as `slot`, of a weight that adds channels up."""
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
        """These channels stay, all of them, and the result says where and why."""
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
