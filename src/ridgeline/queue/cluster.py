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

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal, get_args

import msgspec

from ridgeline.errors import InputError
from ridgeline.hardware.catalogue import device
from ridgeline.queue.placement.rules import rule_names
from ridgeline.queue.pool import PlacementName
from ridgeline.queue.shares import (
    RESOURCES,
    CohortShare,
    QueueShare,
    check_flavors,
    check_shares,
)
from ridgeline.records.input_file import read_toml

SharingName = Literal["fraction", "mps", "time-slicing"]


class SpotTerms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes that are cheap and may be taken away."""

    interruptions_per_hour: float
    """How often each node is taken, on average."""
    return_hours: float = 0.5
    """From losing a node until another one takes its place."""


class SpotOffer(SpotTerms, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a provider asks for nodes like ours that it may take away."""

    gpu_hour_price: float


class NodeGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes that are alike."""

    count: int
    gpus: int
    """GPUs of one node."""
    gpu_type: str = ""
    """What jobs call its GPUs; a device that we know can be split by MIG."""
    cpus: float | None = None
    """Cores of one node; none: they are not counted."""
    memory_gibibytes: float | None = msgspec.field(default=None, name="memory_gib")
    nodes_per_nvlink: int = 1
    """Nodes that one NVLink domain joins: 18 in an NVL72 of four GPUs a node."""
    nodes_per_rack: int | None = None
    """Nodes that stand in one rack; None: all of them."""
    gpu_hour_price: float | None = None
    """Instead of the cluster's."""
    spot: SpotTerms | None = None


