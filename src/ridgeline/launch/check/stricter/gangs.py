"""Rules of all or nothing: jobs whose pods wait for each other, and where those pods are placed.

Sources: two gangs of 3 pods × 4 GPUs on 16 GPUs deadlock on kube-scheduler 1.36.2 without gang
scheduling (2 + 2 bound, both stuck); kubeflow/trainer #1282 (99 of 100 workers run, GPUs burn);
default spreading leaves no whole node for 8-GPU jobs on the openb trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ridgeline.launch.check.fields import Object, entries, section
from ridgeline.launch.check.stricter.workload import (
    RUNTIME_KINDS,
    BrokenRule,
    PodSet,
    PodWorkload,
    devices_of,
)

QUEUE_KEYS = frozenset(
    {
        "kueue.x-k8s.io/queue-name",
        "kueue.x-k8s.io/pod-group-name",
        "kai.scheduler/queue",
        "runai/queue",
        "pod-group-name",
        "scheduling.k8s.io/group-name",
        "scheduling.volcano.sh/group-name",
        "scheduling.x-k8s.io/pod-group",
        "volcano.sh/queue-name",
        "ray.io/gang-scheduling-enabled",
        "yunikorn.apache.org/task-group-name",
    },
)
"""Labels and annotations that hand a job to a queue or to a group of pods."""

GANG_SCHEDULERS = frozenset({"volcano", "kai-scheduler", "yunikorn"})
_HOST = "kubernetes.io/hostname"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def has_gang(workload: PodWorkload) -> bool:
    """Whether anything sees to it that all pods start, or none."""
    if workload.api_version.startswith("batch.volcano.sh/"):
        return True  # Without minAvailable, Volcano waits for all pods.
    together = (workload.manifest, *workload.partners)
    specs = [section(manifest, "spec") for manifest in together]
    if any(spec.get("podGroupPolicy") or spec.get("schedulingGroup") for spec in specs):
        return True
    if any(_has_policy(spec) for spec in specs):
        return True
    places = [section(manifest, "metadata") for manifest in together]
    places += [pod.metadata for pod in workload.pods]
    if any(QUEUE_KEYS & _marks(place) for place in places):
        return True
    return any(
        pod.spec.get("schedulerName") in GANG_SCHEDULERS or pod.spec.get("schedulingGroup")
        for pod in workload.pods
    )


def _has_policy(spec: Object) -> bool:
    """Whether the operator of a job of kubeflow.org is told to make a group of pods."""
    policy = spec.get("runPolicy")
    return isinstance(policy, Mapping) and bool(policy.get("schedulingPolicy"))


def _marks(metadata: Object) -> set[str]:
    return {*section(metadata, "labels"), *section(metadata, "annotations")}


def _no_gang(workload: PodWorkload) -> Iterator[BrokenRule]:
    spec = section(workload.manifest, "spec")
    pods = workload.num_device_pods
    if workload.kind == "TrainJob":
        trainer = section(spec, "trainer")
        if devices_of(section(trainer, "resourcesPerNode")):
            pods = trainer.get("numNodes") or 1
    applies = workload.is_training or workload.kind in {"TrainJob", "RayCluster", *RUNTIME_KINDS}
    if applies and pods > 1 and not has_gang(workload):
        yield BrokenRule(
            "metadata.labels",
            f"{pods} pods with GPUs are placed one by one: some may run and wait for the others",
            "label it kueue.x-k8s.io/queue-name, or put it into a PodGroup (Volcano, KAI, "
            "coscheduling)",
        )


def _gang_too_large(workload: PodWorkload) -> Iterator[BrokenRule]:
    if not workload.api_version.startswith("batch.volcano.sh/"):
        return
    spec = section(workload.manifest, "spec")
    least = spec.get("minAvailable")
    tasks = entries(spec, "tasks")
    total = sum(1 if t.get("replicas") is None else t["replicas"] for t in tasks)
    if tasks and isinstance(least, int) and least > total:
        yield BrokenRule(
            "spec.minAvailable",
            f"waits for {least} pods, and the tasks have {total}",
            f"set it to {total}",
        )


def _replica_range(workload: PodWorkload) -> Iterator[BrokenRule]:
    for path, holder in {p: h for pod in workload.pods for p, h in pod.holders}.items():
        low, high = holder.get("minReplicas"), holder.get("maxReplicas")
        if isinstance(low, int) and isinstance(high, int) and low > high:
            yield BrokenRule(
                f"{path}.minReplicas", f"{low} is more than maxReplicas {high}", "swap the two"
            )


def _spread(workload: PodWorkload) -> Iterator[BrokenRule]:
    for pod in workload.device_pods:
        if pod.devices < 2 or pod.count < 2:
            continue
        yield from _spread_constraints(pod)
        anti = section(section(pod.spec, "affinity"), "podAntiAffinity")
        terms = [(f"{_REQUIRED}[{i}]", t) for i, t in enumerate(entries(anti, _REQUIRED))]
        terms += [
            (f"{_PREFERRED}[{i}]", section(t, "podAffinityTerm"))
            for i, t in enumerate(entries(anti, _PREFERRED))
        ]
        for where, term in terms:
            if term.get("topologyKey") == _HOST and pod.devices < 8:
                yield BrokenRule(
                    f"{pod.path}.affinity.podAntiAffinity.{where}.topologyKey",
                    f"pods of {pod.devices} GPUs are kept off each other's nodes: collectives "
                    "leave the fast links, and every node stays partly used",
                    "drop it, or ask for a topology (rack, block) that keeps the pods together",
                )


def _spread_constraints(pod: PodSet) -> Iterator[BrokenRule]:
    for index, constraint in enumerate(entries(pod.spec, "topologySpreadConstraints")):
        yield BrokenRule(
            f"{pod.path}.topologySpreadConstraints[{index}]",
            f"pods of {pod.devices} GPUs are spread over {constraint.get('topologyKey')}: "
            "collectives cross slower links",
            "drop it, or ask for a topology that keeps the pods together",
        )


def _priorities(workload: PodWorkload) -> Iterator[BrokenRule]:
    named = {pod.spec.get("priorityClassName") or "" for pod in workload.device_pods}
    if len(named) > 1:
        first = workload.device_pods[0]
        yield BrokenRule(
            f"{first.path}.priorityClassName",
            "pods of one job have different priorities: part of it can be evicted",
            "give all templates the same priorityClassName",
        )
    if not workload.is_training or workload.num_device_pods < 2:
        return
    marks = _marks(section(workload.manifest, "metadata"))
    spec = section(workload.manifest, "spec")
    if named == {""} and not (
        {"kueue.x-k8s.io/priority-class", "priorityClassName"} & marks
        or spec.get("priorityClassName")
    ):
        yield BrokenRule(
            f"{workload.device_pods[0].path}.priorityClassName",
            f"{workload.num_device_pods} pods with GPUs and no priority: any job with one "
            "evicts them",
            "set priorityClassName, or the label kueue.x-k8s.io/priority-class",
        )


CHECKS = {
    "no-gang": _no_gang,
    "gang-too-large": _gang_too_large,
    "replica-range": _replica_range,
    "spread-placement": _spread,
    "priority-class": _priorities,
}
