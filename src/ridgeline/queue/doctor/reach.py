"""Which nodes admit which pods, while pods are put on nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ridgeline.queue.doctor.constraints import Constraints, PodTerm
from ridgeline.queue.doctor.state import LiveNode, LivePod

OnNodes = list[list[LivePod]]
"""The pods of each node that others may have to be near to or far from."""


class Reach:
    """Nodes by what they admit.

    Args:
        nodes: In the order in which they are asked about.
        free: Every node admits every pod.
    """

    def __init__(self, nodes: Sequence[LiveNode], *, free: bool = False) -> None:
        self.nodes = nodes
        self.free = free
        self._on: OnNodes = [[] for _ in nodes]
        self._known: dict[Constraints, NDArray[np.bool_]] = {}
        self._apart = False
        """Some pod on a node keeps others away."""

    def put(self, pod: LivePod, place: int) -> None:
        """Count a pod as being on a node."""
        self._on[place].append(pod)
        self._apart |= bool(pod.constraints.apart)

    def on_nodes(self) -> OnNodes:
        """The pods on nodes, to come back to."""
        return [list(pods) for pods in self._on]

    def restore(self, before: OnNodes) -> None:
        """Go back to what was on the nodes."""
        self._on = before

    def admitting(self, pod: LivePod) -> NDArray[np.bool_]:
        """The nodes that admit a pod."""
        if self.free:
            return np.ones(len(self.nodes), dtype=bool)
        asked = pod.constraints
        if asked not in self._known:
            self._known[asked] = np.array(
                [not asked.keeps_off(node.labels, node.taints) for node in self.nodes], dtype=bool
            )
        found = self._known[asked]
        for term in asked.apart:
            found = found & ~self._near(term)
        if pod.host_ports:
            found = found & ~self._taken(pod.host_ports)
        for term in asked.near:
            near = self._near(term)
            # The first of pods that want to be near each other may be anywhere.
            if near.any() or not term.means(_namespace(pod), pod.labels):
                found = found & near
        return found & ~self._kept_away(pod) if self._apart else found

    def _taken(self, ports: frozenset[str]) -> NDArray[np.bool_]:
        """The nodes of which some pod has one of these ports."""
        return np.array([any(one.host_ports & ports for one in pods) for pods in self._on], bool)

    def _near(self, term: PodTerm) -> NDArray[np.bool_]:
        """The nodes in one domain with a pod that a term means."""
        domains = {
            node.labels.get(term.topology)
            for node, pods in zip(self.nodes, self._on, strict=True)
            if any(term.means(_namespace(pod), pod.labels) for pod in pods)
        } - {None}
        return np.array([node.labels.get(term.topology) in domains for node in self.nodes], bool)

    def _kept_away(self, pod: LivePod) -> NDArray[np.bool_]:
        """The nodes in one domain with a pod that wants this one far from it."""
        found = np.zeros(len(self.nodes), dtype=bool)
        for node, pods in zip(self.nodes, self._on, strict=True):
            for term in {term for other in pods for term in other.constraints.apart}:
                if term.means(_namespace(pod), pod.labels):
                    domain = node.labels.get(term.topology)
                    found |= np.array(
                        [domain is not None and one.labels.get(term.topology) == domain
                         for one in self.nodes], dtype=bool,
                    )  # fmt: skip
        return found


def _namespace(pod: LivePod) -> str:
    return pod.name.partition("/")[0] if "/" in pod.name else ""
