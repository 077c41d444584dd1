"""Fragmentation gradient descent, which takes the node and GPU where fragmentation grows least.

Weng et al., ATC 2023, algorithm 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ridgeline.queue.placement.fragmentation import TypicalTasks
from ridgeline.queue.placement.nodes import NodeState
from ridgeline.queue.placement.tasks import WHOLE, TaskKind

_MOST_GPUS = 1024
"""More than any node has."""


class FragmentationGradient:
    """F of every node is kept, and computed anew where something was put."""

    def __init__(self, typical: TypicalTasks) -> None:
        self._typical = typical
        self._now = np.empty(0)
        self._seen = np.empty(0, dtype=np.int64)
        self._best: dict[TaskKind, NDArray[np.int64]] = {}
        """The first GPU with the best score, by node, as of when the node was last scored."""

    def scores(
        self, nodes: NodeState, places: NDArray[np.int64], kind: TaskKind
    ) -> NDArray[np.int64]:
        """The sigmoid of the fall of F in GPUs, from 0 to 100, cut to whole numbers."""
        rows, gpus, scores = self._options(nodes, places, kind)
        # Options come node by node; of equal ones the first GPU is the best.
        numbered = scores * _MOST_GPUS + (_MOST_GPUS - 1 - gpus)
        best = np.maximum.reduceat(numbered, np.searchsorted(rows, np.arange(len(places))))
        if kind.shares:
            if kind not in self._best:
                self._best[kind] = np.zeros(len(nodes), dtype=np.int64)
            self._best[kind][places] = _MOST_GPUS - 1 - best % _MOST_GPUS
        return np.asarray(best // _MOST_GPUS)

    def gpu_for(self, nodes: NodeState, node: int, kind: TaskKind) -> int:
        """The first GPU with the best score: that of when the node got its score."""
        del nodes
        return int(self._best[kind][node])

    def _options(
        self, nodes: NodeState, places: NDArray[np.int64], kind: TaskKind
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Rows of `places`, GPUs (the first of those with as much left) and scores [options]."""
        left = nodes.gpu_left[places]
        if kind.shares:
            count = left.shape[1]
            alike = (left[:, :, None] == left[:, None, :]) & np.tri(count, k=-1, dtype=bool)
            rows, gpus = np.nonzero((left >= kind.gpu_milli) & ~alike.any(axis=2))
            after = left[rows].copy()
            after[np.arange(len(rows)), gpus] -= kind.gpu_milli
        else:
            rows, gpus = np.arange(len(places)), np.zeros(len(places), dtype=np.int64)
            free = left == WHOLE
            taken = free & (free.cumsum(axis=1) <= kind.num_gpus)
            after = np.where(taken, 0, left)
        at = places[rows]
        cpu = nodes.cpu_left[at] - kind.cpu_milli
        grows = self._fragmented(nodes, places, at, cpu, after) - self._now[at]
        scores = (100.0 / (1.0 + np.exp(grows / WHOLE))).astype(np.int64)
        return rows, gpus, scores

    def _fragmented(
        self,
        nodes: NodeState,
        places: NDArray[np.int64],
        at: NDArray[np.int64],
        cpu: NDArray[np.int64],
        after: NDArray[np.int64],
    ) -> NDArray[np.float64]:
        """F of nodes with so much left; what it is now is noted where it changed."""
        if len(self._now) != len(nodes):
            self._now = np.zeros(len(nodes))
            self._seen = np.full(len(nodes), -1)
        old = places[self._seen[places] != nodes.version[places]]
        found = self._typical.fragmented(
            nodes,
            np.concatenate([old, at]),
            np.concatenate([nodes.cpu_left[old], cpu]),
            np.concatenate([nodes.gpu_left[old], after]),
        )
        self._now[old] = found[: len(old)]
        self._seen[old] = nodes.version[old]
        return found[len(old) :]
