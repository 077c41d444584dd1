"""Fragmentation of GPUs, that is how much of what is left the next task cannot use.

Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
Descent", ATC 2023, section 4.1: F of a node is the mean, over typical tasks, of the GPUs left that
such a task cannot be put on: all of them where the node does not hold the task (or the task wants
no GPU), else those GPUs of the node that have too little left for it. Tasks are counted in whole
numbers, those that differ by their cores alone together.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.queue.placement.nodes import NodeState, PlacedTasks, TaskKind

POPULAR = 0.95
"""Typical are the most frequent kinds of task, until they make up this share of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _AlikeOnAGpu:
    """Kinds of task that ask as much of each GPU, on the same models."""

    step: int
    """The place of what each asks of a GPU among all that is asked of one."""
    models: tuple[str, ...]
    cpu: NDArray[np.int64]
    """Thousandths of a core, ascending [C]."""
    tasks: NDArray[np.int64]
    """How many tasks ask for no more than the first so many of these, and for no more than so
    many GPUs [C + 1, GPUs + 1]."""


class TypicalTasks:
    """The most frequent kinds of task with their shares, memory left out of account."""

    def __init__(self, tasks: PlacedTasks) -> None:
        counted: Counter[TaskKind] = Counter()
        for kind, count in zip(tasks.kinds, np.bincount(tasks.kind_of, minlength=len(tasks.kinds)),
                               strict=True):  # fmt: skip
            asks = TaskKind(kind.cpu_milli, kind.gpu_milli, kind.num_gpus, 0, kind.models)
            counted[asks] += int(count)
        ordered = sorted(counted.items(), key=lambda one: (one[1], one[0]), reverse=True)
        chosen, covered = [], 0
        for asks, count in ordered:
            if covered >= POPULAR * len(tasks):
                break
            chosen.append((asks, count))
            covered += count
        with_gpus = [(asks, count) for asks, count in chosen if asks.gpu_milli]
        self._covered = covered
        self._steps = np.unique(np.array([asks.gpu_milli for asks, _ in with_gpus], dtype=np.int64))
        alike: dict[tuple[int, tuple[str, ...]], list[tuple[int, int, int]]] = {}
        for asks, count in with_gpus:
            key = (asks.gpu_milli, asks.models)
            alike.setdefault(key, []).append((asks.cpu_milli, asks.num_gpus, count))
        self._kinds = [
            _alike(int(self._steps.searchsorted(milli)), models, np.array(asked, dtype=np.int64))
            for (milli, models), asked in alike.items()
        ]

    def fragmented(
        self,
        nodes: NodeState,
        places: NDArray[np.int64],
        cpu_left: NDArray[np.int64],
        gpu_left: NDArray[np.int64],
    ) -> NDArray[np.float64]:
        """F of nodes, in thousandths of a GPU, as if so much were left of them.

        Args:
            nodes: Whose models count.
            places: Which nodes [M].
            cpu_left: Thousandths of a core [M].
            gpu_left: Thousandths of each GPU [M, GPUs].
        """
        left = gpu_left[:, :, None]
        enough = left >= self._steps
        count = np.count_nonzero(enough, axis=1)
        usable = np.add.reduce(enough * left, axis=1)
        used = np.zeros(len(places), dtype=np.int64)
        for one in self._kinds:
            cores = one.cpu.searchsorted(cpu_left, side="right")
            held = one.tasks[cores, np.minimum(count[:, one.step], one.tasks.shape[1] - 1)]
            if one.models:
                held = held * nodes.allowed(one.models)[places]
            used += usable[:, one.step] * held
        unused: NDArray[np.float64] = gpu_left.sum(axis=1) - used / max(1, self._covered)
        return unused

    def of_cluster(self, nodes: NodeState) -> float:
        """F of all nodes together, in GPUs."""
        every = np.arange(len(nodes))
        found = self.fragmented(nodes, every, nodes.cpu_left, nodes.gpu_left)
        return float(found.sum()) / 1000.0


def _alike(step: int, models: tuple[str, ...], asked: NDArray[np.int64]) -> _AlikeOnAGpu:
    """Count tasks of which each kind is a row of cores, GPUs and how many there are, [kinds, 3]."""
    cpu, row = np.unique(asked[:, 0], return_inverse=True)
    tasks = np.zeros((len(cpu) + 1, int(asked[:, 1].max()) + 1), dtype=np.int64)
    np.add.at(tasks, (row + 1, asked[:, 1]), asked[:, 2])
    return _AlikeOnAGpu(
        step=step, models=models, cpu=cpu, tasks=tasks.cumsum(axis=0).cumsum(axis=1)
    )
