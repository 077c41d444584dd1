"""A cluster's state as a trace for the simulator: who is where, who waits, which nodes admit whom.

Nodes that admit the same of those who wait are one kind of GPU to the simulator. A pod is a job; so
are the ranks of a workload that wait, together. Ranks of less than a node's GPUs may share nodes.
Left out are MIG instances, priorities, pods that want to be near or far from others, and resources
other than GPUs, cores and memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ridgeline.queue.cluster import NodeGroup, QueuedCluster
from ridgeline.queue.detailed_pool import DetailedPool
from ridgeline.queue.doctor.constraints import Constraints
from ridgeline.queue.doctor.lasting import unit_of
from ridgeline.queue.doctor.room import ClusterAhead
from ridgeline.queue.doctor.state import SLURM, LiveCluster, LiveNode, LivePod
from ridgeline.queue.jobs import jobs_in_order
from ridgeline.queue.machine import NEVER, ClusterState
from ridgeline.queue.policies import QueuePolicy
from ridgeline.queue.policies.easy import EasyBackfill
from ridgeline.queue.policies.pod_by_pod import PodByPod
from ridgeline.queue.simulate import play_queue, unfit_jobs
from ridgeline.queue.wants import JobWants, any_of

_AsksFor = tuple[Constraints, str]
"""What a pod asks of nodes: constraints, and the model of GPU."""
_NOWHERE = "no kind"


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """What becomes of a cluster that is played on."""

    working_gpus: float
    """GPUs of jobs that compute, the mean over the time."""
    start_seconds: dict[str, float]
    """When each that waits starts, by pod or workload; who is missing never does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """A job of the trace."""

    name: str
    pods: Sequence[LivePod]
    submit_seconds: float = 0.0
    nodes: tuple[int, ...] = ()
    """Places of the nodes that its first pods are on."""
    waits: bool = True
    """Whether it is one of those whose waits are asked for."""

    @property
    def num_gpus(self) -> int:
        return sum(pod.num_gpus for pod in self.pods)


@dataclass(slots=True)
class _Sorted:
    """The pods of a state by what they do."""

    begun: list[LivePod] = field(default_factory=list)
    """On a node, and computing or yet to."""
    blocking: list[LivePod] = field(default_factory=list)
    """On a node and keeping what they hold."""
    partly: dict[str, list[LivePod]] = field(default_factory=dict)
    """Ranks by workload, those on nodes first, the others waiting."""
    waiting: dict[str, list[LivePod]] = field(default_factory=dict)
    """By what starts as one, the oldest first."""


def play_on(
    ahead: ClusterAhead, lasts: Mapping[str, float], horizon_seconds: float
) -> Continuation:
    """Play a cluster on, with the times that pods and workloads last.

    Args:
        ahead: Where it begins.
        lasts: Seconds by pod or workload, as `Lasting.drawing` gives them.
        horizon_seconds: The time that is asked about.
    """
    nodes = [node for node in ahead.state.nodes if node.num_gpus]
    pods = _sorted(ahead)
    jobs = _begun(ahead, nodes, pods) + _waiting(ahead, pods, horizon_seconds)
    if not jobs:
        return Continuation(working_gpus=0.0, start_seconds={})
    cluster, admitting = _cluster(ahead, nodes, pods, jobs)
    most = max(node.gpus for node in cluster.nodes)
    seconds = [lasts[unit_of(job.pods[0])] for job in jobs]
    traced = jobs_in_order(
        names=[job.name for job in jobs], submit_seconds=[job.submit_seconds for job in jobs],
        duration_seconds=seconds, num_gpus=[job.num_gpus for job in jobs],
        wants=[_wants(job, admitting, most) for job in jobs],
    )  # fmt: skip
    unfit = set(unfit_jobs(traced, cluster))
    kept = [place for place, job in enumerate(jobs) if job.nodes or place not in unfit]
    if not kept:
        return Continuation(working_gpus=0.0, start_seconds={})
    played_jobs = [jobs[place] for place in kept]
    begun = [job for job in played_jobs if job.nodes]
    played = play_queue(traced.chosen(kept), cluster, _policy(ahead, pods), begin=_Beginning(begun))
    starts = np.minimum(played.first_start_seconds, horizon_seconds)
    ends = np.minimum(played.end_seconds, horizon_seconds)
    worked = float((played.sizes * np.maximum(ends - starts, 0.0)).sum())
    started = zip(played_jobs, played.first_start_seconds.tolist(), strict=True)
    return Continuation(
        working_gpus=worked / horizon_seconds,
        start_seconds={job.name: at for job, at in started if job.waits and at < NEVER},
    )


