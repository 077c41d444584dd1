"""The jobs of a trace as tasks that a rule of placement puts on nodes, and a cluster as its nodes.

A job of more GPUs than the largest node has is a task of each of its nodes. How long jobs run is of
no account: tasks stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from ridgeline.queue.cluster import QueuedCluster, check_queued_cluster
from ridgeline.queue.detailed_pool import DetailedPool
from ridgeline.queue.gpu_kinds import same_kinds
from ridgeline.queue.jobs import Jobs
from ridgeline.queue.placement.nodes import PlacedNode, PlacedTasks, TaskKind, tasks_of
from ridgeline.queue.pools import counted_jobs, heeded_jobs, job_wishes, rooms_of
from ridgeline.queue.ruled_pool import seen_by_rule, task_kind


def nodes_of_cluster(cluster: QueuedCluster, where: str) -> list[PlacedNode]:
    """The nodes of a cluster with nothing on them.

    Raises:
        InputError: Some nodes tell their cores or memory and others do not.
    """
    check_queued_cluster(msgspec.structs.replace(cluster, placement="fgd"), where)
    rooms, _ = rooms_of(cluster)
    return [seen_by_rule(room, f"node {number}") for number, room in enumerate(rooms)]


def tasks_of_jobs(jobs: Jobs, cluster: QueuedCluster) -> PlacedTasks:
    """What the jobs of a trace ask of nodes.

    Raises:
        InputError: No node can be split into an instance that a job asks for.
    """
    jobs = counted_jobs(heeded_jobs(jobs, cluster), cluster)
    rooms, domains = rooms_of(cluster)
    pool = DetailedPool(rooms, domains)
    return tasks_of([
        task_kind(piece, pool.gpus_of(piece.gpu_slice))
        for wish in job_wishes(jobs, max(1, *(room.whole for room in rooms)))
        for piece, times in wish.pieces()
        for _ in range(times)
    ])  # fmt: skip


def heeded_tasks(tasks: PlacedTasks, nodes: Sequence[PlacedNode]) -> PlacedTasks:
    """The tasks without what no node counts, and kinds of GPU in the nodes' words."""
    cores, memory = (any(getattr(node, one) for node in nodes)
                     for one in ("cpu_milli", "memory_bytes"))  # fmt: skip
    here = {node.model for node in nodes}
    kinds = [
        replace(
            kind,
            cpu_milli=kind.cpu_milli if cores else 0,
            memory_bytes=kind.memory_bytes if memory else 0,
            models=_known(kind, here),
        )
        for kind in tasks.kinds
    ]
    return tasks_of([kinds[place] for place in tasks.kind_of.tolist()])


def _known(kind: TaskKind, here: set[str]) -> tuple[str, ...]:
    """The models that will do, as nodes name them; where no node names any, they are not heeded."""
    if here == {""}:
        return ()
    found = {same for one in kind.models for same in same_kinds(one, here)}
    return tuple(sorted(found)) or kind.models
