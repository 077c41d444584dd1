"""The kube-scheduler with MostAllocated, GPUs ten times CPU and memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ridgeline.queue.placement.kube import kube_scores
from ridgeline.queue.placement.nodes import NodeState
from ridgeline.queue.placement.rules import RuleCard
from ridgeline.queue.placement.tasks import TaskKind

CARD = RuleCard(
    title="kube-scheduler with MostAllocated, GPUs ten times CPU and memory",
    node="kube",
    source="Kubernetes 1.36",
)


def scores(nodes: NodeState, places: NDArray[np.int64], kind: TaskKind) -> NDArray[np.int64]:
    """The sum of both plugins, from 0 to 200."""
    return kube_scores(nodes, places, kind, aim="most", gpu_weight=10)
