"""A node by chance, and a GPU by chance for tasks that share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ridgeline.queue.placement.nodes import NodeState
from ridgeline.queue.placement.rules import RuleCard
from ridgeline.queue.placement.tasks import TaskKind

CARD = RuleCard(title="any node that holds the task", gpu="random", node="any")


def scores(nodes: NodeState, places: NDArray[np.int64], kind: TaskKind) -> NDArray[np.int64]:
    """Zero for all, as chance decides."""
    return np.zeros(len(places), dtype=np.int64)
