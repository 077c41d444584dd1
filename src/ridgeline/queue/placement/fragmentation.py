"""Fragmentation of GPUs, that is how much of what is left the next task cannot use.

Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
Descent", ATC 2023, section 4.1: F of a node is the mean, over typical tasks, of the GPUs left that
such a task cannot be put on: all of them where the node does not hold the task (or the task wants
no GPU), else those GPUs of the node that have too little left for it.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from ridgeline.queue.placement.nodes import NodeState
from ridgeline.queue.placement.tasks import PlacedTasks, TaskKind

POPULAR = 0.95
"""Typical are the most frequent kinds of task, until they make up this share of all."""


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
        with_gpus = [(asks, count / covered) for asks, count in chosen if asks.gpu_milli]
        self._share = np.array([share for _, share in with_gpus])
        self._cpu = np.array([asks.cpu_milli for asks, _ in with_gpus])
        self._num = np.array([asks.num_gpus for asks, _ in with_gpus])
        milli = np.array([asks.gpu_milli for asks, _ in with_gpus])
        self._steps, self._step_of = np.unique(milli, return_inverse=True)
        self._models = [asks.models for asks, _ in with_gpus]

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
        count = np.count_nonzero(enough, axis=1)[:, self._step_of]
        usable = np.add.reduce(enough * left, axis=1)[:, self._step_of]
        holds = (count >= self._num) & (cpu_left[:, None] >= self._cpu)
        if any(self._models):
            access = [nodes.allowed(one)[places] if one else np.ones(len(places), dtype=bool)
                      for one in self._models]  # fmt: skip
            holds &= np.stack(access, axis=1)
        unused: NDArray[np.float64] = gpu_left.sum(axis=1) - (usable * holds) @ self._share
        return unused

    def of_cluster(self, nodes: NodeState) -> float:
        """F of all nodes together, in GPUs."""
        every = np.arange(len(nodes))
        found = self.fragmented(nodes, every, nodes.cpu_left, nodes.gpu_left)
        return float(found.sum()) / 1000.0
