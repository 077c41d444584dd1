"""Which pool a cluster has for its jobs, and what each job asks of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any, get_args

from ridgeline.errors import InputError
from ridgeline.queue.cluster import QueuedCluster
from ridgeline.queue.detailed_pool import DetailedPool
from ridgeline.queue.gpu_kinds import matched_kinds
from ridgeline.queue.jobs import Jobs
from ridgeline.queue.mig_slots import mig_grid
from ridgeline.queue.node_room import UNCOUNTED, NodeRoom
from ridgeline.queue.pool import Asked, CountedPool, GpuPool, NodePool, PlacementName
from ridgeline.queue.ruled_pool import RuledPool
from ridgeline.queue.wants import PLAIN, Level, Wish, wish_of


def pool_for(cluster: QueuedCluster, jobs: Jobs, seed: int = 0) -> GpuPool:
    """All GPUs of a cluster, free, told apart as far as its jobs or a rule of placement ask."""
    if cluster.placement not in get_args(PlacementName):
        return _ruled(cluster, jobs, seed)
    if any(one.detailed for one in set(jobs.wants)) or jobs.num_gpus.dtype.kind == "f":
        return _detailed(cluster)
    if cluster.flavors:
        return _detailed(cluster)
    if cluster.network is not None and any(one.comm_share for one in set(jobs.wants)):
        return _detailed(cluster)
    if not cluster.nodes:
        return CountedPool(cluster.gpus)
    sizes = [one.gpus for one in cluster.nodes for _ in range(one.count)]
    return NodePool(sizes, _by_count(cluster))


def start_sizes(jobs: Jobs) -> list[Any]:
    """GPUs that each job starts with."""
    sizes: list[Any] = jobs.num_gpus.tolist()
    if not jobs.wants:
        return sizes
    return [one.min_gpus or size for size, one in zip(sizes, jobs.wants, strict=True)]


def wishes_of(jobs: Jobs, pool: GpuPool) -> list[Asked]:
    """What each job asks of the pool; jobs that ask alike ask for one thing."""
    if not isinstance(pool, DetailedPool):
        return start_sizes(jobs)
    return job_wishes(jobs, pool.largest)


def job_wishes(jobs: Jobs, largest: int) -> list[Wish]:
    """What each job asks of nodes of which the largest has so many GPUs."""
    sizes = start_sizes(jobs)
    made: dict[Any, Wish] = {}
    wants = jobs.wants or (PLAIN,) * len(jobs)
    found = []
    for size, one in zip(sizes, wants, strict=True):
        key = (size, one)
        if key not in made:
            made[key] = wish_of(size, one, largest)
        found.append(made[key])
    return found


def heeded_jobs(jobs: Jobs, cluster: QueuedCluster) -> Jobs:
    """The jobs without what the cluster does not count, kinds of GPU and queues in its words."""
    jobs = matched_kinds(jobs, cluster)
    if cluster.local_queues:
        named = tuple(cluster.local_queues.get(one, one) for one in jobs.queues)
        jobs = replace(jobs, queues=named)
    cores, memory = (
        getattr(cluster, key) is not None or any(getattr(one, key) is not None
                                                 for one in cluster.nodes)
        for key in ("cpus", "memory_gibibytes")
    )  # fmt: skip
    kept = {
        one: replace(
            one,
            cpus=one.cpus if cores else 0.0,
            memory_bytes=one.memory_bytes if memory else 0.0,
            comm_share=one.comm_share if cluster.network else 0.0,
        )
        for one in set(jobs.wants)
    }
    if all(one == PLAIN for one in kept.values()):
        return replace(jobs, wants=())
    return replace(jobs, wants=tuple(kept[one] for one in jobs.wants))


def counted_jobs(jobs: Jobs, cluster: QueuedCluster) -> Jobs:
    """The jobs with MIG instances counted as the parts of a GPU that they are.

    Raises:
        InputError: No node can be split into an instance that a job asks for.
    """
    if not any(one.gpu_slice for one in set(jobs.wants)):
        return jobs
    pool = _detailed(cluster)
    sizes = jobs.num_gpus.astype(float)
    for place, one in enumerate(jobs.wants):
        if one.gpu_slice:
            sizes[place] = pool.gpus_of(one.gpu_slice)
            if not sizes[place]:
                raise InputError(
                    f"job {jobs.names[place]} asks for a MIG instance {one.gpu_slice}, into which"
                    " no node's GPUs can be split; give the nodes a gpu_type that can"
                )
    return replace(jobs, num_gpus=sizes)


def _by_count(cluster: QueuedCluster) -> PlacementName:
    """How nodes are taken by their free GPUs."""
    return "spread" if cluster.placement == "spread" else "pack"


def _detailed(cluster: QueuedCluster) -> DetailedPool:
    return DetailedPool(*rooms_of(cluster), _by_count(cluster))


def _ruled(cluster: QueuedCluster, jobs: Jobs, seed: int) -> RuledPool:
    rooms, domains = rooms_of(cluster)
    wishes = job_wishes(jobs, max(1, *(room.whole for room in rooms)))
    return RuledPool(rooms, domains, rule=cluster.placement, wishes=wishes, seed=seed)


def rooms_of(cluster: QueuedCluster) -> tuple[list[NodeRoom], dict[Level, list[int]]]:
    """What is free on each node of an empty cluster, and the domain of each, by level."""
    rooms: list[NodeRoom] = []
    domains: dict[Level, list[int]] = {"node": [], "nvlink": [], "rack": []}
    if not cluster.nodes:
        rooms = [_room(cluster.gpus, cluster.cpus, cluster.memory_gibibytes)]
        domains = {level: [0] for level in domains}
    numbers = {level: count() for level in domains}
    for group in cluster.nodes:
        grid = mig_grid(group.gpu_type)
        spans: dict[Level, int] = {
            "node": 1, "nvlink": group.nodes_per_nvlink, "rack": group.nodes_per_rack or group.count
        }  # fmt: skip
        for node in range(group.count):
            room = _room(group.gpus, group.cpus, group.memory_gibibytes)
            room.gpu_type, room.grid, room.spot = group.gpu_type, grid, group.spot is not None
            rooms.append(room)
            for level, span in spans.items():
                if node % span == 0:
                    latest = next(numbers[level])
                    domains[level].append(latest)
                else:
                    domains[level].append(domains[level][-1])
    return rooms, domains


def _room(gpus: int, cpus: float | None, memory_gibibytes: float | None) -> NodeRoom:
    return NodeRoom(
        whole=gpus,
        cpu_milli=UNCOUNTED if cpus is None else round(1000 * cpus),
        memory_bytes=UNCOUNTED if memory_gibibytes is None else round(2**30 * memory_gibibytes),
    )
