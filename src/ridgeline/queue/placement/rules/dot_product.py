"""Dot product, which takes the node whose leftovers point away from what is asked."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ridgeline.queue.placement.nodes import NodeState
from ridgeline.queue.placement.rules import RuleCard
from ridgeline.queue.placement.tasks import TaskKind

LARGEST_CPU_MILLI, LARGEST_GPU_MILLI = 128_000, 8_000
CARD = RuleCard(
    title="smallest product of what is left and what is asked",
    source="Grandl et al., Tetris, SIGCOMM 2014; as in Weng et al., ATC 2023",
)


def scores(nodes: NodeState, places: NDArray[np.int64], kind: TaskKind) -> NDArray[np.int64]:
    """From 0 to 100, cut to whole numbers."""
    cpu = nodes.cpu_left[places] / LARGEST_CPU_MILLI * (kind.cpu_milli / LARGEST_CPU_MILLI)
    gpu = nodes.total_left[places] / LARGEST_GPU_MILLI * (kind.total_milli / LARGEST_GPU_MILLI)
    found: NDArray[np.int64] = (100.0 * (1.0 - (cpu + gpu) / 2.0)).astype(np.int64)
    return found
