"""Fragmentation gradient descent, which takes the node and GPU where fragmentation grows least."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ridgeline.queue.placement.fragmentation import TypicalTasks
from ridgeline.queue.placement.nodes import NodeState
from ridgeline.queue.placement.rules import RuleCard
from ridgeline.queue.placement.tasks import WHOLE, TaskKind

CARD = RuleCard(
    title="least growth of fragmentation", gpu="own", source="Weng et al., ATC 2023, algorithm 1"
)


class FragmentationGradient:
    """F of every node is kept, and computed anew where something was put."""

    def __init__(self, typical: TypicalTasks) -> None:
        self._typical = typical
        self._now = np.empty(0)
        self._seen = np.empty(0, dtype=np.int64)

    def scores(
        self, nodes: NodeState, places: NDArray[np.int64], kind: TaskKind
    ) -> NDArray[np.int64]:
        """The sigmoid of the fall of F in GPUs, from 0 to 100, cut to whole numbers."""
        rows, _, scores = self._options(nodes, places, kind)
        best = np.full(len(places), -1, dtype=np.int64)
        np.maximum.at(best, rows, scores)
        return best

    def gpu_for(self, nodes: NodeState, node: int, kind: TaskKind) -> int:
        """The first GPU with the best score."""
        _, gpus, scores = self._options(nodes, np.array([node]), kind)
        return int(gpus[int(scores.argmax())])

    def _options(
        self, nodes: NodeState, places: NDArray[np.int64], kind: TaskKind
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Rows of `places`, GPUs (the first of those with as much left) and scores [options]."""
        before = self._fragmented_now(nodes, places)
        left = nodes.gpu_left[places]
        if kind.shares:
            apart = np.ones(left.shape, dtype=bool)
            for later in range(1, left.shape[1]):
                apart[:, later] = (left[:, :later] != left[:, later : later + 1]).all(axis=1)
            rows, gpus = np.nonzero((left >= kind.gpu_milli) & apart)
            after = left[rows].copy()
            after[np.arange(len(rows)), gpus] -= kind.gpu_milli
        else:
            rows, gpus = np.arange(len(places)), np.zeros(len(places), dtype=np.int64)
            free = left == WHOLE
            taken = free & (free.cumsum(axis=1) <= kind.num_gpus)
            after = np.where(taken, 0, left)
        at = places[rows]
        cpu = nodes.cpu_left[at] - kind.cpu_milli
        grows = self._typical.fragmented(nodes, at, cpu, after) - before[rows]
        scores = (100.0 / (1.0 + np.exp(grows / WHOLE))).astype(np.int64)
        return rows, gpus, scores

    def _fragmented_now(self, nodes: NodeState, places: NDArray[np.int64]) -> NDArray[np.float64]:
        if len(self._now) != len(nodes):
            self._now = np.zeros(len(nodes))
            self._seen = np.full(len(nodes), -1)
        old = places[self._seen[places] != nodes.version[places]]
        if len(old):
            self._now[old] = self._typical.fragmented(
                nodes, old, nodes.cpu_left[old], nodes.gpu_left[old]
            )
            self._seen[old] = nodes.version[old]
        return self._now[places]


RULE = FragmentationGradient