class _Beginning:
    """Puts the first jobs where they are."""

    def __init__(self, jobs: Sequence[_Job]) -> None:
        self._jobs = jobs

    def __call__(self, state: ClusterState, rule: QueuePolicy) -> int:
        """Start them, or let them wait with what they hold."""
        pool = state.pool
        assert isinstance(pool, DetailedPool), "rules of placement tell nodes apart"
        for number, job in enumerate(self._jobs):
            if len(job.nodes) < len(job.pods):
                assert isinstance(rule, PodByPod), "others start nobody in part"
                rule.bound(number, job.nodes)
            else:
                piece = state.asked[number].pieces()[0][0]
                state.start_holding(number, [pool.take_at(job.nodes[0], piece)])
                if isinstance(rule, EasyBackfill):
                    rule.took_up(number)
        return len(self._jobs)


def _sorted(ahead: ClusterAhead) -> _Sorted:
    state, found = ahead.state, _Sorted()
    on_nodes: dict[str, list[LivePod]] = defaultdict(list)
    lacking: dict[str, list[LivePod]] = defaultdict(list)
    # A node whose device plugin gives no GPU any more has nothing that others could have.
    with_gpus = {node.name for node in state.nodes if node.num_gpus}
    in_part = ahead.together or not (ahead.policy or state.scheduler == SLURM)
    for pod in state.running:
        if pod.num_gpus and pod.node in with_gpus:
            on_nodes[unit_of(pod)].append(pod)
    for pod in sorted(state.waiting, key=lambda one: (one.created_seconds or 0.0, one.name)):
        if pod.num_gpus:
            lacking[unit_of(pod)].append(pod)
    for name, pods in on_nodes.items():
        enough = state.enough_pods.get(name, len(state.pods))
        if name in lacking and len(pods) < enough:
            if in_part:
                found.partly[name] = pods + lacking.pop(name)
            else:  # where jobs start whole, it never computes, and keeps what it has
                found.blocking += pods
                del lacking[name]
        else:
            idle = all(pod.name in ahead.idle for pod in pods)
            (found.blocking if idle else found.begun).extend(pods)
    found.waiting = lacking
    return found


def _begun(ahead: ClusterAhead, nodes: Sequence[LiveNode], pods: _Sorted) -> list[_Job]:
    """Jobs that hold something as the clock starts, or are placed before all others."""
    places = {node.name: place for place, node in enumerate(nodes)}
    jobs = []
    for pod in sorted(pods.begun, key=lambda pod: (pod.started_seconds or 0.0, pod.name)):
        node = nodes[places[pod.node]]
        if ahead.placed_anew and not node.closed:
            moved = replace(pod, model=node.model)
            jobs.append(_Job(name=pod.name, pods=[moved], waits=False))
        else:
            jobs.append(_Job(name=pod.name, pods=[pod], nodes=(places[pod.node],), waits=False))
    for name, ranks in pods.partly.items():
        held = () if ahead.together else tuple(places[pod.node] for pod in ranks if pod.node)
        jobs.append(_Job(name=name, pods=ranks, nodes=held))
    return sorted(jobs, key=lambda job: not job.nodes)


