"""Nodes that a taint closes: some have it, and nobody stands it."""

from __future__ import annotations

from dataclasses import replace

from ridgeline.queue.doctor.constraints import HARD, Taint
from ridgeline.queue.doctor.state import LiveCluster, LiveNode

TAINT = "taint "
"""How the reason of a node begins that is closed by one."""


def with_taints_as_doors(state: LiveCluster) -> LiveCluster:
    """The cluster, with those nodes closed that have a taint which no pod of it stands.

    A pod without GPUs that stands every taint says nothing, as daemons do; where all nodes with
    GPUs have the taint, it is the pods that are wrong.
    """
    able = {
        one
        for pod in state.pods
        for one in pod.constraints.tolerated
        if one.key or pod.num_gpus or pod.slices
    }
    with_gpus = [node for node in state.nodes if node.num_gpus or node.slices]

    def standing(node: LiveNode) -> list[Taint]:
        hard = [one for one in node.taints if one.effect in HARD]
        return [one for one in hard if not any(other.covers(one) for other in able)]

    barring = {node.name: standing(node) for node in with_gpus}
    if all(barring.values()):
        return state
    nodes = [
        replace(
            node,
            closed=f"{TAINT}{barring[node.name][0].key}, which no pod here tolerates",
            taints=tuple(one for one in node.taints if one not in barring[node.name]),
        )
        if barring.get(node.name) and not node.closed
        else node
        for node in state.nodes
    ]
    return replace(state, nodes=tuple(nodes))
