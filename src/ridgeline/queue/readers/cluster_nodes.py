"""A cluster to simulate, from a list of its nodes instead of a file written by hand.

    kubectl get nodes,clusterqueues,cohorts,resourceflavors,localqueues -A -o json > nodes.json
    sinfo -N -o "%N|%G|%T|%P" > sinfo.txt

The tables of nodes of public traces (CSV) are read too. Nodes without GPUs, and nodes that take no
jobs, are no part of it; alike ones stand together. What Kueue's objects say of queues is read with
them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ridgeline.errors import InputError
from ridgeline.queue.cluster import (
    NodeGroup,
    QueuedCluster,
    check_queued_cluster,
    read_queued_cluster,
)
from ridgeline.queue.readers import slurm_json
from ridgeline.queue.readers.kube_shares import shares_of
from ridgeline.queue.readers.kubectl import KUBECTL_CURE, YAML_BEGINS, cluster_of, kube_objects
from ridgeline.queue.readers.node_table import NODES_CURE, is_spec, read_node_table, read_spec
from ridgeline.queue.readers.slurm_nodes import open_nodes, prints_nodes
from ridgeline.records.input_file import read_text

CLUSTER_CURE = (
    "give a cluster as TOML, or its nodes: kubectl get nodes -o json, sinfo -N, or openb's CSV"
)


@dataclass(frozen=True, slots=True)
class _Node:
    gpus: int
    gpu_type: str
    cpus: float | None = None
    memory_gibibytes: float | None = None


def read_cluster(path: Path) -> QueuedCluster:
    """Read a cluster file, or the nodes that a cluster prints.

    Raises:
        InputError: It is neither, or no node in it has a GPU that jobs may have.
    """
    text = read_text(path, option="--cluster", cure=CLUSTER_CURE)
    if slurm_json.BEGINS.match(text.lstrip("\ufeff")) or prints_nodes(text):
        nodes = (
            _Node(one.gpus, one.gpu_type, one.cpus, one.memory_gibibytes)
            for one in open_nodes(text, f"--cluster {path}")
        )
        return _grouped(nodes, path, CLUSTER_CURE)
    if path.suffix == ".json" or YAML_BEGINS.match(text.lstrip("\ufeff").lstrip()):
        return _of_kubectl(path)
    if path.suffix == ".csv" and is_spec(text):
        return QueuedCluster(nodes=[_of_spec(path)])
    if path.suffix == ".csv":
        listed = (
            _Node(
                one.num_gpus, one.model, one.cpus,
                None if one.memory_bytes is None else one.memory_bytes / 2**30,
            )
            for one in read_node_table(path)
        )  # fmt: skip
        return _grouped(listed, path, NODES_CURE)
    return read_queued_cluster(path, cure="" if path.suffix == ".toml" else CLUSTER_CURE)


def _of_kubectl(path: Path) -> QueuedCluster:
    where = f"--cluster {path}"
    objects = kube_objects(path)
    told = [one for one in objects if one["kind"] in ("Node", "ResourceSlice")]
    state = cluster_of(told, where=where)
    nodes = [node for node in state.nodes if not node.closed]
    counted = (
        _Node(node.num_gpus, node.model, node.cpu_milli / 1000, node.memory_bytes / 2**30)
        for node in nodes
    )
    cluster = _grouped(counted, path, KUBECTL_CURE)
    if not any(one["kind"] == "ClusterQueue" for one in objects):
        return cluster
    shares = shares_of(objects, nodes, where)
    cluster = msgspec.structs.replace(
        cluster, queues=shares.queues, cohorts=shares.cohorts, flavors=shares.flavors,
        local_queues=shares.local_queues, fair_sharing=shares.fair_sharing,
    )  # fmt: skip
    check_queued_cluster(cluster, where)
    return cluster


def _of_spec(path: Path) -> NodeGroup:
    found = read_spec(path)
    return NodeGroup(
        count=found.switches * found.nodes_of_switch,
        gpus=found.gpus,
        cpus=found.cpus,
        memory_gibibytes=found.memory_gibibytes,
        nodes_per_rack=found.nodes_of_switch,
    )


def _grouped(nodes: Iterable[_Node], path: Path, cure: str) -> QueuedCluster:
    """Nodes that are alike as one group each, in the order in which they first come."""
    counted = Counter(node for node in nodes if node.gpus)
    if not counted:
        raise InputError(f"--cluster {path}: no node with a GPU that takes jobs; {cure}")
    return QueuedCluster(
        nodes=[
            NodeGroup(
                count=count,
                gpus=node.gpus,
                gpu_type=node.gpu_type,
                cpus=node.cpus,
                memory_gibibytes=node.memory_gibibytes,
            )
            for node, count in counted.items()
        ]
    )