class Network(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What communication costs whose GPUs lie apart."""

    device: str
    """A GPU that we know, whose NVLink and usual network are taken."""
    rack_oversubscription: float = 1.0
    """How many times less bandwidth there is between racks than within one."""
    all_reduced_gigabytes: float = msgspec.field(default=1.0, name="all_reduced_gb")
    """Gradients that a job sums up in a step, in gigabytes."""


class Flavor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes of which queues have quotas of their own: Kueue's ResourceFlavor."""

    gpu_type: str
    """Their kind of GPU, as `nodes` name it."""


class QueuedCluster(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes, queues and costs; a cluster without nodes is one pool of `gpus`."""

    gpus: int = 0
    """GPUs of one pool, where `nodes` is empty."""
    nodes: list[NodeGroup] = []
    cpus: float | None = None
    """Cores beside `gpus`; none: they are not counted."""
    memory_gibibytes: float | None = msgspec.field(default=None, name="memory_gib")
    placement: str = "pack"
    """`pack` or `spread`, or a rule of `queue place` by its name."""
    network: Network | None = None
    """What communication costs; None: nobody is slower for lying apart."""
    sharing: SharingName = "fraction"
    """What jobs of less than one GPU do to each other on it."""
    sharing_loss: float | None = None
    """The part of a shared GPU's throughput that sharing costs; none: what is known of it."""
    scaling: list[tuple[float, float]] = []
    """Speed by GPUs of an elastic job, ascending; empty: Amdahl's law with its own share."""
    queues: dict[str, QueueShare] = {}
    cohorts: dict[str, CohortShare] = {}
    """Groups of queues that lend to each other (policy `quota`)."""
    local_queues: dict[str, str] = {}
    """Other names by which jobs call queues, as Kueue's LocalQueues are."""
    flavors: dict[str, Flavor] = {}
    """What the flavors stand for of which queues have quotas (policy `quota`)."""
    fair_sharing: bool = False
    """Whether what cohorts lend is shared by weight, as Kueue's fair sharing does (policy `quota`);
    it does not heed borrow_within_cohort."""
    gpu_hour_price: float | None = None
    spot_offer: SpotOffer | None = None
    """To ask how many of the nodes had better be spot capacity (`--spot-mix`)."""
    restart_seconds: float = 0.0
    """From the moment at which an interrupted job is started again until its work goes on."""
    checkpoint_seconds: float = 0.0
    """Between checkpoints; an interrupted job loses what it did since. 0: it loses nothing."""
    las_gpu_seconds: float = 3600.0
    """Work after which a job leaves the first queue of `las`."""
    node_mtbf_hours: float | None = None
    """Mean time between failures of one node; none: nodes do not fail."""
    node_repair_hours: float = 4.0
    gang_timeout_seconds: float = 0.0
    """After which a job that holds a part of its GPUs gives them back (policy `pod-by-pod`); 0:
    never, and two such jobs can wait for each other for good."""

    @property
    def num_gpus(self) -> int:
        """All GPUs of the cluster."""
        return sum(one.count * one.gpus for one in self.nodes) if self.nodes else self.gpus

    @property
    def num_nodes(self) -> int:
        """Nodes; none where a pool only counts GPUs."""
        return sum(one.count for one in self.nodes)

    def price_of(self, group: NodeGroup | None) -> float | None:
        """What an hour of one GPU costs, in USD."""
        own = None if group is None else group.gpu_hour_price
        return self.gpu_hour_price if own is None else own


def read_queued_cluster(path: Path, *, cure: str = "") -> QueuedCluster:
    """Read a cluster file.

    Args:
        path: The file.
        cure: What else it may be, for the error where it is no TOML.

    Raises:
        InputError: It cannot be read, a key is unknown, or a number makes no sense.
    """
    found = read_toml(path, QueuedCluster, option="--cluster", cure=cure)
    check_queued_cluster(found, f"--cluster {path}")
    return found


def check_queued_cluster(cluster: QueuedCluster, where: str) -> None:
    """Refuse numbers that make no cluster.

    Raises:
        InputError: Which key of `where`, and what it may be.
    """
    if cluster.nodes and cluster.gpus:
        raise InputError(f"{where}: gpus and nodes are both given; keep the one that is true")
    for place, one in enumerate(cluster.nodes):
        if one.count < 1 or one.gpus < 0:
            raise InputError(
                f"{where}: nodes[{place}] is {one.count} nodes of {one.gpus} GPUs; give a count of"
                " 1 or more, and 0 GPUs or more"
            )
    if cluster.num_gpus < 1:
        raise InputError(f"{where}: a cluster needs at least one GPU: nodes with count and gpus")
    for key in ("restart_seconds", "checkpoint_seconds", "las_gpu_seconds", "node_repair_hours",
                "gang_timeout_seconds"):  # fmt: skip
        _check_amount(getattr(cluster, key), f"{where}: {key}")
    _check_amount(cluster.memory_gibibytes, f"{where}: memory_gib")
    for key in ("gpu_hour_price", "cpus"):
        _check_amount(getattr(cluster, key), f"{where}: {key}")
    if cluster.node_mtbf_hours is not None:
        if not 0.0 < cluster.node_mtbf_hours < float("inf"):
            raise InputError(f"{where}: node_mtbf_hours is to be more than 0")
        if not cluster.nodes:
            raise InputError(f"{where}: node_mtbf_hours needs nodes: a pool has none that fail")
    if cluster.nodes and (cluster.cpus is not None or cluster.memory_gibibytes is not None):
        raise InputError(f"{where}: cpus and memory_gib belong to the nodes where there are nodes")
    for place, group in enumerate(cluster.nodes):
        _check_group(group, f"{where}: nodes[{place}]")
    if cluster.spot_offer is not None:
        _check_spot(cluster.spot_offer, f"{where}: spot_offer")
        _check_amount(cluster.spot_offer.gpu_hour_price, f"{where}: spot_offer.gpu_hour_price")
    if cluster.sharing_loss is not None and not 0.0 <= cluster.sharing_loss < 1.0:
        raise InputError(f"{where}: sharing_loss is {cluster.sharing_loss:g}; give 0 to below 1")
    points = cluster.scaling
    if any(after[0] <= before[0] for before, after in pairwise(points)) or any(
        gpus < 1 or speed <= 0 for gpus, speed in points
    ):
        raise InputError(f"{where}: scaling is GPUs and speed, ascending in GPUs: [[1, 1], [8, 7]]")
    if cluster.network is not None:
        try:
            device(cluster.network.device)
        except InputError as error:
            raise InputError(f"{where}: network.device: {error}") from error
        if not cluster.network.rack_oversubscription >= 1.0:
            raise InputError(f"{where}: network.rack_oversubscription is 1 or more")
        if not 0.0 < cluster.network.all_reduced_gigabytes < float("inf"):
            raise InputError(f"{where}: network.all_reduced_gb is above 0")
    _check_placement(cluster, where)
    _check_flavors(cluster, where)
    check_shares(cluster.queues, cluster.cohorts, where, fair_sharing=cluster.fair_sharing)
    _check_counted(cluster, where)


def _check_counted(cluster: QueuedCluster, where: str) -> None:
    """Refuse quotas of what no node says how much it has of, since jobs' wishes are not heeded."""
    every: Sequence[NodeGroup | QueuedCluster] = cluster.nodes or [cluster]
    counts = {
        "cores": ("cpus", all(one.cpus is not None for one in every)),
        "memory_gibibytes": ("memory_gib", all(one.memory_gibibytes is not None for one in every)),
    }
    for name, share in cluster.queues.items():
        for resource, (key, counted) in counts.items():
            told = any(getattr(one, resource) is not None for one in (share, *share.flavors))
            if told and not counted:
                raise InputError(
                    f"{where}: queues.{name}: a quota of {RESOURCES[resource]} needs {key} of all"
                    " nodes"
                )


def _check_flavors(cluster: QueuedCluster, where: str) -> None:
    kinds = {one.gpu_type for one in cluster.nodes}
    for name, one in cluster.flavors.items():
        if one.gpu_type not in kinds or not one.gpu_type:
            raise InputError(
                f"{where}: flavors.{name}: gpu_type {one.gpu_type!r} is to be that of some nodes"
            )
    check_flavors(cluster.queues, cluster.cohorts, cluster.flavors, where)


def _check_placement(cluster: QueuedCluster, where: str) -> None:
    by_count, name = get_args(PlacementName), cluster.placement
    if name in by_count:
        return
    if name not in rule_names():
        known = ", ".join((*by_count, *rule_names()))
        raise InputError(f"{where}: placement {name}: known are {known}")
    if not cluster.nodes:
        raise InputError(f"{where}: placement {name} chooses among nodes; give some by --cluster")
    for key, said in (("cpus", [one.cpus for one in cluster.nodes]),
                      ("memory_gib", [one.memory_gibibytes for one in cluster.nodes])):  # fmt: skip
        if None in said and any(one is not None for one in said):
            raise InputError(
                f"{where}: placement {name} compares nodes by {key}, which some of them do not"
                " say; give it for all nodes, or for none"
            )


def _check_group(group: NodeGroup, where: str) -> None:
    _check_amount(group.memory_gibibytes, f"{where}: memory_gib")
    for key in ("cpus", "gpu_hour_price"):
        _check_amount(getattr(group, key), f"{where}: {key}")
    if group.nodes_per_nvlink < 1 or (group.nodes_per_rack or 1) < 1:
        raise InputError(f"{where}: nodes_per_nvlink and nodes_per_rack are 1 or more")
    if group.spot is not None:
        _check_spot(group.spot, f"{where}: spot")


def _check_spot(terms: SpotTerms, where: str) -> None:
    _check_amount(terms.interruptions_per_hour, f"{where}.interruptions_per_hour")
    _check_amount(terms.return_hours, f"{where}.return_hours")


def _check_amount(amount: float | None, what: str) -> None:
    if amount is not None and not 0.0 <= amount < float("inf"):
        raise InputError(f"{what} is {amount:g}; give 0 or more")
