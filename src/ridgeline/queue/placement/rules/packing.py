"""Packing, which takes GPUs in use before free ones, and nodes in use before idle ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ridgeline.queue.placement.nodes import NodeState
from ridgeline.queue.placement.rules import RuleCard
from ridgeline.queue.placement.tasks import WHOLE, TaskKind

CARD = RuleCard(
    title="GPUs in use first, then nodes in use",
    source="Weng et al., MLaaS in the wild, NSDI 2022; as in ATC 2023",
)


def scores(nodes: NodeState, places: NDArray[np.int64], kind: TaskKind) -> NDArray[np.int64]:
    """Up to 100 on GPUs in use, to 50 with free GPUs of a used node, to 33 on an idle one."""
    if not kind.num_gpus:
        return np.zeros(len(places), dtype=np.int64)
    free = nodes.free_gpus[places]
    idle = np.maximum(33 - free, free)
    takes_free = np.full(len(places), kind.num_gpus)
    shared = np.zeros(len(places), dtype=np.int64)
    if kind.shares:
        left = nodes.gpu_left[places]
        fitting = np.where((left >= kind.gpu_milli) & (left > 0), left, WHOLE + 1)
        fullest = fitting.min(axis=1)
        takes_free = (fullest == WHOLE).astype(np.int64)
        shared = np.maximum(100 - fullest * 100 // WHOLE // 10, 50)
    used = np.where(takes_free > 0, np.maximum(50 - takes_free, 33), shared)
    return np.where(free == nodes.num_gpus[places], idle, used)