def _waiting(ahead: ClusterAhead, pods: _Sorted, horizon_seconds: float) -> list[_Job]:
    jobs = [_Job(name=name, pods=some) for name, some in pods.waiting.items()]
    if ahead.coming:
        gap = ahead.coming_seconds / len(ahead.coming)
        for number in range(int(horizon_seconds / gap)):
            pod = ahead.coming[number % len(ahead.coming)]
            jobs.append(_Job(name=f"{pod.name} again, {number}", pods=[pod], waits=False,
                             submit_seconds=(number + 1) * gap))  # fmt: skip
    return jobs


def _policy(ahead: ClusterAhead, pods: _Sorted) -> str:
    if ahead.policy or ahead.together:
        return ahead.policy or "fifo-skip"
    if ahead.state.scheduler == SLURM:
        return "easy"
    apart = any(not (pod.gang or pod.topology) for some in pods.waiting.values()
                for pod in some if len(some) > 1)  # fmt: skip
    return "pod-by-pod" if pods.partly or apart else "fifo-skip"


def _cluster(
    ahead: ClusterAhead, nodes: Sequence[LiveNode], pods: _Sorted, jobs: Sequence[_Job]
) -> tuple[QueuedCluster, dict[_AsksFor, str]]:
    """The nodes by whom they admit, and the kinds of them that admit each."""
    asking = dict.fromkeys(_asks_for(pod) for job in jobs for pod in job.pods)
    admitting = {one: [_admits(node, one) for node in nodes] for one in asking}
    known: dict[tuple[bool, ...], str] = {}
    kinds = [known.setdefault(marks, f"kind {len(known)}")
             for marks in zip(*admitting.values(), strict=True)]  # fmt: skip
    good = {
        one: any_of(kind for kind, mark in zip(kinds, marks, strict=True) if mark) or _NOWHERE
        for one, marks in admitting.items()
    }
    groups = _groups(ahead.state, nodes, kinds, pods)
    usual = "pack" if ahead.state.scheduler == SLURM else "kube-default"
    placement = ahead.placement or usual
    return QueuedCluster(nodes=groups, placement=placement), good


def _asks_for(pod: LivePod) -> _AsksFor:
    return pod.constraints, pod.model


def _admits(node: LiveNode, asked: _AsksFor) -> bool:
    constraints, model = asked
    if node.closed or model not in ("", node.model):
        return False
    return not constraints.keeps_off(node.labels, node.taints)


def _groups(
    state: LiveCluster, nodes: Sequence[LiveNode], kinds: Sequence[str], pods: _Sorted
) -> list[NodeGroup]:
    """The nodes without what is held there by pods that are no jobs of the trace."""
    blocking = {pod.name for pod in pods.blocking}
    blocked: dict[str, int] = defaultdict(int)
    held: dict[str, int] = defaultdict(int)
    beside: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for pod in state.running:
        if pod.name in blocking or not pod.num_gpus:
            blocked[pod.node] += pod.num_gpus
            beside[pod.node][0] += pod.cpu_milli
            beside[pod.node][1] += pod.memory_bytes
        else:
            held[pod.node] += pod.num_gpus
    return [
        NodeGroup(
            count=1, gpu_type=kind,
            gpus=max(node.num_gpus - blocked[node.name], held[node.name]),
            cpus=max(0, node.cpu_milli - beside[node.name][0]) / 1000.0,
            memory_gibibytes=max(0, node.memory_bytes - beside[node.name][1]) / 2**30,
        )
        for node, kind in zip(nodes, kinds, strict=True)
    ]  # fmt: skip


def _wants(job: _Job, admitting: Mapping[_AsksFor, str], most: int) -> JobWants:
    first, count = job.pods[0], len(job.pods)
    alone = count == 1 or job.num_gpus >= count * most
    apart = count > 1 and not (first.gang or first.topology)
    return JobWants(
        cpus=sum(pod.cpu_milli for pod in job.pods) / 1000.0,
        memory_bytes=float(sum(pod.memory_bytes for pod in job.pods)),
        gpu_type=admitting[_asks_for(first)],
        required=alone,
        pods=count if apart else 0,
    )
