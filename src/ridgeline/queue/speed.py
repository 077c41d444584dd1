"""How fast jobs run: on GPUs that lie apart, on GPUs that they share, at the size that they have.

Apart: a step is computing and, for `comm_share` of it, an all-reduce on which nothing else runs.
The all-reduce is timed over the nodes, NVLink domains and racks that the job lies on, and over as
few as could be (`cost/collective_volume.py`); the ratio stretches that share.

Shared: sharers of a time-sliced GPU get turns, so that each runs at 1 over the sum of their
`gpu_use`, and never faster than alone; MPS lets them run side by side. Either costs a part of the
throughput (`hardware/mig.toml`). Fractions that are held apart cost nothing.

Grown: by Amdahl's law with the job's `parallel_share`, or by the cluster's curve.
"""

from __future__ import annotations

import math

import numpy as np

from ridgeline.cost.amdahl import speedup
from ridgeline.cost.collective_volume import Fabric, all_reduce_seconds
from ridgeline.hardware.cluster import parse_cluster
from ridgeline.hardware.mig import sharing_losses
from ridgeline.queue.cluster import Network, QueuedCluster
from ridgeline.queue.detailed_pool import Placed
from ridgeline.queue.jobs import Jobs
from ridgeline.queue.pool import Held
from ridgeline.queue.wants import PLAIN

Tenancy = tuple[int, int]
"""A node, and the number of a shared GPU there."""


class JobSpeeds:
    """Speeds of running jobs, 1 being a job at its first size, alone and placed compactly."""

    def __init__(self, jobs: Jobs, cluster: QueuedCluster) -> None:
        kinds = set(jobs.wants)
        self._wants = jobs.wants or (PLAIN,) * len(jobs)
        self._asked: list[float] = jobs.num_gpus.tolist()
        self._seconds: list[float] = jobs.duration_seconds.tolist()
        self._curve = np.array(cluster.scaling).T if cluster.scaling else None
        self._spread = None
        if cluster.network is not None and any(one.comm_share for one in kinds):
            self._spread = SpreadCost(cluster.network, cluster)
        self._sharing = None
        if cluster.sharing != "fraction" and jobs.num_gpus.dtype.kind == "f":
            loss = cluster.sharing_loss
            known = sharing_losses()[cluster.sharing].share
            self._sharing = (cluster.sharing, known if loss is None else loss)
        self._tenants: dict[Tenancy, dict[int, None]] = {}
        self._of: dict[int, Tenancy] = {}
        self._touched: Tenancy | None = None
        self._placed: dict[int, float] = {}
        self.vary = self._spread is not None or self._sharing is not None
        """Whether any speed differs from 1 when a job starts."""

    def durations(self) -> list[float]:
        """Seconds of work per job, at the size that it starts with."""
        return [
            seconds if not wants.min_gpus
            else seconds * self._law(job, gpus) / self._law(job, wants.min_gpus)
            for job, (seconds, gpus, wants)
            in enumerate(zip(self._seconds, self._asked, self._wants, strict=True))
        ]  # fmt: skip

    def grown(self, job: int, gpus: int) -> float:
        """How much faster a job is with so many GPUs than with those it starts with."""
        start = self._wants[job].min_gpus or self._asked[job]
        return self._placed.get(job, 1.0) * self._law(job, gpus) / self._law(job, start)

    def started(self, job: int, held: Held) -> float:
        """The speed of a job that was just placed."""
        speed = 1.0
        if self._spread is not None and self._wants[job].comm_share:
            speed = self._spread.speed(self._wants[job].comm_share, held)
        self._placed[job] = speed
        if self._sharing is not None:
            for node, placed in held:
                if isinstance(placed, Placed) and placed.gpu >= 0 and placed.piece.milli:
                    self._of[job] = self._touched = (node, placed.gpu)
                    self._tenants.setdefault((node, placed.gpu), {})[job] = None
                    return speed * self._shared(job)
        self._touched = None
        return speed

    def left(self, job: int, held: Held) -> None:
        """Forget a job that gives back what it held."""
        del held
        self._touched = self._of.pop(job, None)
        self._placed.pop(job, None)
        if self._touched is not None:
            del self._tenants[self._touched][job]

    def neighbours(self, job: int) -> list[tuple[int, float]]:
        """The speeds of those who share the GPU that a job was started on, or left."""
        if self._touched is None:
            return []
        others = [one for one in self._tenants[self._touched] if one != job]
        return [(one, self._placed[one] * self._shared(one)) for one in others]

    def _shared(self, job: int) -> float:
        assert self._sharing is not None
        how, loss = self._sharing
        tenants = self._tenants[self._of[job]]
        if len(tenants) == 1:
            return 1.0
        if how == "mps":
            return 1.0 - loss
        return min(1.0, (1.0 - loss) / sum(self._wants[one].gpu_use for one in tenants))

    def _law(self, job: int, gpus: float) -> float:
        if self._curve is not None:
            return float(np.interp(gpus, self._curve[0], self._curve[1]))
        return speedup(self._wants[job].parallel_share, gpus)


class SpreadCost:
    """What it costs to lie apart, by how many nodes, domains and racks a job is on."""

    def __init__(self, network: Network, cluster: QueuedCluster) -> None:
        self._site = parse_cluster(f"8x{network.device}")
        self._bytes = network.all_reduced_gigabytes * 1e9
        self._oversubscription = network.rack_oversubscription
        self._node_gpus: list[int] = []
        self._domain: list[int] = []
        self._rack: list[int] = []
        for number, group in enumerate(cluster.nodes):
            per_rack = group.nodes_per_rack or group.count
            for node in range(group.count):
                self._node_gpus.append(group.gpus)
                self._domain.append(number * 10**6 + node // group.nodes_per_nvlink)
                self._rack.append(number * 10**6 + node // per_rack)
        self._domain_gpus = max(
            (group.gpus * group.nodes_per_nvlink for group in cluster.nodes), default=0
        )
        self._kept: dict[tuple[int, int, int], float] = {}

    def speed(self, comm_share: float, held: Held) -> float:
        """The speed of a job that communicates for `comm_share` of its time at best."""
        if not self._domain:
            return 1.0
        nodes = [(node, int(placed.gpus)) for node, placed in held if placed.gpus >= 1]
        gpus = sum(count for _, count in nodes)
        if gpus < 2:
            return 1.0
        per_domain: dict[int, int] = {}
        for node, count in nodes:
            per_domain[self._domain[node]] = per_domain.get(self._domain[node], 0) + count
        racks = len({self._rack[node] for node, _ in nodes})
        key = (gpus, len(per_domain), racks)
        if key not in self._kept:
            best = self._seconds(gpus, math.ceil(gpus / self._domain_gpus), 1)
            self._kept[key] = self._seconds(*key) / best
        return 1.0 / (1.0 + comm_share * (self._kept[key] - 1.0))

    def _seconds(self, gpus: int, domains: int, racks: int) -> float:
        site = self._site
        across = site.network_bytes_per_second / (self._oversubscription if racks > 1 else 1.0)
        fabric = Fabric(
            domain_size=math.ceil(gpus / domains),
            domain_bytes_per_second=site.domain_bytes_per_second,
            network_bytes_per_second=across,
            domain_latency_seconds=site.domain_latency_seconds,
            network_latency_seconds=site.network_latency_seconds,
        )
        return all_reduce_seconds(gpus, self._bytes, fabric)
