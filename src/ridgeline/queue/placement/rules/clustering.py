"""Clustering, which takes a node that runs tasks of as many GPUs, then an idle one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ridgeline.queue.placement.nodes import NodeState
from ridgeline.queue.placement.rules import RuleCard
from ridgeline.queue.placement.tasks import TaskKind

LARGEST_GPU_MILLI = 8_000
CARD = RuleCard(
    title="tasks of as many GPUs together",
    source="Xiao et al., Gandiva, OSDI 2018; as in Weng et al., ATC 2023",
)


def scores(nodes: NodeState, places: NDArray[np.int64], kind: TaskKind) -> NDArray[np.int64]:
    """Only its group, its group among others, idle, or only other groups."""
    if not kind.num_gpus:
        return np.zeros(len(places), dtype=np.int64)
    group = "share" if kind.shares else str(kind.num_gpus)
    classes = np.array([_class(nodes.groups[place], group) for place in places.tolist()])
    fuller = 25 * (LARGEST_GPU_MILLI - nodes.total_left[places]) // LARGEST_GPU_MILLI
    found: NDArray[np.int64] = fuller + 25 * classes
    return found


def _class(groups: dict[str, int], group: str) -> int:
    if group in groups:
        return 3 if len(groups) == 1 else 2
    return 0 if groups else 1
