"""What nodes have beside GPUs, cores and memory: disks, network cards, room for pods."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ridgeline.queue.doctor.state import LiveNode, LivePod


class OtherResources:
    """Free amounts, a column for each resource that any node lists.

    What no node lists is left to whoever counts it, such as a scheduler's extender.

    Args:
        nodes: Those that count, in the order in which they are asked about; none: nothing does.
        num_nodes: How many are asked about.
    """

    def __init__(self, nodes: Sequence[LiveNode], num_nodes: int) -> None:
        self.names = sorted({name for node in nodes for name in node.others})
        self._at = {name: place for place, name in enumerate(self.names)}
        self._free = np.zeros((num_nodes, len(self.names)), dtype=np.int64)
        for place, node in enumerate(nodes):
            for name, amount in node.others.items():
                self._free[place, self._at[name]] = amount

    def holding(self, pod: LivePod) -> NDArray[np.bool_]:
        """Which nodes have what a pod asks for, [nodes]."""
        return np.asarray(np.all(self._free >= self._asked(pod), axis=1))

    def put(self, pod: LivePod, place: int) -> None:
        """Take what a pod asks for from a node."""
        self._free[place] -= self._asked(pod)

    def short_of(self, pod: LivePod, place: int) -> list[str]:
        """What a node has too little of for a pod."""
        short = self._free[place] < self._asked(pod)
        return [name for name, lacks in zip(self.names, short, strict=True) if lacks]

    def _asked(self, pod: LivePod) -> NDArray[np.int64]:
        return np.array([pod.others.get(name, 0) for name in self.names], dtype=np.int64)
