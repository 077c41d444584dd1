"""Best fit, which takes the node with the least CPU and GPUs left over."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ridgeline.queue.placement.nodes import NodeState
from ridgeline.queue.placement.rules import RuleCard
from ridgeline.queue.placement.tasks import TaskKind

LARGEST_CPU_MILLI, LARGEST_GPU_MILLI = 128_000, 8_000
"""What a weight of one stands for, as in the simulator of the paper's authors."""
CARD = RuleCard(title="least CPU and GPU left over", source="Weng et al., ATC 2023, section 6.2")


def scores(nodes: NodeState, places: NDArray[np.int64], kind: TaskKind) -> NDArray[np.int64]:
    """From 0 to 100, cut to whole numbers."""
    cpu = (nodes.cpu_left[places] - kind.cpu_milli) / LARGEST_CPU_MILLI
    gpu = (nodes.total_left[places] - kind.total_milli) / LARGEST_GPU_MILLI
    found: NDArray[np.int64] = ((1.0 - 0.5 * cpu - 0.5 * gpu) * 100.0).astype(np.int64)
    return found
