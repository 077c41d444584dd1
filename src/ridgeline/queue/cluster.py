"""A cluster as its queue sees it: nodes, queues with weights and quotas, costs.

Written as TOML:

    gpu_hour_price = 2.5
    restart_seconds = 300          # from being started again until work goes on
    checkpoint_seconds = 1800      # work since the last checkpoint is lost
    [[nodes]]
    count = 16
    gpus = 8
    [queues.research]
    weight = 2.0
    quota = 64
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from ridgeline.errors import InputError
from ridgeline.queue.pool import CountedPool, GpuPool, NodePool, PlacementName
from ridgeline.records.input_file import read_toml


class NodeGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes that are alike."""

    count: int
    gpus: int
    """GPUs of one node."""


class QueueShare(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one queue may have."""

    weight: float = 1.0
    """Its part of a contended cluster, beside the weights of the others (policy `fair`)."""
    quota: int = 0
    """GPUs that it gets back from borrowers when it asks (policy `quota`)."""


class QueuedCluster(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes, queues and costs; a cluster without nodes is one pool of `gpus`."""

    gpus: int = 0
    """GPUs of one pool, where `nodes` is empty."""
    nodes: list[NodeGroup] = []
    placement: PlacementName = "pack"
    queues: dict[str, QueueShare] = {}
    gpu_hour_price: float | None = None
    restart_seconds: float = 0.0
    """From the moment at which an interrupted job is started again until its work goes on."""
    checkpoint_seconds: float = 0.0
    """Between checkpoints; an interrupted job loses what it did since. 0: it loses nothing."""
    las_gpu_seconds: float = 3600.0
    """Work after which a job leaves the first queue of `las`."""
    node_mtbf_hours: float | None = None
    """Mean time between failures of one node; none: nodes do not fail."""
    node_repair_hours: float = 4.0

    @property
    def num_gpus(self) -> int:
        """All GPUs of the cluster."""
        return sum(one.count * one.gpus for one in self.nodes) if self.nodes else self.gpus

    def pool(self) -> GpuPool:
        """All of its GPUs, free."""
        if not self.nodes:
            return CountedPool(self.gpus)
        sizes = [one.gpus for one in self.nodes for _ in range(one.count)]
        return NodePool(sizes, self.placement)


def read_queued_cluster(path: Path) -> QueuedCluster:
    """Read a cluster file.

    Raises:
        InputError: It cannot be read, a key is unknown, or a number makes no sense.
    """
    found = read_toml(path, QueuedCluster, option="--cluster")
    check_queued_cluster(found, f"--cluster {path}")
    return found


def check_queued_cluster(cluster: QueuedCluster, where: str) -> None:
    """Refuse numbers that make no cluster.

    Raises:
        InputError: Which key of `where`, and what it may be.
    """
    if cluster.nodes and cluster.gpus:
        raise InputError(f"{where}: gpus and nodes are both given; keep the one that is true")
    if any(one.count < 1 or one.gpus < 1 for one in cluster.nodes) or cluster.num_gpus < 1:
        raise InputError(f"{where}: a cluster needs at least one GPU: nodes with count and gpus")
    for key in ("restart_seconds", "checkpoint_seconds", "las_gpu_seconds", "node_repair_hours"):
        if not 0.0 <= getattr(cluster, key) < float("inf"):
            raise InputError(f"{where}: {key} is {getattr(cluster, key):g}; give 0 or more")
    if cluster.gpu_hour_price is not None and not 0.0 <= cluster.gpu_hour_price < float("inf"):
        raise InputError(f"{where}: gpu_hour_price is {cluster.gpu_hour_price:g}; give 0 or more")
    if cluster.node_mtbf_hours is not None:
        if not 0.0 < cluster.node_mtbf_hours < float("inf"):
            raise InputError(f"{where}: node_mtbf_hours is to be more than 0")
        if not cluster.nodes:
            raise InputError(f"{where}: node_mtbf_hours needs nodes: a pool has none that fail")
    for name, share in cluster.queues.items():
        if not 0.0 < share.weight < float("inf") or share.quota < 0:
            raise InputError(f"{where}: queues.{name}: weight is above 0 and quota 0 or more")
