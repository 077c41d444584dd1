"""The nodes of a cluster as arrays, what is left of CPU, memory and GPUs, and tasks for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WHOLE = 1000
"""Thousandths of a GPU, as Alibaba's traces count."""


@dataclass(frozen=True, slots=True, order=True)
class TaskKind:
    """What a task asks for; many tasks ask for the same."""

    cpu_milli: int
    gpu_milli: int
    """What it asks of each GPU, in thousandths: 1000 is a GPU of one's own; 0: no GPU."""
    num_gpus: int
    memory_bytes: int
    models: tuple[str, ...] = ()
    """GPU models that will do; none: all."""

    @property
    def total_milli(self) -> int:
        """Thousandths of GPUs in all."""
        return self.gpu_milli * self.num_gpus

    @property
    def shares(self) -> bool:
        """Whether it takes a part of one GPU."""
        return self.num_gpus == 1 and self.gpu_milli < WHOLE


@dataclass(frozen=True, slots=True)
class PlacedTasks:
    """Tasks in order of arrival, by kind."""

    kinds: tuple[TaskKind, ...]
    kind_of: NDArray[np.int64]
    """Place in `kinds`, per task."""

    def __len__(self) -> int:
        return len(self.kind_of)

    @property
    def milli(self) -> NDArray[np.int64]:
        """Thousandths of GPUs that each task asks for."""
        return np.array([kind.total_milli for kind in self.kinds])[self.kind_of]


def tasks_of(asked: Sequence[TaskKind]) -> PlacedTasks:
    """Tasks in the order given."""
    kinds = tuple(sorted(set(asked)))
    places = {kind: place for place, kind in enumerate(kinds)}
    return PlacedTasks(kinds, np.array([places[kind] for kind in asked], dtype=np.int64))


def arriving(tasks: PlacedTasks, gpus: int, multiple: float, seed: int) -> PlacedTasks:
    """All tasks and others drawn from them, shuffled, until they ask for `multiple` × `gpus`.

    As the FGD paper inflates its workload (Weng et al., ATC 2023, section 6.1); where the tasks
    already ask for more, some are left out.
    """
    random = np.random.default_rng(seed)
    target = multiple * gpus * WHOLE
    asked = tasks.milli
    if asked.sum() >= target:
        order = random.permutation(len(tasks))
        kept = order[np.cumsum(asked[order]) <= target]
        return PlacedTasks(tasks.kinds, tasks.kind_of[kept])
    lacking = target - asked.sum()
    drawn = np.empty(0, dtype=np.int64)
    while asked[drawn].sum() <= lacking:
        drawn = np.concatenate([drawn, random.integers(0, len(tasks), len(tasks))])
    drawn = drawn[np.cumsum(asked[drawn]) <= lacking]
    every = np.concatenate([tasks.kind_of, tasks.kind_of[drawn]])
    return PlacedTasks(tasks.kinds, random.permutation(every))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedNode:
    """One node with nothing on it."""

    name: str
    cpu_milli: int
    memory_bytes: int
    num_gpus: int
    model: str = ""


class NodeState:
    """All nodes in the order given, and what is left of each.

    Arrays have one entry per node [N]; `gpu_left` is [N, most GPUs of a node], in thousandths, 0
    where there is no GPU. `version` counts what was put on a node or taken from it.
    """

    def __init__(self, nodes: Sequence[PlacedNode]) -> None:
        self.names = [node.name for node in nodes]
        self.models = np.array([node.model for node in nodes])
        self.num_gpus = np.array([node.num_gpus for node in nodes])
        self.cpu = np.array([node.cpu_milli for node in nodes])
        self.memory = np.array([node.memory_bytes for node in nodes])
        self.cpu_left, self.memory_left = self.cpu.copy(), self.memory.copy()
        slots = np.arange(max(1, int(self.num_gpus.max())))
        self.gpu_left = np.where(slots < self.num_gpus[:, None], WHOLE, 0)
        self.version = np.zeros(len(nodes), dtype=np.int64)
        self.free_gpus = self.num_gpus.copy()
        """GPUs that nobody uses any of."""
        self.largest_left = self.gpu_left.max(axis=1)
        self.total_left = self.gpu_left.sum(axis=1)
        self.groups: list[dict[str, int]] = [{} for _ in nodes]
        """How many tasks of each group (share, 1, 2 … GPUs) a node has."""
        self._allowed: dict[tuple[str, ...], NDArray[np.bool_]] = {}

    def __len__(self) -> int:
        return len(self.names)

    def holding(self, kind: TaskKind) -> NDArray[np.int64]:
        """The nodes that have room for a task."""
        room = (self.cpu_left >= kind.cpu_milli) & (self.memory_left >= kind.memory_bytes)
        if kind.num_gpus:
            if kind.shares:
                room &= self.largest_left >= kind.gpu_milli
            else:
                room &= self.free_gpus >= kind.num_gpus
            if kind.models:
                room &= self.allowed(kind.models)
        return np.flatnonzero(room)

    def allowed(self, models: tuple[str, ...]) -> NDArray[np.bool_]:
        """The nodes whose GPU model is one of those."""
        if models not in self._allowed:
            self._allowed[models] = np.isin(self.models, models)
        return self._allowed[models]

    def put(self, kind: TaskKind, node: int, gpu: int) -> tuple[int, ...]:
        """Put a task on a node; one that shares goes on its GPU `gpu`, others on free ones.

        Returns:
            The GPUs that it has something of.
        """
        gpus = (gpu,) if kind.shares else self._first_free(node, kind.num_gpus)
        self._change(kind, node, gpus, -1)
        return gpus

    def give(self, kind: TaskKind, node: int, gpus: tuple[int, ...]) -> None:
        """Take a task off a node, and its part of the GPUs that it was put on."""
        self._change(kind, node, gpus, 1)

    def _first_free(self, node: int, count: int) -> tuple[int, ...]:
        left = self.gpu_left[node].tolist()
        return tuple([gpu for gpu, milli in enumerate(left) if milli == WHOLE][:count])

    def _change(self, kind: TaskKind, node: int, gpus: tuple[int, ...], sign: int) -> None:
        self.cpu_left[node] += sign * kind.cpu_milli
        self.memory_left[node] += sign * kind.memory_bytes
        if gpus:
            left = self.gpu_left[node].tolist()  # few numbers: lists are quicker than arrays
            milli = sign * (kind.gpu_milli if kind.shares else WHOLE)
            for gpu in gpus:
                left[gpu] += milli
            self.gpu_left[node] = left
            group = "share" if kind.shares else str(kind.num_gpus)
            tasks = self.groups[node].pop(group, 0) - sign
            if tasks:
                self.groups[node][group] = tasks
            self.free_gpus[node] = left.count(WHOLE)
            self.largest_left[node] = max(left)
            self.total_left[node] = sum(left)
        self.version[node] += 1
